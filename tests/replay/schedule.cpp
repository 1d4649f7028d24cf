// Replays a learning-rate schedule on an optimizer, step by step.
#include <accelerant/accelerant.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "refusal.h"
#include "topics.h"
#include "values.h"

// Named, because several topics may be compiled as one file.
namespace replay::schedules {

using nlohmann::json;
namespace optim = accelerant::optim;

// Reads the options of a document. At the end, every key must have been read.
class Fields {
 public:
  explicit Fields(const json& fields) : fields_(fields) {}

  void read(const char* key, double& field) {
    if (const json* value = find(key)) field = number_from(*value);
  }
  void read(const char* key, int64_t& field) {
    if (const json* value = find(key)) field = value->get<int64_t>();
  }
  void read(const char* key, bool& field) {
    if (const json* value = find(key)) field = value->get<bool>();
  }
  void read(const char* key, std::optional<int64_t>& field) {
    if (const json* value = find(key)) field = value->get<int64_t>();
  }
  void read(const char* key, std::vector<int64_t>& field) {
    if (const json* value = find(key)) field = value->get<std::vector<int64_t>>();
  }
  void read(const char* key, optim::PerGroup& field) {
    const json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) {
      field = number_from(*value);
      return;
    }
    std::vector<double> numbers;
    for (const json& number : *value) numbers.push_back(number_from(number));
    field = numbers;
  }
  template <class Enum>
  void read(const char* key, Enum& field, const std::map<std::string, Enum>& names) {
    if (const json* value = find(key)) field = names.at(value->get<std::string>());
  }
  const json& at(const char* key) {
    const json* value = find(key);
    if (value == nullptr) throw BadDocument(std::string("no option ") + key);
    return *value;
  }
  void done() const {
    for (const auto& [key, value] : fields_.items()) {
      if (!asked_.contains(key)) throw BadDocument("unknown option: " + key);
    }
  }

 private:
  const json* find(const char* key) {
    asked_.insert(key);
    const auto entry = fields_.find(key);
    return entry == fields_.end() ? nullptr : &*entry;
  }

  json fields_;
  std::set<std::string> asked_;
};

optim::LrSchedule schedule_from(const std::string& kind, const json& options);

std::vector<optim::LrSchedule> schedules_from(const json& list) {
  std::vector<optim::LrSchedule> schedules;
  for (const json& part : list) {
    schedules.push_back(schedule_from(part.at("kind"), part.value("options", json::object())));
  }
  return schedules;
}

// A function given as a table. Its last value holds for all later steps.
optim::Lambda::Factor factor_from(const json& table) {
  return [values = table.get<std::vector<double>>()](int64_t step) {
    return values.at(std::min(static_cast<std::size_t>(step), values.size() - 1));
  };
}

void read_warmup_and_total(Fields& fields, auto& schedule) {
  fields.read("warmup_steps", schedule.warmup_steps);
  fields.read("total_steps", schedule.total_steps);
}

// --- One reader for each kind -----------------------------------------------------------------------

void read(Fields&, optim::Constant&) {}

void read(Fields& fields, optim::ConstantWithWarmup& schedule) {
  fields.read("warmup_steps", schedule.warmup_steps);
}

void read(Fields& fields, optim::LinearWithWarmup& schedule) {
  read_warmup_and_total(fields, schedule);
}

void read(Fields& fields, optim::CosineWithWarmup& schedule) {
  read_warmup_and_total(fields, schedule);
  fields.read("cycles", schedule.cycles);
  fields.read("min_lr_ratio", schedule.min_lr_ratio);
}

void read(Fields& fields, optim::CosineWithHardRestarts& schedule) {
  read_warmup_and_total(fields, schedule);
  fields.read("cycles", schedule.cycles);
}

void read(Fields& fields, optim::PolynomialWithWarmup& schedule) {
  read_warmup_and_total(fields, schedule);
  fields.read("end_lr", schedule.end_lr);
  fields.read("power", schedule.power);
}

void read(Fields& fields, optim::InverseSqrt& schedule) {
  fields.read("warmup_steps", schedule.warmup_steps);
  fields.read("timescale", schedule.timescale);
}

