#include "dist/join.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "dist/data_parallel_state.h"
#include "dist/exchange.h"
#include "dist/groups.h"

namespace accelerant::dist {
namespace {

constexpr int64_t kManyRounds = 1000;

World& world_of(const std::vector<DataParallel*>& models) {
  if (models.empty()) {
    throw Error(ErrorDetails{.problem = "Uneven inputs are to be joined for no model",
                             .expected = "the models that are trained"});
  }
  for (const DataParallel* model : models) {
    if (model->state().join == nullptr) continue;
    throw Error(ErrorDetails{.problem = "A model takes part in two joins of uneven inputs at once",
                             .expected = "one join around the training loop"});
  }
  return models.front()->world();
}

}  // namespace

Join::Join(const std::vector<DataParallel*>& models, const JoinOptions& options)
    : models_(models), options_(options), world_(world_of(models)) {
  for (DataParallel* model : models_) model->state().join = this;
  world_.progress().lose_order();  // from here on processes do different things
}

Join::~Join() {
  for (DataParallel* model : models_) model->state().join = nullptr;
}

Join::Round Join::exchange_round(DataParallel::State& state, bool is_active, bool synchronise) {
  return exchange(world_, "uneven inputs", [&](Groups& groups) {
    const int64_t size = world_.size();
    // Which processes are active, and then how many of them synchronise.
    std::vector<at::Tensor> message = {at::zeros({size + 1}, at::kLong)};
    auto* values = message[0].mutable_data_ptr<int64_t>();
    values[world_.rank()] = is_active ? 1 : 0;
    values[size] = synchronise ? 1 : 0;
    groups.control->allreduce(message)->wait();
    if (!options_.divide_by_initial_world_size) {
      // The Reducer takes the number it divides by from an exchange like this.
      std::vector<at::Tensor> count = {is_active ? at::ones({1}) : at::zeros({1})};
      state.reducer->set_forward_pass_work_handle(groups.control->allreduce(count),
                                                  /*useStaticWorldSize=*/false);
    }
    Round round;
    round.is_synchronised = values[size] > 0;
    for (int rank = 0; rank < static_cast<int>(size); ++rank) {
      if (values[rank] == 0) continue;
      ++round.active;
      round.highest_active = rank;
    }
    return round;
  });
}

int Join::announce(DataParallel::State& state, bool synchronise) {
  const Round round = exchange_round(state, /*is_active=*/true, synchronise);
  if (options_.throw_on_early_termination && round.active < world_.size()) {
    throw Error(
        ErrorDetails{.problem = "Another process has no more inputs",
                     .expected = "as many batches in every process",
                     .got = c10::str(round.active, " of ", world_.size(), " processes left")});
  }
  return round.highest_active;
}

void Join::follow_forward(DataParallel::State& state, const Round& round) {
  if (round.is_synchronised) {
    ++state.iterations;
    state.reducer->prepare_for_forward();
  }
  state.rebuild_buckets();
  if (state.buffers_due && state.options.broadcast_buffers) {
    state.broadcast_buffers(round.highest_active);
  }
  state.buffers_due = round.is_synchronised;
}

void Join::follow_backward(DataParallel::State& state) {
  exchange(world_, "gradients of zero for processes with more inputs", [&](Groups& groups) {
    const bool is_first_of_static_graph = state.options.static_graph && state.iterations == 1;
    const auto follow_used_map = [&] {
      // Nothing was used here. The Reducer's own map may still hold marks of iterations before.
      std::vector<at::Tensor> unused = {
          at::zeros_like(state.reducer->get_local_used_map_on_device())};
      groups.data->allreduce(unused)->wait();
    };
    // In the order of the Reducer.
    if (is_first_of_static_graph) follow_used_map();
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> sums;
    auto buckets = state.reducer->get_grad_buckets(/*return_zero_tensors=*/true);
    for (c10d::GradBucket& bucket : buckets) sums.push_back(state.reducer->run_comm_hook(bucket));
    if (state.options.find_unused_parameters && !state.options.static_graph) follow_used_map();
    for (const auto& sum : sums) sum->waitAndThrow();
    // The order of gradients of a static graph is learnt in the second iteration, else in the first.
    if (!is_first_of_static_graph) state.reducer->push_rebuilt_params_for_all_indices();
  });
}

void Join::follow_the_others() {
  int64_t rounds = 0;
  for (;; ++rounds) {
    for (size_t i = 0; i < models_.size(); ++i) {
      DataParallel::State& state = models_[i]->state();
      const Round round = exchange_round(state, /*is_active=*/false, /*synchronise=*/false);
      if (i == 0 && round.active == 0) {
        // Any process that never had to follow has the newest model.
        const Round last = exchange_round(state, /*is_active=*/rounds == 0, false);
        for (DataParallel* model : models_) model->state().broadcast_model(last.highest_active);
        return;
      }
      if (options_.throw_on_early_termination) {
        throw Error(ErrorDetails{.problem = c10::str("Rank ", world_.rank(), " has no more inputs"),
                                 .expected = "as many batches in every process",
                                 .got = c10::str(round.active, " processes that have more")});
      }
      follow_forward(state, round);
      if (round.is_synchronised) follow_backward(state);
    }
    if (rounds == kManyRounds) {
      log(LogLevel::warning, c10::str("Rank ", world_.rank(), " has more than ", kManyRounds,
                                      " batches fewer than others, for which it waits"));
    }
  }
}

void join_uneven(const std::vector<DataParallel*>& models, const JoinOptions& options,
                 const std::function<void()>& loop) {
  Join join(models, options);
  loop();
  join.follow_the_others();
}

}  // namespace accelerant::dist
