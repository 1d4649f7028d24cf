#include "accelerant/amp/grad_scaler.h"

#include <c10/util/StringUtil.h>

namespace accelerant {

std::string OverflowReport::to_string() const {
  std::string text;
  for (const OverflowedParameter& parameter : parameters) {
    text += c10::str(parameter.name, " [", c10::Join(", ", parameter.shape),
                     "]: ", parameter.inf_count, " inf, ", parameter.nan_count, " nan\n");
  }
  return text;
}

}  // namespace accelerant
