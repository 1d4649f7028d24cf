#include <torch/nn/module.h>

#include <cstdlib>
#include <exception>

#include "accelerant/core/error.h"
#include "accelerant/paging/empty_weights.h"
#include "core/texts.h"
#include "paging/init_mode.h"

namespace accelerant {
namespace {

constexpr const char* kIncludeBuffersVariable = "ACCELERATE_INIT_INCLUDE_BUFFERS";

bool includes_buffers(const InitOptions& options) {
  if (options.include_buffers) return *options.include_buffers;
  const char* const value = std::getenv(kIncludeBuffersVariable);
  if (value == nullptr || *value == '\0') return false;
  if (const auto flag = parse_flag(value)) return *flag;
  throw Error(ErrorDetails{.problem = std::string(kIncludeBuffersVariable) + " is not a flag",
                           .expected = "1, true, yes or on, or 0, false, no or off",
                           .got = value,
                           .hint = "correct the environment variable or unset it"});
}

}  // namespace

class InitScope::State : public paging::InitMode {
 public:
  using InitMode::InitMode;
};

InitScope::InitScope(c10::Device device, const InitOptions& options)
    : state_(std::make_unique<State>(device, includes_buffers(options))),
      exceptions_(std::uncaught_exceptions()) {}

InitScope::~InitScope() noexcept(false) {
  // A constructor that threw leaves nothing to be moved.
  if (std::uncaught_exceptions() == exceptions_) state_->settle();
}

void InitScope::finish(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : module.parameters()) {
    if (tensor.defined()) state_->settle(tensor);
  }
  if (!state_->include_buffers()) return;
  for (const at::Tensor& tensor : module.buffers()) {
    if (tensor.defined()) state_->settle(tensor);
  }
}

}  // namespace accelerant
