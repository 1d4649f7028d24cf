#include <torch/optim/optimizer.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/checkpoint/training_files.h"
#include "accelerant/core/error.h"
#include "accelerant/optim/optimizer_state.h"
#include "checkpoint/python_values.h"
#include "core/atomic_file.h"
#include "format/torch_archive.h"
#include "optim/python_optimizer_state.h"

namespace accelerant {
namespace {

using checkpoint::json_of;
using checkpoint::plain_tensor;
using checkpoint::plain_value;
using format::PlainDict;
using format::PlainValue;
using nlohmann::json;

constexpr const char* kScalerKeys[] = {"scale", "growth_factor", "backoff_factor",
                                       "growth_interval", "_growth_tracker"};

void write(const PlainValue& value, const std::string& path) {
  format::AtomicFile file(path);
  format::write_torch_archive(value, file);
  file.commit();
}

PlainValue read_dict(const std::string& path, const char* expected) {
  PlainValue value = format::read_torch_archive(path);
  if (value.kind() == PlainValue::Kind::dict) return value;
  throw Error(ErrorDetails{.problem = path + " cannot be loaded",
                           .expected = expected,
                           .got = "a Python " + std::string(format::name_of(value.kind()))});
}

// Adds the name of the file to any error about its content.
template <class F>
void naming(const std::string& path, F&& load) {
  try {
    load();
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
}

// --- Optimizers ----------------------------------------------------------------------------------

// "state.3.exp_avg" and "state.3.old_dirs.7".
struct StatePath {
  int64_t parameter = 0;
  std::string field = {};
  std::optional<std::size_t> element = {};
};

std::size_t number_in(std::string_view text) {
  std::size_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

StatePath split_path(const std::string& path) {
  std::vector<std::string> parts = {""};
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  StatePath split{.parameter = static_cast<int64_t>(number_in(parts.at(1))), .field = parts.at(2)};
  if (parts.size() > 3) split.element = number_in(parts[3]);
  return split;
}

PlainValue python_group(const json& group) {
  PlainValue converted = plain_value(group);
  PlainDict& dict = std::get<PlainDict>(converted.content());
  // A tuple in Python, and the only one where the difference could matter to a program.
  if (PlainValue* const betas = dict.find("betas")) {
    *betas = format::PlainTuple{.items = betas->as_list()};
  }
  return converted;
}

PlainValue python_form(const NamedState& python) {
  std::map<int64_t, PlainDict> entries;  // in the order of the parameters
  for (const auto& item : python.values->at("state").items()) {
    const PlainValue entry = plain_value(item.value());
    entries.emplace(static_cast<int64_t>(number_in(item.key())), entry.as_dict());
  }
  for (const auto& item : python.tensors) {
    const StatePath path = split_path(item.key());
    PlainDict& entry = entries[path.parameter];
    PlainValue tensor = plain_tensor(item.value(), "The tensor '" + item.key() + "'");
    if (path.element) {
      auto& list = std::get<format::PlainList>(entry.find(path.field)->content());
      list.at(*path.element) = std::move(tensor);
    } else {
      entry.set(path.field, std::move(tensor));
    }
  }
  PlainDict state;
  for (auto& [parameter, entry] : entries) {
    state.items.push_back({.key = parameter, .value = std::move(entry)});
  }
  format::PlainList groups;
  for (const json& group : python.values->at("param_groups")) groups.push_back(python_group(group));
  PlainDict whole;
  whole.set("state", std::move(state));
  whole.set("param_groups", std::move(groups));
  return whole;
}

}  // namespace

void save_python_optimizer(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                           const std::string& path) {
  write(python_form(optim::to_python_state(optim::optimizer_state_dict(optimizer, names))), path);
}

void load_python_optimizer(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                           const std::string& path) {
  const PlainValue file = read_dict(path, "a dict, as in torch.save(optimizer.state_dict(), path)");
  const NamedState python = checkpoint::tree_of(file, path);
  naming(path, [&] {
    optim::load_optimizer_state_dict(optimizer, names,
                                     optim::from_python_state(python, optimizer, names));
  });
}

// --- Scalers -------------------------------------------------------------------------------------

void save_python_scaler(const GradScaler& scaler, const std::string& path) {
  const json state = scaler.state_dict();
  PlainDict python;
  if (scaler.is_enabled()) {
    for (const char* const key : kScalerKeys) python.set(key, plain_value(state.at(key)));
  }
  write(std::move(python), path);
}

void load_python_scaler(GradScaler& scaler, const std::string& path) {
  const json state =
      json_of(read_dict(path, "a dict, as in torch.save(scaler.state_dict(), path)"), path);
  naming(path, [&] { scaler.load_state_dict(state); });
}

}  // namespace accelerant
