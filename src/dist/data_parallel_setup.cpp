#include <c10/util/StringUtil.h>

#include <limits>
#include <set>

#include "accelerant/core/error.h"
#include "compat/torch_version.h"
#include "dist/comm_hook.h"
#include "dist/data_parallel_state.h"
#include "dist/groups.h"
#include "dist/model_check.h"
#include "dist/world_access.h"

namespace accelerant::dist {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
// Smaller buckets are no faster on 2 cores, and slower on 16, where every exchange competes with
// more threads.
constexpr double kDefaultCap = 25;

std::vector<NamedParameter> each_once(const std::vector<NamedParameter>& parameters) {
  std::vector<NamedParameter> once;
  std::set<const void*> seen;
  for (const NamedParameter& parameter : parameters) {
    if (seen.insert(parameter.value.unsafeGetTensorImpl()).second) once.push_back(parameter);
  }
  return once;
}

// What keeps this process from training the model; empty if nothing does.
std::string problem_of(const std::vector<NamedParameter>& parameters,
                       const DataParallelOptions& options) {
  if (options.bucket_cap_mb && !(*options.bucket_cap_mb > 0)) {
    return c10::str("bucket_cap_mb is ", *options.bucket_cap_mb, ", but must be more than 0");
  }
  if (options.batched_grad_copy && !ACCELERANT_TORCH_AT_LEAST(2, 12)) {
    return c10::str("batched_grad_copy needs libtorch 2.12 or newer, this is ", TORCH_VERSION);
  }
  bool is_trained = false;
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.value.defined())
      return c10::str("the parameter ", parameter.name, " is undefined");
    is_trained = is_trained || parameter.value.requires_grad();
    const auto& first = parameters.front();
    if (parameter.value.device().type() != first.value.device().type()) {
      return c10::str(first.name, " is on ", first.value.device(), ", but ", parameter.name, " on ",
                      parameter.value.device());
    }
  }
  if (is_trained) return {};
  return "no parameter requires gradients; prepare the model for evaluation only";
}

struct BucketSizes {
  int64_t first = 0;
  int64_t others = 0;
};

BucketSizes bucket_sizes(const DataParallelOptions& options) {
  const auto bytes = [](double mib) {
    return std::max<int64_t>(1, static_cast<int64_t>(mib * kMiB));
  };
  if (options.bucket_cap_mb) return {bytes(*options.bucket_cap_mb), bytes(*options.bucket_cap_mb)};
  return {c10d::kDefaultFirstBucketBytes, bytes(kDefaultCap)};
}

std::vector<std::vector<size_t>> first_buckets(const DataParallelOptions& options,
                                               const compat::ReducerArguments& arguments) {
  // The order in which gradients arrive is known after the first iteration, when the Reducer
  // rebuilds its buckets. Until then everything is in one bucket, unless there will be no rebuild.
  const bool order_will_be_known = options.static_graph || !options.find_unused_parameters;
  std::vector<size_t> limits = {static_cast<size_t>(arguments.first_bucket_bytes),
                                static_cast<size_t>(arguments.bucket_bytes)};
  if (order_will_be_known) limits = {static_cast<size_t>(std::numeric_limits<int64_t>::max())};
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(arguments.parameters, limits,
                                                                     arguments.sparse_gradients));
  // Gradients arrive roughly in the reverse order of the parameters.
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

compat::ReducerArguments arguments_for(const DataParallel::State& state) {
  compat::ReducerArguments arguments;
  arguments.group = state.group;
  arguments.find_unused_parameters = state.options.find_unused_parameters;
  arguments.gradient_as_bucket_view = state.options.gradient_as_bucket_view;
  arguments.batched_grad_copy = state.options.batched_grad_copy;
  for (const size_t index : state.trained) {
    const NamedParameter& parameter = state.parameters[index];
    arguments.names[arguments.parameters.size()] = parameter.name;
    arguments.parameters.push_back(parameter.value);
    arguments.sparse_gradients.push_back(parameter.sparse_gradient);
  }
  const BucketSizes sizes = bucket_sizes(state.options);
  arguments.first_bucket_bytes = sizes.first;
  arguments.bucket_bytes = sizes.others;
  return arguments;
}

}  // namespace

DataParallel::State::State(std::shared_ptr<World> shared_world,
                           const std::vector<NamedParameter>& all_parameters,
                           Buffers buffers_function, const DataParallelOptions& given_options)
    : world(std::move(shared_world)),
      parameters(each_once(all_parameters)),
      buffers(std::move(buffers_function)),
      options(given_options),
      group(WorldAccess::groups(*world).data) {
  // A process with a problem also reports it to the others, which would otherwise wait for it.
  const std::string problem = problem_of(parameters, options);
  require_same_model(*world, problem.empty() ? describe_model(parameters, buffers(), options)
                                             : std::vector{c10::str("a problem\t(", problem, ")")});
  if (!problem.empty()) {
    throw Error(ErrorDetails{.problem = "The model cannot be trained with several processes",
                             .got = problem});
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].value.requires_grad()) trained.push_back(i);
  }
  broadcast_model(/*source=*/0);
  hook = make_comm_hook(options.comm_hook, group);
  make_reducer();
}

void DataParallel::State::make_reducer(std::vector<std::vector<size_t>> buckets) {
  compat::ReducerArguments arguments = arguments_for(*this);
  arguments.buckets = buckets.empty() ? first_buckets(options, arguments) : std::move(buckets);
  const auto made = std::make_shared<compat::Reducer>(std::move(arguments));
  const auto its_logger = std::make_shared<c10d::Logger>(made);
  made->set_logger(its_logger);
  its_logger->set_construction_data_and_log("Accelerant", /*device_ids=*/{}, /*output_device=*/-1,
                                            options.broadcast_buffers, /*has_sync_bn=*/false,
                                            options.static_graph);
  if (options.static_graph) {
    made->set_static_graph();
    its_logger->set_static_graph();
  }
  if (hook) made->register_comm_hook(hook);
  reducer = made;
  logger = its_logger;
  ++generation;
}

void DataParallel::State::drop_reducer() {
  try {
    logger.reset();
    reducer.reset();
  } catch (const std::exception&) {
    // Both may complain about an aborted iteration, which was already reported.
  }
}

void DataParallel::State::forget_forwards() {
  armed_graph.reset();
  requested.reset();
  is_announced = false;
}

void DataParallel::State::require_reducer() const {
  if (reducer) return;
  throw Error(ErrorDetails{.problem = "The gradients of a model can no longer be exchanged",
                           .got = "a failure while its buffers were recreated",
                           .hint = "free device memory and prepare the model again"});
}

DataParallel::State::~State() { drop_reducer(); }

}  // namespace accelerant::dist
