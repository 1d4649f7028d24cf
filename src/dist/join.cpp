#include "dist/join.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "dist/data_parallel_state.h"
#include "dist/exchange.h"
#include "dist/groups.h"
#include "dist/world_access.h"

namespace accelerant::dist {
namespace {

constexpr int64_t kManyEvents = 2000;

World& world_of(const std::vector<DataParallel*>& models) {
  if (models.empty()) {
    throw Error(ErrorDetails{.problem = "join_uneven_inputs() got no models",
                             .expected = "the models to train"});
  }
  World& world = models.front()->world();
  if (WorldAccess::groups(world).join != nullptr) {
    throw Error(ErrorDetails{.problem = "join_uneven_inputs() was called inside another one",
                             .expected = "one call around the training loop, with all models"});
  }
  return world;
}

}  // namespace

Join::Join(const std::vector<DataParallel*>& models, const JoinOptions& options)
    : models_(models), options_(options), world_(world_of(models)) {
  for (DataParallel* model : models_) model->state().join = this;
  WorldAccess::groups(world_).join = this;
  WorldAccess::progress(world_).lose_order();  // from here on, processes do different things
}

Join::~Join() {
  for (DataParallel* model : models_) model->state().join = nullptr;
  if (world_.is_connected()) WorldAccess::groups(world_).join = nullptr;
}

Join::Event Join::exchange_event(DataParallel::State* state, Kind kind) {
  return exchange_joined(world_, "uneven inputs", [&](Groups& groups) {
    const int64_t size = world_.size();
    // Which processes have inputs, followed by the sums of what they are about to do.
    std::vector<at::Tensor> message = {at::zeros({size + 2}, at::kLong)};
    auto* values = message[0].mutable_data_ptr<int64_t>();
    if (state != nullptr) {
      values[world_.rank()] = 1;
      values[size] = static_cast<int64_t>(kind);
      values[size + 1] =
          std::ranges::find(models_, state,
                            [](const DataParallel* model) { return &model->state(); }) -
          models_.begin();
    }
    groups.control->allreduce(message)->wait();
    Event event;
    for (int rank = 0; rank < static_cast<int>(size); ++rank) {
      if (values[rank] == 0) continue;
      ++event.active;
      event.highest_active = rank;
    }
    if (event.active == 0) return event;
    event.kind = static_cast<Kind>(values[size] / event.active);
    event.state = &models_.at(static_cast<size_t>(values[size + 1] / event.active))->state();
    if (state != nullptr && (event.kind != kind || event.state != state)) {
      throw Error(ErrorDetails{
          .problem = "Processes with uneven inputs do different things at the same time",
          .expected =
              "the same models, called in the same order and synchronised at the same batches",
          .got = "a different model or kind of step in some process"});
    }
    return event;
  });
}

int Join::announce_forward(DataParallel::State& state, bool synchronise) {
  const Event event = exchange_event(&state, synchronise ? Kind::forward : Kind::local_forward);
  if (options_.throw_on_early_termination && event.active < world_.size()) {
    throw Error(
        ErrorDetails{.problem = "Another process has no more inputs",
                     .expected = "the same number of batches in every process",
                     .got = c10::str(event.active, " of ", world_.size(), " processes left")});
  }
  return event.highest_active;
}

void Join::announce_backward(DataParallel::State& state) {
  exchange_event(&state, Kind::backward);
  if (options_.divide_by_initial_world_size) return;
  exchange_joined(world_, "uneven inputs", [&](Groups& groups) {
    // The Reducer gets the number it divides by from an exchange like this.
    std::vector<at::Tensor> count = {at::ones({1})};
    state.reducer->set_forward_pass_work_handle(groups.control->allreduce(count),
                                                /*useStaticWorldSize=*/false);
  });
}

void Join::follow_forward(const Event& event) {
  DataParallel::State& state = *event.state;
  const bool is_synchronised = event.kind == Kind::forward;
  if (is_synchronised) state.reducer->prepare_for_forward();
  state.rebuild_buckets();
  if (state.buffers_due && state.options.broadcast_buffers) {
    state.broadcast_buffers(event.highest_active);
  }
  state.buffers_due = is_synchronised;
}

void Join::follow_backward(DataParallel::State& state) {
  exchange_joined(world_, "gradients of zero for processes with more inputs", [&](Groups& groups) {
    if (!options_.divide_by_initial_world_size) {
      std::vector<at::Tensor> count = {at::zeros({1})};
      groups.control->allreduce(count)->wait();
    }
    const bool learns_graph =
        state.options.static_graph && !std::exchange(state.graph_is_known, true);
    state.graph_is_followed = state.graph_is_followed || learns_graph;
    const auto follow_used_map = [&] {
      // Nothing was used here. The Reducer's own map may still hold marks of earlier iterations.
      std::vector<at::Tensor> unused = {
          at::zeros_like(state.reducer->get_local_used_map_on_device())};
      groups.data->allreduce(unused)->wait();
    };
    // In the order of the Reducer.
    if (learns_graph) follow_used_map();
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> sums;
    auto buckets = state.reducer->get_grad_buckets(/*return_zero_tensors=*/true);
    for (c10d::GradBucket& bucket : buckets) sums.push_back(state.reducer->run_comm_hook(bucket));
    if (state.options.find_unused_parameters && !state.options.static_graph) follow_used_map();
    for (const auto& sum : sums) state.reducer->finish_comm_hook(*sum);
    // The order of gradients is learnt in the second iteration of a static graph, otherwise in the
    // first.
    if (!learns_graph) state.reducer->push_rebuilt_params_for_all_indices();
  });
}

void Join::share_last_model(bool ended_last) {
  const int source = exchange_joined(world_, "the end of uneven inputs", [&](Groups& groups) {
    std::vector<at::Tensor> highest = {at::full({1}, ended_last ? world_.rank() : -1, at::kLong)};
    groups.control->allreduce(highest, {.reduceOp = c10d::ReduceOp::MAX})->wait();
    return highest[0].item<int>();
  });
  for (DataParallel* model : models_) model->state().broadcast_model(source);
}

void Join::follow_the_others() {
  for (int64_t events = 0;; ++events) {
    const Event event = exchange_event(nullptr, Kind::forward);
    // A process that never had to follow has the newest models.
    if (event.active == 0) return share_last_model(/*ended_last=*/events == 0);
    if (options_.throw_on_early_termination) {
      throw Error(
          ErrorDetails{.problem = c10::str("Rank ", world_.rank(), " has no more inputs"),
                       .expected = "the same number of batches in every process",
                       .got = c10::str(event.active, event.active == 1 ? " process" : " processes",
                                       " with more inputs")});
    }
    if (event.kind == Kind::backward) {
      follow_backward(*event.state);
    } else {
      follow_forward(event);
    }
    if (events == kManyEvents) {
      log(LogLevel::warning, c10::str("Rank ", world_.rank(), " has about ", kManyEvents / 2,
                                      " fewer batches than other processes, and waits for them"));
    }
  }
}

// Applies even while all have inputs: whether a program works must not depend on its data.
void refuse_in_join(const World& world, const char* name) {
  if (WorldAccess::groups(world).join == nullptr) return;
  throw Error(ErrorDetails{
      .problem = c10::str("An exchange is not possible inside join_uneven_inputs(): ", name),
      .expected = "only forwards and backwards of the joined models",
      .got = "an exchange that processes with fewer batches do not take part in",
      .hint = "call it after join_uneven_inputs(); for example, keep a sum in each process and "
              "reduce it afterwards"});
}

void join_uneven(const std::vector<DataParallel*>& models, const JoinOptions& options,
                 const std::function<void()>& loop) {
  Join join(models, options);
  loop();
  join.follow_the_others();
}

}  // namespace accelerant::dist
