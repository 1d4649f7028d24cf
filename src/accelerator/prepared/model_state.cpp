#include "accelerator/prepared/model_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"
#include "accelerator/prepared/forward_error.h"
#include "core/texts.h"
#include "nn/offloaded_inputs.h"

namespace accelerant::detail {
namespace {

bool is_trainable_16_bit(const at::Tensor& parameter) {
  return parameter.requires_grad() &&
         (parameter.scalar_type() == at::kHalf || parameter.scalar_type() == at::kBFloat16);
}

void refuse_float16_parameters(const StateDict& parameters) {
  std::vector<std::string> names;
  for (const auto& item : parameters) {
    if (item.value().requires_grad() && item.value().scalar_type() == at::kHalf) {
      names.push_back(item.key());
    }
  }
  if (names.empty()) return;
  throw Error(ErrorDetails{
      .problem = "The model has trainable float16 parameters, whose gradients cannot be unscaled",
      .expected = "float32 parameters under fp16; autocast makes the float16 copies",
      .got = list_text(names, 5),
      .hint = "ask for float32 weights with prepare_model(model, {.master_weights = true}), or "
              "convert the model with to(torch::kFloat32); AcceleratorOptions::master_weights does "
              "not help, since it leaves the parameters as they are"});
}

void make_master_weights(const StateDict& parameters) {
  for (const auto& item : parameters) {
    at::Tensor parameter = item.value();
    if (is_trainable_16_bit(parameter)) parameter.set_data(parameter.detach().to(at::kFloat));
  }
}

void make_channels_last(const StateDict& parameters) {
  for (const auto& item : parameters) {
    at::Tensor parameter = item.value();
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

// libtorch does not move gradients when it moves a module.
void move_gradient(at::Tensor parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined() && gradient.device() != parameter.device()) {
    parameter.mutable_grad() = gradient.to(parameter.device());
  }
}

// Autocast serves one type of device; a model elsewhere would silently run in full precision.
void require_device(const std::vector<at::Tensor>& parameters, const Core& core) {
  if (parameters.empty() || *core.options.mixed_precision == Precision::no) return;
  const c10::Device device = parameters.front().device();
  if (device.type() == core.options.device->type()) return;
  throw Error(ErrorDetails{.problem = "The model is on the wrong device for mixed precision",
                           .expected = c10::str("parameters on ", *core.options.device),
                           .got = c10::str("parameters on ", device),
                           .hint = "leave device_placement on, and do not move a prepared model"});
}

}  // namespace

ModelState::ModelState(const std::shared_ptr<Core>& core, std::unique_ptr<ModuleAccess> module,
                       const PrepareModelOptions& options)
    : core_(core), module_(std::move(module)), has_float32_outputs_(options.float32_outputs) {
  const StateDict named = module_->named_parameters();
  if (options.master_weights) {
    make_master_weights(named);
  } else if (core->scales_loss() && !options.evaluation_mode) {
    refuse_float16_parameters(named);
  }
  const bool are_paged = has_paged_parameters(named.values());  // by the program itself
  const OffloadSettings& offload = core->options.offload;
  exceeds_budget_ = offload.parameters && !are_paged && must_page(*core, options.evaluation_mode);
  const bool pages =
      exceeds_budget_ && (!core->options.device->is_cpu() || pages_on_every_device());
  const bool places =
      options.device_placement.value_or(core->options.device_placement) || offload.parameters;
  if (places && !are_paged && !pages) {
    module_->to(*core->options.device);
    for (const auto& item : named) move_gradient(item.value());
  }
  // Before the exchange of gradients is set up: its buffers use the layout of the parameters.
  if (core->options.performance.channels_last && !are_paged) make_channels_last(named);
  if (pages) {
    paged_ =
        std::make_unique<PagedModel>(*module_->nn_module(), *core->options.device, offload.budget);
  }
  parameters_ = named.values();
  require_device(parameters_, *core);

  if (core->world->is_connected()) {
    exchanges_in_forward_ = module_->connect(core->world) > 0;
    if (!options.evaluation_mode) make_parallel(*core, named);
  }

  // Names for overflow reports. The first model needs no prefix.
  const std::size_t number = core->models.all().size();
  core->scaler.name_parameters(named, number == 0 ? "" : c10::str("model_", number, "."));
}

bool ModelState::must_page(const Core& core, bool is_for_evaluation) const {
  const torch::nn::Module* const module = module_->nn_module();
  if (module == nullptr) {
    throw Error(ErrorDetails{.problem = "The parameters of this model cannot be paged",
                             .expected = "a torch::nn::Module with offload.parameters",
                             .got = "a TorchScript module",
                             .hint = "leave offload.parameters out"});
  }
  if (!PagedModel::is_needed(*module, core.options.offload.budget)) return false;
  if (core.world->size() > 1 && !is_for_evaluation) {
    throw Error(ErrorDetails{
        .problem = "Parameters cannot be paged in several processes that train them",
        .expected = "one process with offload.parameters, or a budget that the model fits into",
        .got = c10::str(core.world->size(), " processes"),
        .hint = "offload.optimizer and offload.activations work with several; leave "
                "offload.parameters out, or prepare it with {.evaluation_mode = true}"});
  }
  return true;
}

void ModelState::make_parallel(const Core& core, const StateDict& named) {
  const bool trained =
      std::any_of(parameters_.begin(), parameters_.end(),
                  [](const at::Tensor& parameter) { return parameter.requires_grad(); });
  if (!trained) return;
  if (has_paged_parameters(parameters_)) {
    throw Error(ErrorDetails{
        .problem = "An offloaded model cannot be trained in several processes",
        .expected = "a model for evaluation, or one whose parameters are in memory",
        .got = "parameters that come and go, and require gradients",
        .hint = "prepare it with {.evaluation_mode = true}, or call undo_offload() and set "
                "AcceleratorOptions::offload.optimizer"});
  }
  const auto sparse = module_->sparse_parameters();
  std::vector<dist::NamedParameter> parameters;
  for (const auto& item : named) {
    parameters.push_back({.name = item.key(),
                          .value = item.value(),
                          .sparse_gradient = sparse.contains(item.value().unsafeGetTensorImpl())});
  }
  parallel_ = std::make_unique<dist::DataParallel>(
      core.world, parameters, [this] { return module_->named_buffers().values(); },
      core.options.data_parallel);
}

bool ModelState::synchronises(const Core& core) const {
  if (no_sync_depth_ > 0) return false;
  const Window* window = core.accumulation.open();
  if (window == nullptr || window->complete) return true;
  if (core.options.gradient_accumulation.sync_each_batch) return true;
  const bool concerned = window->models.empty() ||
                         std::binary_search(window->models.begin(), window->models.end(), this);
  return !concerned;
}

ModelState::~ModelState() {
  if (const auto core = core_.lock()) core->accumulation.forget(*this);
}

ForwardScope::ForwardScope(ModelState& state)
    : state_(state),
      span_(state.core()->timeline().span(at::GradMode::is_enabled() ? Phase::forward
                                                                     : Phase::evaluation)) {
  const auto core = state.core();
  core->checkpoints.finish_resume_if_all_are_there();
  if (at::GradMode::is_enabled()) state.note_forward(core->counts.backwards);
  if (PagedModel* const paged = state.paged()) {
    const Window* const window = core->accumulation.open();
    paged->begin_forward(at::GradMode::is_enabled(), window == nullptr || window->complete,
                         core->counts.backwards);
  }
  if (core->options.offload.activations) {
    activation_offload_ = std::make_shared<nn::detail::ActivationOffloadScope>(true);
  }
  if (dist::DataParallel* parallel = state.parallel()) {
    is_parallel_ = true;
    synchronises_ = state.synchronises(*core);
    parallel->before_forward(synchronises_);
  }
  auto autocast = core->autocast_options(core->options.autocast);
  if (!autocast) return;
  require_device(state.parameters(), *core);
  // Weight copies cached while gradients were disabled must not be used by a training forward in
  // the same outer autocast scope: the weights would get no gradients.
  if (!at::GradMode::is_enabled() && is_autocast_enabled(autocast->device_type)) {
    autocast->cache_enabled = false;
  }
  autocast_.emplace(*autocast);
  casts_outputs_ = state.has_float32_outputs();
}

void ForwardScope::explain(c10::Error& error) const {
  // What finds a batch size that fits reads such a message, and no layer is to blame.
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return;
  error.add_context(place_of_error(state_, error.msg()));
}

std::vector<at::Tensor> ForwardScope::finish(std::vector<at::Tensor> outputs) {
  if (at::GradMode::is_enabled() && !synchronises_) state_.set_local_forward(true);
  return state_.parallel()->after_forward(std::move(outputs), synchronises_);
}

}  // namespace accelerant::detail
