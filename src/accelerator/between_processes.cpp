// Accelerator: training loops in which processes do not run in step.
#include <algorithm>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/core/error.h"
#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "dist/join.h"

namespace accelerant {

void Accelerator::trigger_sync_in_backward(const ModelBase& model) {
  require_own(model);
  if (dist::DataParallel* parallel = model.state().parallel()) {
    parallel->synchronise_next_backward();
  }
}

void Accelerator::join_uneven_inputs(const std::vector<const ModelBase*>& models,
                                     const std::function<void()>& loop,
                                     const dist::JoinOptions& options) {
  std::vector<dist::DataParallel*> parallel;
  for (const ModelBase* model : models) {
    require_own(*model);
    if (model->state().parallel() != nullptr) parallel.push_back(model->state().parallel());
  }
  if (parallel.empty()) return loop();
  const bool exchanges = std::any_of(models.begin(), models.end(), [](const ModelBase* model) {
    return model->state().exchanges_in_forward();
  });
  if (exchanges) {
    throw Error(ErrorDetails{
        .problem = "join_uneven_inputs() cannot be used with SyncBatchNorm",
        .expected = "a model whose forward does not exchange data",
        .got = "a forward that waits for all processes, even those that have left the loop",
        .hint = "use even batches (data_loader.even_batches), or plain batch normalisation"});
  }
  if (core_->only_guards()) {
    throw Error(ErrorDetails{
        .problem = "join_uneven_inputs() cannot be used if steps look for inf and nan",
        .expected = ".nonfinite = accelerant::Nonfinite::step",
        .got = "skip or stop, which all processes decide together, even those that have left the "
               "loop",
        .hint = "use even batches (data_loader.even_batches)"});
  }
  if (core_->scales_loss()) {
    throw Error(ErrorDetails{
        .problem = "join_uneven_inputs() cannot be used with loss scaling",
        .expected = "bf16 or no mixed precision",
        .got = "fp16, whose loss scale would stop changing in processes that have left the loop",
        .hint = "use even batches (data_loader.even_batches)"});
  }
  struct Joining {
    explicit Joining(detail::Core& core) : core_(core) { core_.open_scopes.join = true; }
    ~Joining() { core_.open_scopes.join = false; }
    detail::Core& core_;
  };
  dist::join_uneven(parallel, options, [&] {
    const Joining joining(*core_);
    loop();
  });
}

dist::LocalSgd Accelerator::local_sgd(const ModelBase& model,
                                      const dist::LocalSgdOptions& options) {
  require_own(model);
  return {core_->world, model.state().parameters(), options,
          [&] { return std::shared_ptr<NoSyncScope>(new NoSyncScope(model.state_)); }};
}

}  // namespace accelerant
