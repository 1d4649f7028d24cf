// Reads optimizers that C++'s torch::save wrote. The file is a TorchScript archive: modules without
// code, whose attributes are
//
//   pytorch_version  "1.5.0"
//   state            {"<address>": {"step": 3, "exp_avg": tensor, ...}}
//   param_groups     {"param_groups/size": tensor,
//                     "param_groups/0": {"params/size": tensor, "params/0": "<address>",
//                                        "options": {"lr": 0.1, ...}}}
//
// An address is that of a parameter in the process that saved. Options and fields have Python's
// names.
#include <ATen/core/Tensor.h>

#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include "accelerant/checkpoint/training_files.h"
#include "accelerant/core/error.h"
#include "accelerant/optim/optimizer_state.h"
#include "checkpoint/python_values.h"
#include "format/torch_archive.h"
#include "optim/python_optimizer_state.h"

namespace accelerant {
namespace {

using format::PlainValue;
using nlohmann::json;

class TorchOptimizerReader {
 public:
  explicit TorchOptimizerReader(const std::string& path) : path_(path) {}

  // In Python's structure.
  NamedState read() {
    const PlainValue file = format::read_module_archive(path_);
    python_.values = json{{"state", json::object()}, {"param_groups", json::array()}};
    try {
      file.at("pytorch_version");  // older files have another form
      const PlainValue& groups = file.at("param_groups");
      for (int64_t g = 0; g < size_of(groups, "param_groups"); ++g) {
        read_group(element_of(groups, "param_groups", g), file.at("state"));
      }
    } catch (const Error& error) {
      throw Error(ErrorDetails{
          .problem = path_ + " cannot be loaded",
          .expected = "a file written by C++'s torch::save(optimizer, path), since libtorch 1.5",
          .got = error.what()});
    }
    return std::move(python_);
  }

 private:
  static const PlainValue& element_of(const PlainValue& list, const std::string& name, int64_t i) {
    return list.at(name + "/" + std::to_string(i));
  }

  int64_t size_of(const PlainValue& list, const std::string& name) const {
    const at::Tensor size = checkpoint::view_of(list.at(name + "/size").as_tensor(), path_);
    if (size.numel() != 1 || size.scalar_type() != at::kLong) {
      throw Error("'" + name + "/size' is not an integer");
    }
    return size.item<int64_t>();
  }

  void read_group(const PlainValue& group, const PlainValue& states) {
    json converted = checkpoint::json_of(group.at("options"), path_);
    converted["params"] = json::array();
    for (int64_t i = 0; i < size_of(group, "params"); ++i) {
      converted["params"].push_back(next_);
      const std::string address = element_of(group, "params", i).as_string();
      if (const PlainValue* const state = states.as_dict().find(address)) read_state(*state);
      ++next_;
    }
    python_.values["param_groups"].push_back(std::move(converted));
  }

  void read_state(const PlainValue& state) {
    const std::string number = std::to_string(next_);
    const NamedState tree = checkpoint::tree_of(state, path_);
    python_.values["state"][number] = *tree.values;
    for (const auto& item : tree.tensors) {
      python_.tensors.insert("state." + number + "." + item.key(), item.value());
    }
  }

  const std::string& path_;
  int64_t next_ = 0;  // the number of the next parameter
  NamedState python_;
};

}  // namespace

void load_torch_optimizer(torch::optim::Optimizer& optimizer, const std::string& path) {
  const NamedState python = TorchOptimizerReader(path).read();
  try {
    const NamedState state = optim::from_python_state(python, optimizer, {});
    optim::load_optimizer_state_dict(optimizer, {}, state);
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
}

}  // namespace accelerant
