// A training that the tests beside this file kill, stop, obstruct and restart. It has everything
// whose state matters, and writes what it computes to LOG.<rank>, one line per batch.
//
//   resumable-training LOG [--key=value ...]
//
//   project=DIR resume=auto|no|default (the option is left empty)|PATH
//   save_every=N (batches; 0: at the end of epochs) async=0|1 limit=N
//   folder=PATH (always saves there) exchange=0|1 (whether the disk can exchange two folders)
//   machine=NAME (plays another machine) lease=MS (of the project's lock)
//   on_error=end|go_on (errors of save_state are only written to standard error)
//   precision=no|fp16|bf16 accumulate=N samples=N epochs=N batch=N workers=N
//   offload=no|host|apart|paged (the optimizer's state; apart: as if the CPU were another device;
//   paged: the parameters, too, and each is absent after every operator)
//   early=0|1 (its updates begin in backward) clip=0|1
//   two=0|1 (models, optimizers and loops) optimizer=adamw|sgd|rmsprop hook=no|power_sgd
//
// Failpoints: "training.batch" at the end of each batch, and those of the library.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "accelerant/core/failpoint.h"
#include "accelerator/offload/paged_model.h"
#include "core/stable_hash.h"
#include "optim/step_plan.h"
#include "store/lock_holder.h"
#include "store/system_calls.h"

