// A training as a user writes it, with the public headers only, which the tests beside this file
// kill, suspend, obstruct and start again.
//
//   attacked-training LOG [KEY=VALUE ...]
//
//   project=DIR limit=N (checkpoints that stay) every=N (updates between saves) async=0|1
//   resume=auto|no on_error=end|go_on (failed saves are only written to standard error)
//   precision=no|fp16 samples=N epochs=N batch=N accumulate=N
//   width=N (512: a state of 3.7 MB) pace=MS (of each step) children=0|1 (forked in each step)
//
// Each process appends to LOG.<rank>: one line for each step, and at the end hashes of the model
// and of the optimizer's state. A line counts if it ends in a semicolon; a killed process may leave
// half a line.
#include <accelerant/accelerant.h>
#include <accelerant/core/failpoint.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "support/timeout_scale.h"

namespace {

using Clock = std::chrono::steady_clock;

class Settings {
 public:
  Settings(int count, char** arguments) {
    for (int i = 2; i < count; ++i) {
      const std::string text = arguments[i];
      const auto split = text.find('=');
      values_[text.substr(0, split)] = text.substr(split + 1);
    }
  }
  std::string text(const std::string& key, const std::string& otherwise) const {
    const auto found = values_.find(key);
    return found == values_.end() ? otherwise : found->second;
  }
  int64_t number(const std::string& key, int64_t otherwise) const {
    return std::stoll(text(key, std::to_string(otherwise)));
  }
  bool flag(const std::string& key) const { return number(key, 0) != 0; }

