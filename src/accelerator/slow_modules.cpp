#include "accelerator/slow_modules.h"

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <typeinfo>

namespace accelerant::detail {

std::string slow_modules_advice(const torch::nn::Module& module) {
  constexpr std::size_t shown = 3;
  std::size_t count = 0;
  std::string names;
  // Without itself: that would need a shared pointer, which a module on the stack has none of.
  const auto inside = module.named_modules("", /*include_self=*/false);
  for (const auto& item : inside) {
    const torch::nn::Module& part = *item.value();
    // The drop-in derives from it.
    if (typeid(part) != typeid(torch::nn::LinearImpl)) continue;
    if (!static_cast<const torch::nn::LinearImpl&>(part).bias.defined()) continue;
    if (count++ < shown) names += (names.empty() ? "" : ", ") + item.key();
  }
  if (count == 0) return "";
  if (count > shown) names += c10::str(" and ", count - shown, " more");
  return c10::str(names,
                  ": torch::nn::Linear adds its bias in a second pass if its input has other than "
                  "two dimensions; "
                  "accelerant::nn::Linear (accelerant/nn/linear.h) is the same without it");
}

}  // namespace accelerant::detail
