// Replays exchanges between processes. Several replays run at once, with the variables of a
// launcher, and all get the same documents. A document is one call: {"op": name, "inputs": [data of
// each rank], arguments}.
//
//   gather, reduce {reduction, scale}, broadcast {from}, pad {dim, pad_index, pad_first}:  data is
//       nested: a tensor {dtype, shape, values}, a list of data, or {"dict": {key: data}}
//   gather_object_list, broadcast_object_list {from}:  data is a list of JSON values
//   metrics {length, batch_size, split_batches}:  what gather_for_metrics returns in an epoch over
//       the numbers 0 ... length - 1; no inputs
//
// The result is {"data": what this rank gets}.
#include <accelerant/accelerant.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "refusal.h"
#include "topics.h"
#include "values.h"

// Named, because several topics may be compiled as one file.
namespace replay::collectives {

using nlohmann::json;
namespace dist = accelerant::dist;

// Data whose kind is known only when it is read. One of the fields is in use.
struct Node {
  at::Tensor tensor = {};
  std::vector<Node> list = {};
  std::map<std::string, Node> dict = {};
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.tensor);
    visit(self.list);
    visit(self.dict);
  }
};

const dist::World& world() {
  static const auto joined = dist::World::join(dist::Environment::detect());
  return *joined;
}

Node node_from(const json& data) {
  Node node;
  if (data.is_array()) {
    for (const json& part : data) node.list.push_back(node_from(part));
  } else if (data.contains("dict")) {
    for (const auto& [key, part] : data.at("dict").items()) node.dict[key] = node_from(part);
  } else {
    node.tensor = tensor_from(data.at("values"), at::kDouble)
                      .view(data.at("shape").get<std::vector<int64_t>>())
                      .to(type_from(data.at("dtype").get<std::string>()));
  }
  return node;
}

json node_to(const Node& node, const json& like) {
  if (like.is_array()) {
    json list = json::array();
    for (std::size_t i = 0; i < node.list.size(); ++i) {
      list.push_back(node_to(node.list[i], like.at(i)));
    }
    return list;
  }
  if (like.contains("dict")) {
    json dict = json::object();
    for (const auto& [key, part] : node.dict) {
      dict[key] = node_to(part, like.at("dict").at(key));
    }
    return {{"dict", dict}};
  }
  return {{"dtype", type_to(node.tensor.scalar_type())},
          {"shape", node.tensor.sizes().vec()},
          {"values", tensor_to(node.tensor)}};
}

dist::Reduction reduction_from(const std::string& name) {
  if (name == "sum") return dist::Reduction::sum;
  if (name == "mean") return dist::Reduction::mean;
  if (name == "max") return dist::Reduction::max;
  throw BadDocument("unknown reduction: " + name);
}

json on_tensors(const json& call, const json& input) {
  const std::string op = call.at("op").get<std::string>();
  const Node own = node_from(input);
  Node result;
  if (op == "gather") {
    result = dist::gather(world(), own);
  } else if (op == "reduce") {
    result = dist::reduce(world(), own,
                          {.reduction = reduction_from(call.at("reduction").get<std::string>())});
  } else if (op == "broadcast") {
    dist::broadcast(world(), own, call.at("from").get<int64_t>());
    result = own;
  } else if (op == "pad") {
    result = dist::pad_across_processes(world(), own,
                                        {.dim = call.at("dim").get<int64_t>(),
                                         .pad_index = call.at("pad_index").get<int64_t>(),
                                         .pad_first = call.at("pad_first").get<bool>()});
  } else {
    throw BadDocument("unknown op: " + op);
  }
  return node_to(result, input);
}

struct Numbers {
  int64_t count;
  int64_t size() const { return count; }
  at::Tensor get(int64_t index) const { return torch::tensor(index); }
};

json metrics(const json& call) {
  auto loader = accelerant::data::loader(Numbers{call.at("length").get<int64_t>()},
                                         {.batch_size = call.at("batch_size").get<int64_t>()})
                    .placed({.rank = world().rank(),
                             .num_processes = world().size(),
                             .split_batches = call.at("split_batches").get<bool>()});
  json seen = json::array();
  for (auto&& batch : loader) {
    const auto state = loader.state();
    const auto all = dist::gather_for_metrics(
        world(), {.here = state->current_rows(), .total = state->rows_to_keep()}, batch);
    seen.push_back(tensor_to(all));
  }
  return seen;
}

json replay_call(const json& call) {
  const std::string op = call.at("op").get<std::string>();
  if (op == "metrics") return {{"data", metrics(call)}};
  const json& input = call.at("inputs").at(static_cast<std::size_t>(world().rank()));
  if (op == "gather_object_list") {
    return {{"data", dist::gather_object_list(world(), input.get<std::vector<json>>())}};
  }
  if (op == "broadcast_object_list") {
    auto values = input.get<std::vector<json>>();
    dist::broadcast_object_list(world(), values, call.at("from").get<int64_t>());
    return {{"data", values}};
  }
  return {{"data", on_tensors(call, input)}};
}

}  // namespace replay::collectives

namespace replay {

nlohmann::json replay_collectives(const nlohmann::json& document) {
  return result_or_error([&] { return collectives::replay_call(document); });
}

}  // namespace replay