 private:
  std::map<std::string, std::string> values_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width)
      : in(register_module("in", torch::nn::Linear(kInputs, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        hidden(register_module("hidden", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, 1))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm(in(x)).relu();
    return out(torch::dropout(hidden(y).relu(), 0.25, is_training()));
  }

  static constexpr int64_t kInputs = 64;
  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear hidden;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

// FNV-1a.
class Hash {
 public:
  void add(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.detach().contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (size_t i = 0; i < flat.nbytes(); ++i) value_ = (value_ ^ bytes[i]) * 1099511628211U;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037U;
};

// A forked child leaves all scopes up to main with it.
struct EndOfChild {
  int code;
};

// How a child ended: "exit 41", "signal 6" or, after a long time, "hangs".
std::string end_of(pid_t child) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(20 * timeout_scale());
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return "hangs";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit " + std::to_string(WEXITSTATUS(status));
}

accelerant::AcceleratorOptions options_of(const Settings& settings) {
  using accelerant::Precision;
  accelerant::AcceleratorOptions options{
      .cpu = true,
      .mixed_precision =
          settings.text("precision", "no") == "fp16" ? Precision::fp16 : Precision::no,
      .gradient_accumulation = {.steps = settings.number("accumulate", 1)},
      // So that the scale both grows and overflows.
      .scaler = {.init_scale = 1 << 16, .growth_interval = 5},
      .project = {.dir = settings.text("project", ""), .resume = settings.text("resume", "auto")},
      .warnings = accelerant::WarningOptions::none()};
  if (const int64_t limit = settings.number("limit", 0)) options.project.total_limit = limit;
  return options;
}

class Training {
 public:
  Training(const std::string& log, const Settings& settings)
      : settings_(settings),
        accelerator_(options_of(settings)),
        log_(std::fopen((log + "." + std::to_string(accelerator_.process_index())).c_str(), "a")) {
    if (log_ == nullptr) throw accelerant::Error("the log cannot be opened: " + log);
    std::setvbuf(log_, nullptr, _IOLBF, BUFSIZ);
    std::fputs("\n", log_);  // after half a line of an earlier process
  }
  ~Training() { std::fclose(log_); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void run() {
    accelerant::set_seed(11, {.device_specific = true});
    Net net(settings_.number("width", 512));
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(2e-3));
    const int64_t samples = settings_.number("samples", 64);
    const at::Tensor inputs =
        torch::arange(NetImpl::kInputs * samples, torch::kFloat).view({samples, -1}).mul(0.7).sin();
    const auto batches =
        accelerant::data::loader(accelerant::data::tensors(inputs, inputs.sum(1, true)),
                                 {.batch_size = settings_.number("batch", 4), .shuffle = true});
    const int64_t epochs = settings_.number("epochs", 2);
    auto cosine = accelerant::optim::cosine_with_warmup(
        adamw,
        {.warmup_steps = 3, .total_steps = epochs * accelerator_.updates_per_epoch(batches)});
    auto [model, optimizer, loader, scheduler] = accelerator_.prepare(net, adamw, batches, cosine);

    for (const int64_t epoch : accelerator_.epochs(epochs)) {
      for (auto&& [data, target] : loader) {
        {
          const auto window = accelerator_.accumulate(model);
          const at::Tensor loss = torch::mse_loss(model(data), target);
          accelerator_.backward(loss);
          accelerator_.clip_grad_norm_(model, 1.0);
          optimizer.step();
          scheduler.step();
          optimizer.zero_grad();
          std::fprintf(log_, "step %ld %ld = %a %a;\n", static_cast<long>(epoch),
                       static_cast<long>(loader.position()), loss.item<double>(),
                       accelerator_.scaler().is_enabled() ? accelerator_.scaler().get_scale() : 1);
        }
        end_step();
      }
    }
    wait_for_saves();
    optimizer.sync();
    report(*net, adamw);
  }

 private:
  void end_step() {
    const int64_t every = settings_.number("every", 0);
    if (every > 0 && ++steps_ % every == 0) {
      attempt([&] { accelerator_.save_state({.async = settings_.flag("async")}); });
    }
    if (settings_.flag("children")) fork_children();
    accelerant::failpoint("training.step");
    std::this_thread::sleep_for(std::chrono::milliseconds(settings_.number("pace", 0)));
  }

  // While the checkpoint of this step may be being written.
  void fork_children() {
    std::fflush(nullptr);
    for (const bool returns : {true, false}) {
      const auto began = Clock::now();
      const pid_t child = ::fork();
      if (child == 0) {
        if (returns) throw EndOfChild{41};
        std::exit(42);
      }
      const std::string end = end_of(child);
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
      std::fprintf(log_, "child = %s %ld;\n", end.c_str(), static_cast<long>(took.count()));
    }
  }

  // Each call throws the Error of one save.
  void wait_for_saves() {
    while (!attempt([&] { accelerator_.wait_for_saves(); })) {
    }
  }

  template <class F>
  bool attempt(F&& f) {
    try {
      f();
      return true;
    } catch (const accelerant::Error& error) {
      if (settings_.text("on_error", "end") != "go_on") throw;
      std::fprintf(stderr, "goes on after: %s\n", error.what());
      return false;
    }
  }

  void report(const torch::nn::Module& net, torch::optim::AdamW& adamw) {
    Hash of_model;
    for (const at::Tensor& parameter : net.parameters()) of_model.add(parameter);
    for (const at::Tensor& buffer : net.buffers()) of_model.add(buffer);
    Hash of_optimizer;
    int64_t updates = 0;
    for (const at::Tensor& parameter : net.parameters()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *adamw.state().at(parameter.unsafeGetTensorImpl()));
      of_optimizer.add(state.exp_avg());
      of_optimizer.add(state.exp_avg_sq());
      updates += state.step();
    }
    std::fprintf(log_, "model = %lx;\noptimizer = %lx %ld;\n", of_model.value(),
                 of_optimizer.value(), static_cast<long>(updates));
  }

  const Settings& settings_;
  accelerant::Accelerator accelerator_;
  std::FILE* log_;
  int64_t steps_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: attacked-training LOG [KEY=VALUE ...]\n", stderr);
    return 2;
  }
  try {
    const Settings settings(argc, argv);
    Training(argv[1], settings).run();
    return 0;
  } catch (const EndOfChild& child) {
    return child.code;
  }
}
