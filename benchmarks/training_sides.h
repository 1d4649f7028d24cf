// A training that advances step by step, in the two ways C++ offers: with the Accelerator, and in
// plain libtorch with everything written by hand.
#pragma once

#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "training_by_hand.h"
#include "training_tasks.h"

constexpr double kMaxNorm = 1.0;
constexpr int64_t kScheduleSteps = 1'000'000;

inline at::Device best_device() {
  return torch::cuda::is_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

inline void synchronize() {
  if (best_device().is_cuda()) torch::cuda::synchronize();
}

class Training {
 public:
  Training() = default;
  virtual ~Training() = default;
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Runs one step and returns the loss, on the device.
  virtual at::Tensor step(const at::Tensor& data, const at::Tensor& target) = 0;
  virtual std::vector<at::Tensor> parameters() const = 0;

  // Throws if a step that should be captured still is not captured after some steps.
  virtual void check() const {}
};

// Whether this Accelerator can turn a step into a CUDA graph.
template <class Accelerator>
constexpr bool kHasCapture =
    requires(Accelerator& accelerator,
             std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> step) {
  accelerator.capture(step);
};

// What a form of Accelerant's training changes: see training_forms().
struct AcceleratedForm {
  bool is_captured = false;
  bool warns = true;
  bool clips = true;
  std::optional<accelerant::Nonfinite> nonfinite = std::nullopt;
};

template <class Task>
class AcceleratedTraining : public Training {
 public:
  AcceleratedTraining(const Task& task, accelerant::Precision precision,
                      const AcceleratedForm& form)
      : task_(task),
        clips_(form.clips),
        accelerator_({.mixed_precision = precision,
                      .nonfinite = form.nonfinite,
                      .warnings = form.warns ? accelerant::WarningOptions()
                                             : accelerant::WarningOptions::none()}),
        network_(task.template make_network<OurParts>()),
        torch_optimizer_(task.make_optimizer(network_->parameters())),
        cosine_(accelerant::optim::cosine_annealing(*torch_optimizer_, {.t_max = kScheduleSteps})),
        model_(accelerator_.prepare_model(network_, {.float32_outputs = !Task::kTakes16Bits})),
        optimizer_(accelerator_.prepare(torch_optimizer_)),
        scheduler_(accelerator_.prepare(cosine_)),
        run_([this](const at::Tensor& data, const at::Tensor& target) {
          return eager_step(data, target);
        }) {
    if (form.is_captured) run_captured(accelerator_);
  }

  at::Tensor step(const at::Tensor& data, const at::Tensor& target) override {
    return run_(data, target);
  }
  std::vector<at::Tensor> parameters() const override { return network_->parameters(); }
  void check() const override {
    if (why_not_captured_ && !why_not_captured_().empty()) {
      throw std::runtime_error("not captured: " + why_not_captured_());
    }
  }

  accelerant::Accelerator& accelerator() { return accelerator_; }

 private:
  using Step = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

  at::Tensor eager_step(const at::Tensor& data, const at::Tensor& target) {
    auto window = accelerator_.accumulate(model_);
    const at::Tensor loss = task_.template loss<OurParts>(model_(data), target);
    accelerator_.backward(loss);
    if (clips_) accelerator_.clip_grad_norm_(model_, kMaxNorm);
    optimizer_.step();
    scheduler_.step();
    optimizer_.zero_grad();
    return loss.detach();
  }

  template <class Accelerator>
  void run_captured(Accelerator& accelerator) {
    if constexpr (kHasCapture<Accelerator>) {
      auto graph = std::make_shared<decltype(accelerator.capture(run_))>(accelerator.capture(run_));
      run_ = [graph](const at::Tensor& data, const at::Tensor& target) {
        return (*graph)(data, target);
      };
      why_not_captured_ = [graph]() -> std::string {
        if (graph->is_captured()) return "";
        return graph->why_not().empty() ? "it still runs eagerly" : graph->why_not();
      };
    } else {
      throw std::invalid_argument("this Accelerator has no capture()");
    }
  }

  Task task_;
  bool clips_;
  accelerant::Accelerator accelerator_;
  decltype(std::declval<Task>().template make_network<OurParts>()) network_;
  std::shared_ptr<torch::optim::Optimizer> torch_optimizer_;
  decltype(accelerant::optim::cosine_annealing(std::declval<torch::optim::Optimizer&>(),
                                               {})) cosine_;
  decltype(std::declval<accelerant::Accelerator&>().prepare(network_)) model_;
  accelerant::Optimizer optimizer_;
  accelerant::Scheduler scheduler_;
  Step run_;
  std::function<std::string()> why_not_captured_;
};

template <class Task>
class HandmadeTraining : public Training {
 public:
  HandmadeTraining(const Task& task, accelerant::Precision precision)
      : task_(task),
        device_(best_device()),
        network_(task.template make_network<PlainParts>()),
        parameters_((network_->to(device_), network_->parameters())),
        optimizer_(task.make_optimizer(parameters_)),
        cosine_(*optimizer_, kScheduleSteps) {
    if (precision == accelerant::Precision::bf16) autocast_type_ = at::kBFloat16;
    if (precision == accelerant::Precision::fp16) {
      autocast_type_ = at::kHalf;
      scaler_.emplace(device_);
    }
  }

  at::Tensor step(const at::Tensor& data, const at::Tensor& target) override {
    at::Tensor output;
    {
      const AutocastByHand autocast(device_.type(), autocast_type_);
      output = network_->forward(data);
    }
    const at::Tensor loss = task_.template loss<PlainParts>(output.to(at::kFloat), target);
    bool stepped = true;
    if (scaler_) {
      scaler_->scale(loss).backward();
      scaler_->unscale(parameters_);
    } else {
      loss.backward();
    }
    torch::nn::utils::clip_grad_norm_(parameters_, kMaxNorm);
    if (scaler_) {
      stepped = scaler_->step(*optimizer_);
    } else {
      optimizer_->step();
    }
    if (stepped) cosine_.step();
    optimizer_->zero_grad();
    return loss.detach();
  }
  std::vector<at::Tensor> parameters() const override { return parameters_; }

 private:
  Task task_;
  at::Device device_;
  decltype(std::declval<Task>().template make_network<PlainParts>()) network_;
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  CosineByHand cosine_;
  std::optional<at::ScalarType> autocast_type_;
  std::optional<ScalerByHand> scaler_;
};

// The forms of training that this program offers on this machine. "unwatched" is "accelerant" with
// its warnings switched off. Other words before "accelerant" and "captured": "skipping" and
// "stopping" ask for that if gradients are inf or nan, "unclipped" does not clip.
inline std::vector<std::string> training_forms() {
  std::vector<std::string> forms = {"accelerant", "unwatched", "libtorch"};
  if (kHasCapture<accelerant::Accelerator> && best_device().is_cuda()) forms.push_back("captured");
  return forms;
}

inline std::optional<AcceleratedForm> accelerated_form(const std::string& name) {
  AcceleratedForm form;
  std::istringstream words(name);
  std::string word;
  while (std::getline(words, word, '-')) {
    if (word == "captured") {
      form.is_captured = true;
    } else if (word == "unwatched") {
      form.warns = false;
    } else if (word == "unclipped") {
      form.clips = false;
    } else if (word == "skipping") {
      form.nonfinite = accelerant::Nonfinite::skip;
    } else if (word == "stopping") {
      form.nonfinite = accelerant::Nonfinite::stop;
    } else if (word != "accelerant") {
      return std::nullopt;
    }
  }
  return form;
}

template <class Task>
std::unique_ptr<Training> make_training(const std::string& form, const Task& task,
                                        accelerant::Precision precision) {
  torch::manual_seed(0);
  if (const auto accelerated = accelerated_form(form)) {
    return std::make_unique<AcceleratedTraining<Task>>(task, precision, *accelerated);
  }
  if (form == "libtorch") return std::make_unique<HandmadeTraining<Task>>(task, precision);
  throw std::invalid_argument("no such form: " + form);
}