namespace {

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;

class Settings {
 public:
  Settings(int count, char** arguments) {
    for (int i = 2; i < count; ++i) {
      const std::string text = arguments[i];
      const auto split = text.find('=');
      values_[text.substr(2, split - 2)] = text.substr(split + 1);
    }
  }
  std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto found = values_.find(key);
    return found == values_.end() ? otherwise : found->second;
  }
  int64_t number(const std::string& key, int64_t otherwise) const {
    const auto found = values_.find(key);
    return found == values_.end() ? otherwise : std::stoll(found->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width)
      : in(register_module("in", torch::nn::Linear(6, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        hidden(register_module("hidden", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, 1))) {}

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = norm(in(x)).relu();
    y = torch::dropout(hidden(y).relu(), 0.25, is_training());
    return out(y);
  }

  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear hidden;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

// The program's own state: an average of losses.
struct Average {
  double value = 0;
  at::Tensor history = torch::zeros({4}, torch::kDouble);

  void add(double loss) {
    value = 0.9 * value + 0.1 * loss;
    history = torch::cat({history.slice(0, 1), torch::full({1}, loss, torch::kDouble)});
  }
  accelerant::NamedState state_dict() const {
    return {.values = nlohmann::json{{"value", value}}, .tensors = {{"history", history}}};
  }
  void load_state_dict(const accelerant::NamedState& state) {
    value = state.values->at("value").get<double>();
    history = state.tensors["history"].clone();
  }
};

AcceleratorOptions options_of(const Settings& settings) {
  using accelerant::Precision;
  const std::string precision = settings.text("precision", "no");
  AcceleratorOptions options{.cpu = true,
                             .mixed_precision = precision == "fp16"   ? Precision::fp16
                                                : precision == "bf16" ? Precision::bf16
                                                                      : Precision::no,
                             .gradient_accumulation = {.steps = settings.number("accumulate", 1)},
                             .data_loader = {.workers = settings.number("workers", 0)},
                             // Small, so that the scale both grows and overflows.
                             .scaler = {.init_scale = 1 << 14, .growth_interval = 3},
                             .project = {.dir = settings.text("project")},
                             .data_parallel = {.bucket_cap_mb = 0.002}};
  const std::string offload = settings.text("offload", "no");
  options.offload = {.optimizer = offload != "no",
                     .update_in_backward = settings.number("early", 0) != 0};
  if (offload == "paged") {
    options.offload.parameters = true;
    options.offload.budget = 0;
  }
  accelerant::detail::pages_on_every_device() = offload == "paged";
  accelerant::optim::detail::images_on_every_device() = offload == "apart" || offload == "paged";
  const std::string resume = settings.text("resume", "auto");
  if (resume != "default") options.project.resume = resume;
  if (settings.number("limit", 0) > 0) options.project.total_limit = settings.number("limit", 0);
  if (settings.text("hook", "no") == "power_sgd") {
    options.data_parallel.comm_hook = {.hook = accelerant::dist::CommHook::power_sgd,
                                       .power_sgd = {.start_iteration = 3}};
  }
  return options;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_over(Net& net, const std::string& kind) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{net->in->weight, net->in->bias});
  std::vector<at::Tensor> rest;
  for (const auto& item : net->named_parameters()) {
    if (!item.key().starts_with("in.")) rest.push_back(item.value());
  }
  groups.emplace_back(rest);
  if (kind == "sgd") {
    return std::make_unique<torch::optim::SGD>(groups,
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  if (kind == "rmsprop") {
    return std::make_unique<torch::optim::RMSprop>(groups, torch::optim::RMSpropOptions(0.003));
  }
  return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01));
}

class Training {
 public:
  // Before the accelerator, which takes the lock.
  static const Settings& playing_machine(const Settings& settings) {
    auto& rules = accelerant::checkpoint::lock_rules();
    rules.host = rules.boot = settings.text("machine");
    if (const int64_t lease = settings.number("lease", 0)) {
      rules.lease = std::chrono::milliseconds(lease);
      rules.renewal = rules.lease / 10;
    }
    return settings;
  }

  Training(const std::string& log, const Settings& settings)
      : settings_(playing_machine(settings)),
        accelerator_(options_of(settings)),
        log_(std::fopen((log + "." + std::to_string(accelerator_.process_index())).c_str(), "a")) {
    // Line buffered: a line that was written stays, whatever happens to the process.
    std::setvbuf(log_, nullptr, _IOLBF, BUFSIZ);
    system_calls::waits_for_disk() = false;
    system_calls::can_exchange() = settings_.number("exchange", 1) != 0;
  }
  ~Training() { std::fclose(log_); }

  void run() {
    accelerant::set_seed(7, {.device_specific = true});
    Net net(16);
    Net other(8);
    const auto kind = settings_.text("optimizer", "adamw");
    const auto first = optimizer_over(net, kind);
    const auto second = optimizer_over(other, kind);
    auto cosine =
        accelerant::optim::cosine_with_warmup(*first, {.warmup_steps = 3, .total_steps = 40});
    torch::optim::StepLR decay(*second, 2, 0.9);
    const at::Tensor inputs = torch::arange(6 * settings_.number("samples", 48), torch::kFloat)
                                  .view({-1, 6})
                                  .mul(0.7)
                                  .sin();
    const auto set = accelerant::data::tensors(inputs, inputs.sum(1, true));
    const int64_t batch = settings_.number("batch", 4);
    const auto batches = accelerant::data::loader(set, {.batch_size = batch, .shuffle = true});
    const auto others = accelerant::data::loader(set, {.batch_size = 2 * batch, .shuffle = true});
    const auto all = accelerant::data::loader(set, {.batch_size = batch});
    accelerator_.register_for_checkpointing("average", average_);

    auto [model, optimizer, loader, scheduler, check] =
        accelerator_.prepare(net, *first, batches, cosine, all);
    const bool two = settings_.number("two", 0) != 0;
    if (!two) {
      for (const auto epoch : accelerator_.epochs(settings_.number("epochs", 3))) {
        train(epoch, 'a', model, optimizer, loader, scheduler);
        std::fprintf(log_, "e %ld = %a\n", static_cast<long>(epoch), evaluate(model, check));
        if (settings_.number("save_every", 0) == 0) save();
      }
    } else {
      auto [model2, optimizer2, loader2, scheduler2] =
          accelerator_.prepare(other, *second, others, decay);
      for (const auto epoch : accelerator_.epochs(settings_.number("epochs", 3))) {
        evaluate(model, check);  // runs again, with a later model, when the epoch is resumed
        train(epoch, 'a', model, optimizer, loader, scheduler);
        train(epoch, 'b', model2, optimizer2, loader2, scheduler2);
        if (settings_.number("save_every", 0) == 0) save();
      }
      finish("model2", model2);
    }
    wait_for_saves();
    finish("model", model);
    if (!accelerator_.is_main_process()) return;  // only the main process's object is saved
    std::fprintf(log_, "average = %a %a\n", average_.value, average_.history.sum().item<double>());
  }

 private:
  template <class M, class L>
  void train(int64_t epoch, char name, M& model, accelerant::Optimizer& optimizer, L& loader,
             accelerant::Scheduler& scheduler) {
    model.train();
    for (auto&& [data, target] : loader) {
      {
        auto window = accelerator_.accumulate(model);
        const at::Tensor loss = torch::mse_loss(model(data), target);
        accelerator_.backward(loss);
        if (settings_.number("clip", 1) != 0) accelerator_.clip_grad_norm_(model, 1.0);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        const double value = loss.template item<double>();
        average_.add(value);
        std::fprintf(log_, "%c %ld %ld = %a %a\n", name, static_cast<long>(epoch),
                     static_cast<long>(loader.position()), value,
                     accelerator_.scaler().is_enabled() ? accelerator_.scaler().get_scale() : 1.0);
      }
      const int64_t every = settings_.number("save_every", 0);
      if (every > 0 && ++batches_ % every == 0) save();
      accelerant::failpoint("training.batch");
    }
  }

  template <class M, class L>
  double evaluate(M& model, L& loader) {
    const torch::NoGradGuard no_grad;
    model.eval();
    double sum = 0;
    for (auto&& [data, target] : loader) {
      sum += torch::mse_loss(model(data), target).template item<double>();
    }
    return sum;
  }

  void save() {
    const std::string folder = settings_.text("folder");
    const accelerant::SaveStateOptions options{.async = settings_.number("async", 0) != 0};
    hindered([&] {
      folder.empty() ? accelerator_.save_state(options) : accelerator_.save_state(folder, options);
    });
  }

  // Each call throws the Error of one save.
  void wait_for_saves() {
    while (hindered([&] { accelerator_.wait_for_saves(); })) {
    }
  }

  // Whether it failed and the training may go on.
  template <class F>
  bool hindered(F&& f) {
    try {
      f();
      return false;
    } catch (const accelerant::Error& error) {
      if (settings_.text("on_error", "end") != "go_on") throw;
      std::fprintf(stderr, "rank %ld goes on: %s\n",
                   static_cast<long>(accelerator_.process_index()), error.what());
      return true;
    }
  }

  template <class M>
  void finish(const char* name, M& model) {
    std::string bytes;
    for (const auto& item : model.state_dict()) {
      const at::Tensor flat = item.value().clone(at::MemoryFormat::Contiguous);  // may be paged
      bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    }
    std::fprintf(log_, "%s = %lx\n", name, accelerant::stable_hash(bytes));
  }

  Settings settings_;
  Accelerator accelerator_;
  std::FILE* log_;
  Average average_;
  int64_t batches_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: resumable-training LOG [--key=value ...]\n", stderr);
    return 2;
  }
  Training(argv[1], Settings(argc, argv)).run();
}
