// Training steps of several processes that use the Accelerator.
//
//   bench-distributed                       reads requests and answers each with a line of JSON
//   bench-distributed first-step            trains one step, reports it, and exits
//   bench-distributed loader RANKS SECONDS  measures the loader of the last of RANKS processes
//
// The first two are started once for each rank, with torchrun's variables, and all ranks get the
// same requests. A request is a line `TASK MODE BUCKET STEPS`. TASK: mlp-ROWS or gpt-tiny. MODE:
// sync or no_sync, that is, with or without the exchange of gradients. BUCKET: the bucket size in
// MiB, 0 for the default. The answer is the median over STEPS steps. distributed_loop.py answers
// the same requests, and workloads/ddp.py queries both in turn.
#include <ATen/record_function.h>
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "stopwatch.h"
#include "training_tasks.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxNorm = 1.0;
constexpr int64_t kScheduleSteps = 1'000'000;
constexpr int64_t kWarmUpSteps = 4;  // the bucket layout changes after the first

struct Request {
  bool synchronise = true;
  double bucket_mib = 0.0;
  int64_t steps = 1;
};

struct Answer {
  double seconds = 0.0;  // per step
  int64_t parameters = 0;
  int64_t exchanges = 0;  // collectives in a step
};

// Counts the Gloo collectives that begin during its lifetime.
class ExchangeCounter {
 public:
  ExchangeCounter()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&count).scopes({at::RecordScope::USER_SCOPE}))) {
    begun_ = 0;
  }
  ~ExchangeCounter() { at::removeCallback(handle_); }
  ExchangeCounter(const ExchangeCounter&) = delete;
  ExchangeCounter& operator=(const ExchangeCounter&) = delete;

  static int64_t begun() { return begun_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    if (std::string_view(function.name()).starts_with("gloo:")) ++begun_;
    return nullptr;
  }

  static inline std::atomic<int64_t> begun_ = 0;
  at::CallbackHandle handle_;
};

template <class Task>
Answer train(const Task& task, const Request& request) {
  torch::manual_seed(0);
  accelerant::AcceleratorOptions options = {.cpu = true};
  if (request.bucket_mib > 0) options.data_parallel.bucket_cap_mb = request.bucket_mib;
  accelerant::Accelerator accelerator(options);
  auto network = task.template make_network<OurParts>();
  auto torch_optimizer = task.make_optimizer(network->parameters());
  auto cosine = accelerant::optim::cosine_annealing(*torch_optimizer, {.t_max = kScheduleSteps});
  auto [model, optimizer, scheduler] = accelerator.prepare(network, torch_optimizer, cosine);
  const auto [data, target] = task.make_data(1);

  const auto step = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler,
                     &data = data, &target = target] {
    auto window = accelerator.accumulate(model);
    if (request.synchronise) {
      accelerator.backward(task.template loss<OurParts>(model(data), target));
    } else {
      const auto alone = accelerator.no_sync(model);
      accelerator.backward(task.template loss<OurParts>(model(data), target));
    }
    accelerator.clip_grad_norm_(model, kMaxNorm);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  };

  Answer answer;
  for (const at::Tensor& parameter : network->parameters()) answer.parameters += parameter.numel();
  for (int64_t i = 1; i < kWarmUpSteps; ++i) step();
  {
    const ExchangeCounter counter;
    step();
    answer.exchanges = counter.begun();
  }
  std::vector<double> laps;
  for (int64_t i = 0; i < request.steps; ++i) {
    const auto start = Clock::now();
    step();
    laps.push_back(seconds_since(start));
  }
  answer.seconds = median(laps);
  return answer;
}

Answer train(const std::string& task, const Request& request) {
  return with_task(task, /*cuda=*/false, [&](const auto& made) { return train(made, request); });
}

std::string answer(const std::string& text) {
  std::string task, mode;
  Request request;
  std::istringstream words(text);
  if (!(words >> task >> mode >> request.bucket_mib >> request.steps) || request.steps < 1) {
    throw std::invalid_argument("unknown request: " + text);
  }
  if (mode != "sync" && mode != "no_sync") throw std::invalid_argument("no such mode: " + mode);
  request.synchronise = mode == "sync";
  const Answer result = train(task, request);
  std::ostringstream line;
  line << "{\"seconds\": " << result.seconds << ", \"parameters\": " << result.parameters
       << ", \"exchanges\": " << result.exchanges << "}";
  return line.str();
}

void first_step() {
  const MlpTask task{.batch = 64};
  accelerant::Accelerator accelerator({.cpu = true});
  auto network = task.make_network<OurParts>();
  auto torch_optimizer = task.make_optimizer(network->parameters());
  auto [model, optimizer] = accelerator.prepare(network, torch_optimizer);
  const auto [data, target] = task.make_data(1);
  accelerator.backward(task.loss<OurParts>(model(data), target));
  optimizer.step();
  std::cout << "stepped" << std::endl;
}

// Seconds until the first batch of an epoch arrives, and seconds per batch after that.
std::string loader_cost(int64_t ranks, double seconds) {
  const at::Tensor images = torch::randint(0, 256, {60'000, 1, 28, 28}, at::kByte);
  const at::Tensor labels = torch::randint(0, 10, {60'000}, at::kLong);
  const auto whole = accelerant::data::loader(accelerant::data::tensors(images, labels),
                                              {.batch_size = 64, .shuffle = true, .seed = 0});
  auto loader = whole.placed({.rank = ranks - 1, .num_processes = ranks});
  std::vector<double> starts, steps;
  const auto begin = Clock::now();
  do {
    auto start = Clock::now();
    int64_t count = 0;
    for ([[maybe_unused]] auto& batch : loader) {
      if (count++ == 0) {
        starts.push_back(seconds_since(start));
        start = Clock::now();
      }
    }
    steps.push_back(seconds_since(start) / static_cast<double>(count - 1));
  } while (steps.size() < 3 || seconds_since(begin) < seconds);
  std::ostringstream line;
  line << "{\"start\": " << median(starts) << ", \"step\": " << median(steps) << "}";
  return line.str();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments == std::vector<std::string>{"first-step"}) {
      first_step();
    } else if (arguments.size() == 3 && arguments[0] == "loader") {
      std::cout << loader_cost(std::stoll(arguments[1]), std::stod(arguments[2])) << std::endl;
    } else if (arguments.empty()) {
      for (std::string request; std::getline(std::cin, request);) {
        std::cout << answer(request) << std::endl;
      }
    } else {
      throw std::invalid_argument("usage: bench-distributed [first-step | loader RANKS SECONDS]");
    }
  } catch (const std::exception& error) {
    std::cerr << "bench-distributed: " << error.what() << "\n";
    return 2;
  }
}
