// What the tests of the Accelerator share.
#pragma once

#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace accelerator_test {

// Sets an environment variable for its own lifetime.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_.empty()) {
      unsetenv(name_.c_str());
    } else {
      setenv(name_.c_str(), before_.c_str(), 1);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::string before_;
};

inline accelerant::AcceleratorOptions on_cpu(
    accelerant::Precision precision = accelerant::Precision::no, int64_t steps = 1) {
  return {.cpu = true, .mixed_precision = precision, .gradient_accumulation = {.steps = steps}};
}

// fp16 with a scale that is easy to see.
inline accelerant::AcceleratorOptions scaled_options(int64_t steps = 1,
                                                     int64_t growth_interval = 2000) {
  auto options = on_cpu(accelerant::Precision::fp16, steps);
  options.scaler = {.init_scale = 1024, .growth_interval = growth_interval};
  return options;
}

// y = w x with w = 1: the gradient of mean(y) is the mean of x.
struct ScaleImpl : torch::nn::Module {
  torch::Tensor w = register_parameter("w", torch::ones({1}));
  torch::Tensor forward(const torch::Tensor& x) { return w * x; }
};
TORCH_MODULE(Scale);

// A module that is an object rather than a holder, with default arguments and several overloads.
struct Flexible : torch::nn::Module {
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(2, 2))};

  torch::Tensor forward(const torch::Tensor& x, double factor = 2.0, bool negate = false) {
    const auto y = linear(x) * factor;
    return negate ? -y : y;
  }
  int64_t forward(int64_t number) { return number + 1; }
  void forward(std::vector<int>& out) { out.push_back(1); }
};

inline torch::Tensor scalar(double value) { return torch::full({1}, value); }

// One model with one weight, starting at 1, and plain gradient descent, all prepared.
struct OneWeight {
  explicit OneWeight(const accelerant::AcceleratorOptions& options, double rate = 1.0)
      : accelerator(options),
        sgd(net->parameters(), rate),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(sgd)) {}

  void backward(double x) { accelerator.backward(model(scalar(x)).sum()); }
  float weight() const { return net->w.item<float>(); }
  float gradient() const { return net->w.grad().item<float>(); }

  accelerant::Accelerator accelerator;
  Scale net;
  torch::optim::SGD sgd;
  accelerant::Model<Scale> model;
  accelerant::Optimizer optimizer;
};

// The rows 0, 1, ..., length - 1 as float32 of shape [length, 1].
inline auto counting_loader(int64_t length, accelerant::data::LoaderOptions options = {}) {
  return accelerant::data::loader(
      accelerant::data::tensors(torch::arange(length, torch::kFloat32).unsqueeze(1)),
      std::move(options));
}

// The length of a stream is not known in advance, so its short window is corrected at the end.
struct CountingStream {
  int64_t length = 0;
  int64_t next_row = 0;
  std::optional<torch::Tensor> next() {
    if (next_row == length) return std::nullopt;
    return torch::full({1}, static_cast<float>(next_row++));
  }
  void reset(int64_t) { next_row = 0; }
};

inline std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

inline bool all_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                      double tolerance) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::allclose(a[i].detach(), b[i].detach(), tolerance, tolerance)) return false;
  }
  return true;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace accelerator_test
