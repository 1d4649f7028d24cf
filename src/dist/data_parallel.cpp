#include "dist/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "compat/c10d.h"
#include "dist/data_parallel_state.h"
#include "dist/exchange.h"
#include "dist/groups.h"
#include "dist/join.h"
#include "dist/world_access.h"

namespace accelerant::dist {
namespace {

constexpr size_t kBroadcastBytes = 250 * 1024 * 1024;

// One node behind all outputs. If the loss uses only some of them, the others still pass on an
// (undefined) gradient, so that the Reducer learns about every parameter it has found in the graph.
struct OutputSink : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

bool has_graph(const at::Tensor& tensor) { return tensor.defined() && tensor.grad_fn(); }

void pass_through_sink(std::vector<at::Tensor>& outputs) {
  const auto sink = compat::make_node<OutputSink>();
  for (at::Tensor& output : outputs) {
    if (!has_graph(output)) continue;
    sink->add_next_edge(torch::autograd::impl::gradient_edge(output));
    // The same memory with a new history.
    output = output.detach();
    torch::autograd::set_history(output, sink);
  }
}

// A tensor that every backend can send; unsupported types become bytes of the same memory.
at::Tensor sendable(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return tensor.detach();
    default:
      return tensor.is_contiguous() ? tensor.detach().view({-1}).view(at::kByte) : tensor.detach();
  }
}

void broadcast(const World& world, const char* name, const std::vector<at::Tensor>& tensors,
               int source) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sent;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) sent.push_back(sendable(tensor));
  }
  if (sent.empty()) return;
  exchange_joined(world, name, [&](Groups& groups) {
    c10d::broadcast_coalesced(groups.data, sent, kBroadcastBytes, source);
  });
}

// Names the exchange of gradients until the end of the current backward, for a backward that was
// not known to exchange. Shares the World, since the engine may briefly keep what a failed backward
// leaves behind.
void name_exchange(const std::shared_ptr<World>& world) {
  struct Named {
    std::shared_ptr<World> world;
    Progress::Operation operation =
        WorldAccess::progress(*world).collective_for_training(kAveragingGradients);
    bool has_ended = false;

    // The engine drops a failed backward without calling back.
    ~Named() {
      if (!has_ended) WorldAccess::progress(*world).lose_order();
    }
  };
  auto named = std::make_shared<Named>(world);
  // The engine calls back in the order of registration, and the Reducer registers its wait for the
  // others later than this. So register what comes after that when the engine begins to call.
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.queue_callback([&engine, named = std::move(named)]() mutable {
    engine.queue_callback([named = std::move(named)]() mutable {
      named->has_ended = true;
      named.reset();
    });
  });
}

}  // namespace

void DataParallel::State::broadcast_model(int source) {
  std::vector<at::Tensor> tensors = buffers();
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.value);
  broadcast(*world, "giving the model to all processes", tensors, source);
}

void DataParallel::State::broadcast_buffers(int source) {
  require_part_in_join();
  const std::vector<at::Tensor> tensors = buffers();
  std::vector<std::pair<at::Tensor, uint32_t>> versions;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_inference())
      versions.emplace_back(tensor, tensor._version());
  }
  broadcast(*world, "giving the buffers to all processes", tensors, source);
  // Forwards that still wait for their backward may have saved a buffer. The exchange must not
  // count as a change that makes this backward fail.
  for (const auto& [tensor, version] : versions) {
    c10::VariableVersion counter = torch::autograd::impl::version_counter(tensor);
    counter.set_version(version);
  }
}

void DataParallel::State::require_part_in_join() const {
  if (WorldAccess::groups(*world).join == join) return;
  throw Error(ErrorDetails{
      .problem = "join_uneven_inputs() does not cover a model that is trained inside it",
      .expected = "training only models that were passed to join_uneven_inputs()",
      .got = "another model, in whose exchanges processes with fewer batches take no part",
      .hint = "pass all models that the loop trains to it"});
}

void DataParallel::State::check_iteration() const {
  require_part_in_join();
  if (graph_is_followed) {
    throw Error(ErrorDetails{
        .problem = "This process had no batch while the other processes learnt the static graph",
        .expected = "a batch in every process in the first iteration, with static_graph",
        .hint =
            "set find_unused_parameters instead of static_graph, or give every process a batch"});
  }
  auto next = trained.begin();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (next != trained.end() && *next == i) {
      ++next;
    } else if (parameters[i].value.requires_grad()) {
      throw Error(ErrorDetails{
          .problem =
              parameters[i].name + " requires gradients, but did not when the model was prepared",
          .expected = "the same trained parameters as then",
          .got = "one more, whose gradients would differ between the processes",
          .hint = "unfreeze parameters before prepare(), or prepare the model again"});
    }
  }
}

void DataParallel::State::require_finished() const {
  if (!reducer->is_unfinished()) return;
  try {
    reducer->check_finalized();
  } catch (const std::exception& error) {
    rethrow_unfinished(error);
  }
}

