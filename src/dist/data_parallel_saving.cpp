#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "dist/comm_hook.h"
#include "dist/data_parallel_state.h"

namespace accelerant::dist {
namespace {

using nlohmann::json;

constexpr size_t kMostNames = 20;
const std::string kHookPrefix = "comm_hook.";

const NamedParameter& parameter_of(const DataParallel::State& state, size_t index) {
  return state.parameters[state.trained[index]];
}

json names_as_json(const DataParallel::State& state, const std::vector<size_t>& indices) {
  json names = json::array();
  for (const size_t index : indices) names.push_back(parameter_of(state, index).name);
  return names;
}

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw Error(ErrorDetails{
      .problem = "The saved state of a data-parallel model does not match this model",
      .expected = expected,
      .got = got,
      .hint = "load a state that the same model saved; without one, training continues, but with "
              "three or more processes not bit for bit"});
}

std::string listed(const std::set<std::string>& names) {
  return list_text({names.begin(), names.end()}, kMostNames);
}

// --- Saving --------------------------------------------------------------------------------------

json saved_graph(const DataParallel::State& state) {
  const compat::LearntGraph graph = state.reducer->learnt_graph();
  json saved = {
      {"uses", json::object()}, {"unused", json::array()}, {"followed", state.graph_is_followed}};
  for (size_t i = 0; i < state.trained.size(); ++i) {
    const std::string& name = parameter_of(state, i).name;
    saved["uses"][name] = graph.uses[i];
    if (!graph.is_used[i]) saved["unused"].push_back(name);
  }
  return saved;
}

// --- Loading -------------------------------------------------------------------------------------

// Reads a saved state by the names of this model's parameters, and rejects what does not match.
class SavedState {
 public:
  SavedState(const DataParallel::State& state, const json& values)
      : state_(state), values_(values) {
    for (size_t i = 0; i < state.trained.size(); ++i) index_of_[parameter_of(state, i).name] = i;
    require(values.is_object(), "an object", values);
  }

  compat::LearntOrder order() const {
    compat::LearntOrder order;
    const json& buckets = at(values_, "buckets");
    require(buckets.is_array() && !buckets.empty(), "'buckets' to be lists of names", buckets);
    std::vector<std::string> names;
    for (const json& bucket : buckets) {
      const std::vector<std::string> of_bucket = strings(bucket, "buckets");
      names.insert(names.end(), of_bucket.begin(), of_bucket.end());
    }
    require_all_once(names);
    for (const json& bucket : buckets) {
      order.buckets.push_back(indices(strings(bucket, "buckets")));
      require_one_type(order.buckets.back());
    }
    const json& rebuilt = at(values_, "rebuilt");
    require(rebuilt.is_boolean(), "'rebuilt' to be true or false", rebuilt);
    order.is_rebuilt = rebuilt;
    const std::vector<std::string> arrival = strings(at(values_, "order"), "order");
    if (!arrival.empty()) require_all_once(arrival);
    order.arrival = indices(arrival);
    return order;
  }

  // Which parameters have gradients that are views, if known.
  std::optional<std::vector<size_t>> views() const {
    if (!values_.contains("views")) return std::nullopt;
    const std::vector<std::string> names = strings(values_["views"], "views");
    require_known(names);
    return indices(names);
  }

  bool has_graph() const { return values_.contains("static_graph"); }
  bool graph_is_followed() const {
    const json& followed = at(values_["static_graph"], "followed");
    require(followed.is_boolean(), "'followed' to be true or false", followed);
    return followed;
  }

  compat::LearntGraph graph() const {
    const json& saved = values_["static_graph"];
    const json& uses = at(saved, "uses");
    require(uses.is_object(), "'uses' to be numbers by name", uses);
    std::vector<std::string> names;
    for (const auto& [name, count] : uses.items()) {
      const bool is_count =
          count.is_number_integer() && count >= 0 && count <= std::numeric_limits<int>::max();
      require(is_count, c10::str("the number of uses of ", name), count);
      names.push_back(name);
    }
    require_all_once(names);
    compat::LearntGraph graph{.uses = std::vector<int>(names.size()),
                              .is_used = std::vector<bool>(names.size(), true)};
    for (const std::string& name : names) graph.uses[index_of_.at(name)] = uses[name];
    const std::vector<std::string> unused = strings(at(saved, "unused"), "unused");
    require_known(unused);
    for (const size_t index : indices(unused)) graph.is_used[index] = false;
    return graph;
  }

 private:
  static void require(bool holds, const std::string& expected, const json& got) {
    if (!holds) refuse(expected, got.dump());
  }

  static const json& at(const json& object, const char* key) {
    require(object.is_object() && object.contains(key), c10::str("a key '", key, "'"), object);
    return object[key];
  }

  static std::vector<std::string> strings(const json& list, const char* key) {
    const auto is_string = [](const json& name) { return name.is_string(); };
    require(list.is_array() && std::ranges::all_of(list, is_string),
            c10::str("'", key, "' to be names of parameters"), list);
    return list.get<std::vector<std::string>>();
  }

