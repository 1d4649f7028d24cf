#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <sstream>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "dist/data_parallel_state.h"
#include "dist/exchange.h"

namespace accelerant::dist {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// The numbers after the last `label` in the text.
std::vector<size_t> numbers_after(const std::string& text, const std::string& label) {
  const size_t start = text.rfind(label);
  if (start == std::string::npos) return {};
  std::istringstream rest(text.substr(start + label.size()));
  std::vector<size_t> numbers;
  for (size_t number = 0; rest >> number;) {
    numbers.push_back(number);
    while (rest.peek() == ',' || rest.peek() == ' ') rest.get();
  }
  return numbers;
}

std::string names_of(const DataParallel::State& state, const std::vector<size_t>& indices) {
  std::vector<std::string> names;
  for (const size_t index : indices) {
    if (index >= state.trained.size()) continue;
    const NamedParameter& parameter = state.parameters[state.trained[index]];
    // Parameters frozen later are found to be unused as well.
    names.push_back(parameter.name + (parameter.value.requires_grad()
                                          ? ""
                                          : " (frozen since the model was prepared)"));
  }
  return names.empty() ? "unknown parameters" : list_text(names);
}

// c10d throws its own types from stores and NCCL, but plain runtime errors from Gloo.
bool is_failed_exchange(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  const std::string text = error.what();
  return contains(text, "/gloo/") || contains(text, "Connection closed by peer") ||
         contains(text, "Connection reset by peer") || contains(text, "Timed out waiting") ||
         contains(text, "NCCL error");
}

}  // namespace

void DataParallel::State::rethrow_unfinished(const std::exception& error) const {
  const std::string text = error.what();
  const std::string label = c10::str("did not receive grad for rank ", world->rank(), ": ");
  if (options.static_graph) {
    throw Error(ErrorDetails{
        .problem = "The graph of the model has changed, but static_graph promises that it does not",
        .expected = "the parameters of the first iteration in every backward()",
        .got = "an iteration that does not use some of them",
        .hint = "set find_unused_parameters instead of static_graph"});
  }
  throw Error(ErrorDetails{
      .problem = c10::str("Rank ", world->rank(), " has no gradients for some parameters"),
      .expected = "a loss that depends on all trained parameters",
      .got = "no gradients for " + names_of(*this, numbers_after(text, label)),
      .hint = options.find_unused_parameters
                  ? "return every output that has a graph from the model's forward"
                  : "set find_unused_parameters = true if they are left out on purpose"});
}

void rethrow_backward_error(const std::vector<DataParallel*>& models, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& original) {
    if (models.empty()) throw;
    const std::string text = original.what();
    if (is_failed_exchange(original)) {
      rethrow_exchange_error(models.front()->world(), kAveragingGradients, error);
    }
    if (contains(text, "has been marked as ready twice")) {
      const size_t name = text.find("with name ");
      throw Error(ErrorDetails{
          .problem = "A parameter got gradients twice in a backward() that averages them",
          .expected = "one gradient per parameter",
          .got = name == std::string::npos
                     ? "two gradients"
                     : "two gradients for " +
                           text.substr(name + 10, text.find(" has been marked", name) - name - 10),
          .hint = "set static_graph = true if every iteration uses the parameters equally often "
                  "(for example, with activation checkpoints), and use parameters only inside "
                  "forward"});
    }
    if (contains(text, "training graph has changed")) {
      throw Error(ErrorDetails{
          .problem =
              "The graph of the model has changed, but static_graph promises that it does not",
          .expected = "the parameters of the first iteration in every backward()",
          .got = "a different use of some of them",
          .hint = "set find_unused_parameters instead of static_graph"});
    }
    throw;
  }
}

}  // namespace accelerant::dist