void read(Fields& fields, optim::WarmupStableDecay& schedule) {
  using Shape = optim::WarmupStableDecay::Shape;
  const std::map<std::string, Shape> shapes = {
      {"linear", Shape::linear}, {"cosine", Shape::cosine}, {"1-sqrt", Shape::one_minus_sqrt}};
  fields.read("warmup_steps", schedule.warmup_steps);
  fields.read("stable_steps", schedule.stable_steps);
  fields.read("decay_steps", schedule.decay_steps);
  fields.read("warmup_type", schedule.warmup_type, shapes);
  fields.read("decay_type", schedule.decay_type, shapes);
  fields.read("min_lr_ratio", schedule.min_lr_ratio);
  fields.read("cycles", schedule.cycles);
}

void read(Fields& fields, optim::StepDecay& schedule) {
  fields.read("step_size", schedule.step_size);
  fields.read("gamma", schedule.gamma);
}

void read(Fields& fields, optim::MultiStep& schedule) {
  fields.read("milestones", schedule.milestones);
  fields.read("gamma", schedule.gamma);
}

void read(Fields& fields, optim::Exponential& schedule) { fields.read("gamma", schedule.gamma); }

void read(Fields& fields, optim::CosineAnnealing& schedule) {
  fields.read("t_max", schedule.t_max);
  fields.read("eta_min", schedule.eta_min);
}

void read(Fields& fields, optim::OneCycle& schedule) {
  using Anneal = optim::OneCycle::Anneal;
  fields.read("max_lr", schedule.max_lr);
  fields.read("total_steps", schedule.total_steps);
  fields.read("pct_start", schedule.pct_start);
  fields.read("anneal", schedule.anneal, {{"cos", Anneal::cos}, {"linear", Anneal::linear}});
  fields.read("div_factor", schedule.div_factor);
  fields.read("final_div_factor", schedule.final_div_factor);
  fields.read("three_phase", schedule.three_phase);
  fields.read("cycle_momentum", schedule.cycle_momentum);
  fields.read("base_momentum", schedule.base_momentum);
  fields.read("max_momentum", schedule.max_momentum);
}

void read(Fields& fields, optim::Lambda& schedule) {
  const json& tables = fields.at("factors");
  if (!tables.at(0).is_array()) {
    schedule.factor = factor_from(tables);
    return;
  }
  for (const json& table : tables) schedule.per_group.push_back(factor_from(table));
}

void read(Fields& fields, optim::Chained& schedule) {
  schedule.schedules = schedules_from(fields.at("schedules"));
}

void read(Fields& fields, optim::Sequential& schedule) {
  schedule.schedules = schedules_from(fields.at("schedules"));
  fields.read("milestones", schedule.milestones);
}

void read(Fields& fields, optim::ReduceLrOnPlateauOptions& options) {
  using Options = optim::ReduceLrOnPlateauOptions;
  fields.read("mode", options.mode, {{"min", Options::Mode::min}, {"max", Options::Mode::max}});
  fields.read("factor", options.factor);
  fields.read("patience", options.patience);
  fields.read("threshold", options.threshold);
  fields.read(
      "threshold_mode", options.threshold_mode,
      {{"rel", Options::ThresholdMode::relative}, {"abs", Options::ThresholdMode::absolute}});
  fields.read("cooldown", options.cooldown);
  fields.read("min_lr", options.min_lr);
  fields.read("eps", options.eps);
}

template <class Options>
Options options_from(const json& given) {
  Fields fields(given);
  Options options;
  read(fields, options);
  fields.done();
  return options;
}

template <class Kind>
optim::LrSchedule make(const json& options) {
  return options_from<Kind>(options);
}

optim::LrSchedule schedule_from(const std::string& kind, const json& options) {
  static const std::map<std::string, optim::LrSchedule (*)(const json&)> kinds = {
      {"constant", make<optim::Constant>},
      {"constant_with_warmup", make<optim::ConstantWithWarmup>},
      {"linear_with_warmup", make<optim::LinearWithWarmup>},
      {"cosine_with_warmup", make<optim::CosineWithWarmup>},
      {"cosine_with_hard_restarts", make<optim::CosineWithHardRestarts>},
      {"polynomial_with_warmup", make<optim::PolynomialWithWarmup>},
      {"inverse_sqrt", make<optim::InverseSqrt>},
      {"wsd", make<optim::WarmupStableDecay>},
      {"step", make<optim::StepDecay>},
      {"multi_step", make<optim::MultiStep>},
      {"exponential", make<optim::Exponential>},
      {"cosine_annealing", make<optim::CosineAnnealing>},
      {"one_cycle", make<optim::OneCycle>},
      {"lambda", make<optim::Lambda>},
      {"chained", make<optim::Chained>},
      {"sequential", make<optim::Sequential>},
  };
  const auto known = kinds.find(kind);
  if (known == kinds.end()) throw BadDocument("unknown kind: " + kind);
  return known->second(options);
}

