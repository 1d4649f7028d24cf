// Where an error of torch in a model's forward came from.
#pragma once

#include <string>

namespace accelerant::detail {

class ModelState;

// What torch's message does not say: the batch of the loop, and the weights whose sizes it names.
std::string place_of_error(const ModelState& model, const std::string& message);

}  // namespace accelerant::detail