  void require_known(const std::vector<std::string>& names) const {
    std::set<std::string> unknown;
    for (const std::string& name : names) {
      if (!index_of_.contains(name)) unknown.insert(name);
    }
    if (!unknown.empty()) {
      refuse("the trained parameters", "also " + listed(unknown));
    }
  }

  void require_all_once(const std::vector<std::string>& names) const {
    std::set<std::string> missing;
    for (const auto& [name, index] : index_of_) missing.insert(name);
    std::set<std::string> twice;
    for (const std::string& name : names) {
      if (missing.erase(name) == 0 && index_of_.contains(name)) twice.insert(name);
    }
    if (!missing.empty()) refuse("the trained parameters", "a list without " + listed(missing));
    require_known(names);
    if (!twice.empty()) refuse("each parameter once", "duplicates of " + listed(twice));
  }

  // The indices of known parameters.
  std::vector<size_t> indices(const std::vector<std::string>& names) const {
    std::vector<size_t> found;
    for (const std::string& name : names) found.push_back(index_of_.at(name));
    return found;
  }

  // The gradients of a bucket are in one tensor.
  void require_one_type(const std::vector<size_t>& bucket) const {
    if (bucket.empty()) refuse("at least one parameter in every bucket", "an empty bucket");
    const NamedParameter& first = parameter_of(state_, bucket.front());
    for (const size_t index : bucket) {
      const NamedParameter& other = parameter_of(state_, index);
      const bool is_sparse = bucket.size() > 1 && other.sparse_gradient;
      if (!is_sparse && other.value.scalar_type() == first.value.scalar_type() &&
          other.value.device() == first.value.device()) {
        continue;
      }
      refuse("buckets of dense gradients of one type and device",
             c10::str(first.name, " and ", other.name, " in one bucket"));
    }
  }

  const DataParallel::State& state_;
  const json& values_;
  std::map<std::string, size_t> index_of_;
};

// Zero gradients for these parameters and none for the others: the next Reducer makes views of the
// existing ones.
void reset_gradients(DataParallel::State& state, const std::vector<size_t>& defined) {
  for (const size_t index : state.trained) state.parameters[index].value.mutable_grad().reset();
  for (const size_t index : defined) {
    at::Tensor& parameter = state.parameters[state.trained[index]].value;
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
}

NamedState state_of_hook(const NamedState& saved) {
  NamedState hook;
  hook.values = saved.values->value("comm_hook", json::object());
  for (const auto& item : saved.tensors) {
    if (item.key().starts_with(kHookPrefix)) {
      hook.tensors.insert(item.key().substr(kHookPrefix.size()), item.value());
    }
  }
  return hook;
}

}  // namespace

NamedState DataParallel::state_dict() const {
  const State& state = *state_;
  state.require_finished();
  const compat::LearntOrder order = state.reducer->learnt_order();
  NamedState saved;
  saved.values = json{{"buckets", json::array()},
                      {"rebuilt", order.is_rebuilt},
                      {"order", names_as_json(state, order.arrival)},
                      {"buffers_due", state.buffers_due}};
  for (const auto& bucket : order.buckets) {
    saved.values["buckets"].push_back(names_as_json(state, bucket));
  }
  if (state.options.gradient_as_bucket_view) {
    saved.values["views"] = names_as_json(state, state.reducer->gradients_in_buckets());
  }
  if (state.graph_is_known) saved.values["static_graph"] = saved_graph(state);
  if (const auto* hook = dynamic_cast<const SavedHook*>(state.hook.get())) {
    const NamedState of_hook = hook->state_dict();
    if (!of_hook.values->empty()) saved.values["comm_hook"] = *of_hook.values;
    for (const auto& item : of_hook.tensors) {
      saved.tensors.insert(kHookPrefix + item.key(), item.value());
    }
  }
  return saved;
}

void DataParallel::load_state_dict(const NamedState& saved) {
  State& state = *state_;
  const SavedState reader(state, *saved.values);
  const compat::LearntOrder order = reader.order();
  const std::optional<std::vector<size_t>> views = reader.views();
  const bool has_graph = reader.has_graph();
  const compat::LearntGraph graph = has_graph ? reader.graph() : compat::LearntGraph();
  const bool is_followed = has_graph && reader.graph_is_followed();
  if (auto* hook = dynamic_cast<SavedHook*>(state.hook.get())) {
    hook->load_state_dict(state_of_hook(saved));
  }

  if (views && state.options.gradient_as_bucket_view) reset_gradients(state, *views);
  state.make_reducer(order.buckets);
  state.reducer->restore_order(order);
  if (state.options.static_graph && has_graph) state.reducer->restore_graph(graph);
  state.graph_is_known = state.options.static_graph && has_graph;
  state.graph_is_followed = state.options.static_graph && is_followed;
  state.buffers_due = saved.values->value("buffers_due", true);
  state.forget_forwards();
}

}  // namespace accelerant::dist
