// Checks whether all processes are about to do the same. Each tells the others what it has; if that
// does not match, all of them throw an Error that lists every process. The message goes over the
// control group, so no GPU is involved, and usually fits in one exchange (message.h).
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerant/dist/collectives.h"
#include "accelerant/dist/world.h"

namespace accelerant::dist {

struct TensorView {
  bool defined = false;
  at::ScalarType type = at::ScalarType::Undefined;
  c10::DeviceType device = c10::DeviceType::CPU;
  std::vector<int64_t> sizes = {};

  bool operator==(const TensorView&) const = default;
};

// What one process is about to do.
struct View {
  std::string operation = {};
  int64_t call = 0;
  std::string structure = {};  // as in Bundle
  std::vector<TensorView> tensors = {};
  std::vector<int64_t> numbers = {};  // anything else that the operation compares
};

// The views of all processes by rank. Throws Error if operations, structures or the kinds of
// tensors (type, device, number of dimensions) differ; the caller checks the sizes.
std::vector<View> exchange_views(const World& world, const char* operation,
                                 const detail::Bundle& data, std::vector<int64_t> numbers = {});

// The same, and also throws Error if sizes or numbers differ. `hint` says what to do about sizes.
void require_same(const World& world, const char* operation, const detail::Bundle& data,
                  const std::string& hint, std::vector<int64_t> numbers = {});

// Compares only the operation, and only in debug mode.
void require_same_in_debug(const World& world, const char* operation);

// Throws an Error that lists the views.
[[noreturn]] void refuse_views(const std::vector<View>& views, const std::string& problem,
                               const std::string& expected, const std::string& hint);

}  // namespace accelerant::dist
