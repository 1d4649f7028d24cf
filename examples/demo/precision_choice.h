// Which number format this machine trains fast in.
#pragma once

#include <accelerant/accelerator/options.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace demo {

struct PrecisionChoice {
  accelerant::Precision precision = accelerant::Precision::no;
  std::string reason;  // a phrase that goes on from the name of the format
};

// A GPU: the fastest in a matrix product, measured here. A CPU: bfloat16 if it has instructions for
// it and the measured product gains by them, else float32. `wanted` is taken as it is.
PrecisionChoice choose_precision(c10::Device device, std::optional<accelerant::Precision> wanted);

// "AMD EPYC 9654", or "CPU" if the system does not tell.
std::string cpu_name();

}  // namespace demo
