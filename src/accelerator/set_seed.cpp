#include "accelerant/accelerator/utilities.h"

#include <ATen/Context.h>
#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "accelerant/watch/environment.h"

namespace accelerant {

void set_seed(uint64_t seed, const SetSeedOptions& options) {
  if (options.process_index.value_or(0) < 0) {
    throw Error(ErrorDetails{.problem = "set_seed: process_index is out of range",
                             .expected = "0 or more",
                             .got = c10::str(*options.process_index)});
  }
  if (options.device_specific) {
    const int64_t process =
        options.process_index ? *options.process_index : dist::Environment::detect().process_index;
    seed += static_cast<uint64_t>(process);
  }
  at::manual_seed(seed);
  if (options.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
}

}  // namespace accelerant
