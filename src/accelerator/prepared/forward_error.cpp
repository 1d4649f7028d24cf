#include "accelerator/prepared/forward_error.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "accelerator/prepared/model_state.h"
#include "core/texts.h"

namespace accelerant::detail {
namespace {

std::set<std::string> numbers_in_text(const std::string& text) {
  std::set<std::string> numbers;
  std::string number;
  for (const char c : text + " ") {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      number += c;
    } else if (!number.empty()) {
      numbers.insert(std::exchange(number, std::string()));
    }
  }
  return numbers;
}

// The weights all of whose sizes are in the message, such as "(3x8 and 9x2)". Biases would match by
// chance.
std::vector<std::string> weights_named_in(const ModelState& model, const std::string& message) {
  const std::set<std::string> numbers = numbers_in_text(message);
  std::vector<std::string> names;
  for (const auto& item : model.module().named_parameters()) {
    const auto sizes = item.value().sizes();
    const bool is_named = sizes.size() > 1 && std::ranges::all_of(sizes, [&](int64_t size) {
                            return numbers.contains(std::to_string(size));
                          });
    if (is_named) names.push_back(c10::str(item.key(), " ", shape_text(sizes.vec())));
  }
  return names;
}

}  // namespace

std::string place_of_error(const ModelState& model, const std::string& message) {
  constexpr std::size_t shown = 3;
  std::string place = "in the forward of a prepared model";
  if (const data::LoaderState* loader = model.core()->loaders.innermost()) {
    place += c10::str(", epoch ", loader->epoch(), ", the batch that ends at sample ",
                      loader->position());
  }
  const auto weights = weights_named_in(model, message);
  if (!weights.empty()) place += "; weights of these sizes: " + list_text(weights, shown);
  return place;
}

}  // namespace accelerant::detail
