// Training steps in C++.
//
//   bench-training                    reads requests and answers each with a line of JSON
//   bench-training first-step FORM    trains one step of the CNN, reports it, and exits
//
//   forms                             lists the forms available: accelerant, unwatched, libtorch,
//                                     captured
//   prepare FORM TASK PRECISION       creates a training and takes its first steps; returns the
//                                     number of parameters and the losses. A process has one
//                                     training at a time. PRECISION: fp32, tf32, bf16, fp16
//   measure SECONDS                   seconds per step, with batches already on the device
//   memory                            the most device memory that the allocator holds during
//                                     steps, in bytes
//   waits                             how often the host waits for the device in a step
//   loop FORM TASK PRECISION SECONDS  seconds per step of another training, which gets its batches
//                                     from a loader
//
// training_loop.py answers the same requests, and workloads/step.py queries both in turn.
#include <ATen/DeviceAccelerator.h>
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "host_waits.h"
#include "stopwatch.h"
#include "training_sides.h"

namespace {

using accelerant::Precision;

constexpr int64_t kBatches = 8;            // on the device
constexpr int64_t kBatchesPerEpoch = 128;  // from a loader
constexpr int kFirstLosses = 5, kWarmUpSteps = 5;

// TF32 is a setting of the whole process.
Precision set_precision(const std::string& name) {
  at::globalContext().setAllowTF32CuBLAS(name == "tf32");
  if (name == "fp32" || name == "tf32") return Precision::no;
  if (name == "bf16") return Precision::bf16;
  if (name == "fp16") return Precision::fp16;
  throw std::invalid_argument("no such precision: " + name);
}

// A training with its batches.
class Steps {
 public:
  template <class Task>
  Steps(const std::string& form, const Task& task, Precision precision)
      : training_(make_training(form, task, precision)) {
    const auto [data, target] = task.make_data(kBatches);
    data_ = data.to(best_device()).split(task.batch);
    target_ = target.to(best_device()).split(task.batch);
  }

  at::Tensor step() {
    const std::size_t batch = count_++ % data_.size();
    return training_->step(data_[batch], target_[batch]);
  }

  void check() const { training_->check(); }

  int64_t parameters() const {
    int64_t count = 0;
    for (const at::Tensor& parameter : training_->parameters()) count += parameter.numel();
    return count;
  }

 private:
  std::unique_ptr<Training> training_;
  std::vector<at::Tensor> data_, target_;
  std::size_t count_ = 0;
};

std::string text_of(double value) {
  std::ostringstream text;
  text.precision(9);
  text << value;
  return text.str();
}

template <class Values, class Text>
std::string list_of(const Values& values, const Text& text) {
  std::string list;
  for (const auto& value : values) list += (list.empty() ? "" : ", ") + text(value);
  return "[" + list + "]";
}

// Uses the loader of each side. The loops end when the stopwatch has enough laps.
template <class Task>
double loop_with_loader(const std::string& form, const Task& task, Precision precision,
                        double seconds) {
  const auto training = make_training(form, task, precision);
  const auto [data, target] = task.make_data(kBatchesPerEpoch);
  if (form == "accelerant") {
    auto& accelerator = dynamic_cast<AcceleratedTraining<Task>&>(*training).accelerator();
    auto loader = accelerator.prepare(
        accelerant::data::loader(accelerant::data::tensors(data, target),
                                 {.batch_size = task.batch, .shuffle = true, .drop_last = true}));
    auto next = loader.begin();
    return seconds_per_step(
        seconds,
        [&] {
          if (next == loader.end()) next = loader.begin();
          const auto& [some_data, some_target] = *next;
          training->step(some_data, some_target);
          ++next;
        },
        synchronize);
  }
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      RowsByHand(data, target).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions(static_cast<std::size_t>(task.batch)).drop_last(true));
  auto next = loader->begin();
  return seconds_per_step(
      seconds,
      [&] {
        if (next == loader->end()) next = loader->begin();
        training->step(next->data.to(best_device()), next->target.to(best_device()));
        ++next;
      },
      synchronize);
}

class Requests {
 public:
  std::string answer(const std::string& request) {
    std::istringstream words(request);
    std::string what, form, task, precision;
    double seconds = 0.0;
    words >> what;
    if (what == "forms") {
      return "{\"forms\": " +
             list_of(training_forms(), [](const auto& name) { return "\"" + name + "\""; }) + "}";
    }
    if (what == "prepare" && words >> form >> task >> precision) {
      return prepare(form, task, set_precision(precision));
    }
    if (what == "loop" && words >> form >> task >> precision >> seconds) {
      return "{\"seconds\": " + text_of(loop(form, task, set_precision(precision), seconds)) + "}";
    }
    if (!steps_) throw std::invalid_argument("nothing is prepared");
    if (what == "measure" && words >> seconds) {
      const double measured = seconds_per_step(
          seconds, [this] { steps_->step(); }, synchronize);
      return "{\"seconds\": " + text_of(measured) + "}";
    }
    if (what == "memory") return "{\"bytes\": " + std::to_string(peak_bytes()) + "}";
    if (what == "waits") {
      const HostWaits waits = count_host_waits([this] { steps_->step(); }, synchronize);
      return "{\"waits\": " + text_of(waits.per_step) + ", \"warned\": " + text_of(waits.warned) +
             "}";
    }
    throw std::invalid_argument("unknown request: " + request);
  }

 private:
  std::string prepare(const std::string& form, const std::string& task, Precision precision) {
    steps_.reset();
    with_task(task, best_device().is_cuda(),
              [&](const auto& made) { steps_.emplace(form, made, precision); });
    std::vector<double> losses;
    for (int i = 0; i < kFirstLosses; ++i) losses.push_back(steps_->step().item<double>());
    for (int i = 0; i < kWarmUpSteps; ++i) steps_->step();
    steps_->check();
    synchronize();
    return "{\"parameters\": " + std::to_string(steps_->parameters()) +
           ", \"losses\": " + list_of(losses, text_of) + "}";
  }

  static double loop(const std::string& form, const std::string& task, Precision precision,
                     double seconds) {
    return with_task(task, best_device().is_cuda(), [&](const auto& made) {
      return loop_with_loader(form, made, precision, seconds);
    });
  }

  int64_t peak_bytes() {
    if (!best_device().is_cuda()) throw std::invalid_argument("memory is counted on GPUs only");
    auto* allocator = at::getDeviceAllocator(at::kCUDA);
    allocator->emptyCache();
    allocator->resetPeakStats(0);
    for (int i = 0; i < 3; ++i) steps_->step();
    synchronize();
    // The allocator does not see allocations inside graphs, but it knows how much memory the graphs
    // reserve.
    return allocator->getDeviceStats(0).reserved_bytes.at(0).peak;
  }

  std::optional<Steps> steps_;
};

void first_step(const std::string& form) {
  with_task("cnn", best_device().is_cuda(), [&](const auto& task) {
    const auto training = make_training(form, task, Precision::no);
    const auto [data, target] = task.make_data(1);
    training->step(data.to(best_device()), target.to(best_device()));
  });
  synchronize();
  std::cout << "stepped" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "first-step") {
      first_step(argv[2]);
      return 0;
    }
    if (argc != 1) throw std::invalid_argument("usage: bench-training [first-step FORM]");
    Requests requests;
    for (std::string request; std::getline(std::cin, request);) {
      std::cout << requests.answer(request) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "bench-training: " << error.what() << "\n";
    return 2;
  }
}