// --- The run ----------------------------------------------------------------------------------------

// An optimizer with one group for each rate.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()},
                        std::make_unique<Options>(rate));
  }
  return std::make_unique<Optimizer>(groups, Options(rates.front()));
}

std::unique_ptr<torch::optim::Optimizer> optimizer_from(const std::string& kind,
                                                        const std::vector<double>& rates) {
  using namespace torch::optim;
  if (kind == "sgd") return make_optimizer<SGD, SGDOptions>(rates);
  if (kind == "rmsprop") return make_optimizer<RMSprop, RMSpropOptions>(rates);
  if (kind == "adam") return make_optimizer<Adam, AdamOptions>(rates);
  if (kind == "adamw") return make_optimizer<AdamW, AdamWOptions>(rates);
  if (kind == "adagrad") return make_optimizer<Adagrad, AdagradOptions>(rates);
  throw BadDocument("unknown optimizer: " + kind);
}

json momentum_of(const torch::optim::OptimizerParamGroup& group) {
  using namespace torch::optim;
  const OptimizerOptions& options = group.options();
  if (auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd->momentum();
  if (auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options)) return rmsprop->momentum();
  if (auto* adam = dynamic_cast<const AdamOptions*>(&options)) return std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return std::get<0>(adamw->betas());
  return nullptr;
}

class Run {
 public:
  explicit Run(const json& document)
      : kind_(document.value("optimizer", "sgd")), steps_(document.at("steps").get<int64_t>()) {
    if (document.contains("base_lrs")) {
      rates_ = document["base_lrs"].get<std::vector<double>>();
    } else {
      rates_ = {number_from(document.at("base_lr"))};
    }
    save_at_ = document.value("save_at", int64_t{-1});
    optimizer_ = optimizer_from(kind_, rates_);
  }

  // Creates a scheduler and reports the rates of all steps. At save_at it creates a new optimizer
  // and scheduler, and keeps only the state of the scheduler, as text.
  template <class MakeScheduler, class Advance>
  json run(const MakeScheduler& make_scheduler, const Advance& advance) {
    auto scheduler = make_scheduler(*optimizer_);
    json state;
    for (int64_t step = 0; step < steps_; ++step) {
      if (step > 0) advance(scheduler, step);
      if (step == save_at_) {
        state = json::parse(scheduler.state_dict().dump());
        optimizer_ = optimizer_from(kind_, rates_);
        scheduler = make_scheduler(*optimizer_);
        scheduler.load_state_dict(state);
      }
      report(scheduler.get_last_lr());
    }
    return {{"lr", lr_}, {"lrs", lrs_}, {"momentum", momenta_}, {"state", state}};
  }

 private:
  void report(const std::vector<double>& last_lr) {
    json rates = json::array();
    json momenta = json::array();
    for (const auto& group : optimizer_->param_groups()) {
      rates.push_back(number_to(group.options().get_lr()));
      momenta.push_back(momentum_of(group));
    }
    if (rates != json(last_lr)) throw accelerant::Error("get_last_lr() is not what is in force");
    lr_.push_back(rates.at(0));
    lrs_.push_back(std::move(rates));
    momenta_.push_back(std::move(momenta));
  }

  std::string kind_;
  std::vector<double> rates_;
  int64_t steps_;
  int64_t save_at_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  json lr_ = json::array();
  json lrs_ = json::array();
  json momenta_ = json::array();
};

}  // namespace replay::schedules

namespace replay {

nlohmann::json replay_schedule(const nlohmann::json& document) {
  using namespace schedules;
  const std::string kind = document.at("kind");
  const json options = document.value("options", json::object());
  return result_or_error([&]() -> json {
    Run run(document);
    if (kind == "reduce_on_plateau") {
      // Metric number i leads from step i to step i + 1.
      const json& metrics = document.at("metrics");
      const auto plateau = options_from<optim::ReduceLrOnPlateauOptions>(options);
      return run.run([&](auto& optimizer) { return optim::ReduceLrOnPlateau(optimizer, plateau); },
                     [&](auto& scheduler, int64_t step) {
                       scheduler.step(number_from(metrics.at(static_cast<std::size_t>(step - 1))));
                     });
    }
    const optim::LrSchedule schedule = schedule_from(kind, options);
    return run.run([&](auto& optimizer) { return optim::LrScheduler(optimizer, schedule); },
                   [](auto& scheduler, int64_t) { scheduler.step(); });
  });
}

}  // namespace replay