void DataParallel::State::rebuild_buckets() {
  require_finished();
  WorldAccess::groups(*world);  // throws if they have ended
  if (!reducer->rebuild_is_due()) return;
  require_part_in_join();
  exchange_joined(*world, "agreeing on the order of gradients",
                  [&](Groups&) { reducer->rebuild_buckets(); });
  ++generation;
}

void DataParallel::State::arm(const std::vector<at::Tensor>& outputs) {
  reducer->note_order_from_here();
  reducer->prepare_for_backward(outputs);
  ++preparations;
  is_announced = false;
}

void DataParallel::State::reach_output(bool synchronised) {
  if (!reducer->is_armed() && !synchronised) return;
  require_part_in_join();
  if (!reducer->is_armed()) {
    // A second backward after synchronised forwards: the result of the first is the same
    // everywhere, so reducing the sum again gives the average of both.
    if (options.find_unused_parameters || options.static_graph) {
      throw Error(ErrorDetails{
          .problem = "Cannot run a second backward() after synchronised forwards",
          .expected =
              "one backward() for all of them, because of find_unused_parameters or static_graph",
          .got = "gradients that are already averaged",
          .hint = "add the losses and call backward() once, or synchronise only the last forward"});
    }
    arm({});
    name_exchange(world);
  }
  if (join != nullptr && !std::exchange(is_announced, true)) join->announce_backward(*this);
  if (options.static_graph && !std::exchange(graph_is_known, true)) {
    // Nothing is reduced while this backward counts how often each parameter is used.
    reducer->count_uses_from_here();
    torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
      if (const auto state = self.lock()) state->reducer->delay_all_reduce();
    });
  }
}

DataParallel::DataParallel(std::shared_ptr<World> world,
                           const std::vector<NamedParameter>& parameters, Buffers buffers,
                           const DataParallelOptions& options)
    : state_(accelerant::detail::make_shared_for_process<State>(std::move(world), parameters,
                                                                std::move(buffers), options)) {}

DataParallel::~DataParallel() = default;

void DataParallel::before_forward(bool synchronise) {
  State& state = *state_;
  // One process may evaluate when the others do not.
  if (!at::GradMode::is_enabled()) return;
  state.require_reducer();
  if (synchronise) {
    state.check_iteration();
    state.reducer->prepare_for_forward();
  }
  if (!state.reducer->is_armed()) state.requested.reset();
  // The outputs of a synchronised forward were dropped without a backward. The next backward
  // belongs to this forward, and must not exchange.
  const bool is_stale =
      state.reducer->is_armed() && !state.reducer->is_unfinished() && state.armed_graph.expired();
  if (!synchronise && is_stale) state.reducer->disarm();
  const int source = state.join != nullptr ? state.join->announce_forward(state, synchronise) : 0;
  state.rebuild_buckets();
  if (state.buffers_due && state.options.broadcast_buffers) state.broadcast_buffers(source);
}

std::vector<at::Tensor> DataParallel::after_forward(std::vector<at::Tensor> outputs,
                                                    bool synchronise) {
  State& state = *state_;
  if (!at::GradMode::is_enabled()) return outputs;
  state.buffers_due = synchronise;
  const bool searches = state.options.find_unused_parameters && !state.options.static_graph;
  if (synchronise) state.arm(searches ? outputs : std::vector<at::Tensor>{});
  if (searches) pass_through_sink(outputs);
  // Lives as long as the graph of one of the outputs.
  std::shared_ptr<void> graph = state.armed_graph.lock();
  if (synchronise && !graph) state.armed_graph = graph = std::make_shared<char>();
  if (!synchronise) graph.reset();
  for (const at::Tensor& output : outputs) {
    if (!has_graph(output)) continue;
    output.register_hook(
        [self = state.weak_from_this(), synchronise, graph](const at::TensorBase&) {
          if (const auto living = self.lock()) living->reach_output(synchronise);
        });
  }
  return outputs;
}

void DataParallel::synchronise_next_backward() {
  if (state_->options.find_unused_parameters && !state_->options.static_graph) {
    throw Error(ErrorDetails{
        .problem =
            "Gradients of forwards without synchronisation cannot be synchronised afterwards",
        .expected = "find_unused_parameters = false, since the search happens in the forward",
        .got = "find_unused_parameters = true",
        .hint = "synchronise the last forward instead"});
  }
  state_->require_part_in_join();
  state_->arm({});
  state_->armed_graph = state_->requested = std::make_shared<char>();
}

// A preparation that still waits for its backward counts as a future one.
int64_t DataParallel::preparations() const {
  return state_->preparations - (state_->reducer->is_armed() ? 1 : 0);
}

bool DataParallel::averages_since(int64_t before) const { return state_->preparations > before; }

void DataParallel::require_reduced() { state_->require_finished(); }

void DataParallel::register_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  std::shared_ptr<c10d::CommHookInterface> shared = std::move(hook);
  state_->reducer->register_comm_hook(shared);
  state_->hook = std::move(shared);
}

const std::vector<NamedParameter>& DataParallel::parameters() const { return state_->parameters; }
World& DataParallel::world() const { return *state_->world; }
const DataParallelOptions& DataParallel::options() const { return state_->options; }

}  // namespace accelerant::dist
