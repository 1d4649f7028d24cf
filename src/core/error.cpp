#include "accelerant/core/error.h"

#include <utility>

#include "core/texts.h"

namespace accelerant {
namespace {

std::string compose(const ErrorDetails& details) {
  std::string message = details.problem;
  if (!details.expected.empty()) message += ": expected " + details.expected;
  if (!details.got.empty())
    message += (details.expected.empty() ? ": got " : ", got ") + details.got;
  if (!details.hint.empty()) message += "; " + details.hint;
  return message;
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(message) {}

Error::Error(const std::string& pytorch_text, const std::string& hint)
    : std::runtime_error(pytorch_text + "\n  " + hint) {}

Error::Error(const ErrorDetails& details) : std::runtime_error(compose(details)) {}

Preempted::Preempted(int signal, std::string checkpoint)
    : signal_(signal),
      checkpoint_(std::move(checkpoint)),
      text_(signal_name(signal) + " received: state saved in " + checkpoint_) {}

}  // namespace accelerant
