#include "dist/captured_exchange.h"

#include "dist/data_parallel_state.h"
#include "dist/groups.h"
#include "dist/world_access.h"

namespace accelerant::dist {
namespace {

bool is_compressed_by_powers(const CommHookOptions& options) {
  return options.hook == CommHook::power_sgd || options.hook == CommHook::batched_power_sgd;
}

}  // namespace

bool exchanges_on_device(const World& world) {
  const auto backend = WorldAccess::groups(world).data->getBackend(world.device().type());
  return backend->getBackendName() == "nccl";
}

std::string why_never_captured(const DataParallel& model) {
  const DataParallelOptions& options = model.options();
  if (options.find_unused_parameters && !options.static_graph) {
    return "find_unused_parameters inspects the graph of every iteration on the host";
  }
  if (is_compressed_by_powers(options.comm_hook)) return "PowerSGD counts iterations on the host";
  const bool has_own_hook = options.comm_hook.hook == CommHook::no && model.state().hook != nullptr;
  if (has_own_hook) return "the program has set its own hook for gradients";
  return {};
}

bool waits_for_backward(const DataParallel& model) {
  const DataParallel::State& state = model.state();
  state.require_reducer();
  return state.reducer->is_armed() || state.reducer->is_unfinished();
}

std::string why_not_captured_yet(const DataParallel& model) {
  const DataParallel::State& state = model.state();
  if (waits_for_backward(model)) return "a forward of the model waits for its backward";
  if (state.options.static_graph && !state.graph_is_known) {
    return "the static graph of the model is not known yet";
  }
  if (!state.reducer->has_final_buckets()) {
    return "the order of the model's gradients is not known yet";
  }
  return {};
}

int64_t exchange_generation(const DataParallel& model) { return model.state().generation; }

bool is_on_stream(const DataParallel& model, const c10::Stream& stream) {
  return model.state().reducer->is_on_stream(stream);
}

void move_to_current_stream(DataParallel& model) {
  DataParallel::State& state = model.state();
  const compat::LearntOrder order = state.reducer->learnt_order();
  const compat::LearntGraph graph =
      state.graph_is_known ? state.reducer->learnt_graph() : compat::LearntGraph();
  // The old one holds the autograd nodes that belong to its stream.
  state.drop_reducer();
  state.make_reducer(order.buckets);
  state.reducer->restore_order(order);
  if (state.graph_is_known) state.reducer->restore_graph(graph);
  state.forget_forwards();
}

int64_t exchanged_messages(const World& world) { return WorldAccess::groups(world).messages; }

bool buffers_are_due(const DataParallel& model) { return model.state().buffers_due; }
void set_buffers_due(DataParallel& model, bool due) { model.state().buffers_due = due; }

}  // namespace accelerant::dist
