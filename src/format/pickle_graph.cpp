#include "format/pickle_graph.h"

#include <string_view>
#include <unordered_map>
#include <utility>

#include "accelerant/core/error.h"

namespace accelerant::format {
namespace {

const std::unordered_map<std::string_view, Global>& functions() {
  static const std::unordered_map<std::string_view, Global> table = {
      {"collections.OrderedDict", Global::ordered_dict},
      {"collections.Counter", Global::counter},
      {"builtins.set", Global::set},
      {"builtins.bytearray", Global::bytearray},
      {"builtins.bytes", Global::bytes},
      {"_codecs.encode", Global::encode},
      {"torch.Size", Global::size},
      {"torch.device", Global::device},
      {"torch._utils._rebuild_tensor", Global::rebuild_tensor},
      {"torch._utils._rebuild_tensor_v2", Global::rebuild_tensor_v2},
      {"torch._utils._rebuild_tensor_v3", Global::rebuild_tensor_v3},
      {"torch._utils._rebuild_parameter", Global::rebuild_parameter},
  };
  return table;
}

class Expansion {
 public:
  Expansion(const std::deque<Node>& nodes, ExpansionBudget& budget, const std::string& where)
      : nodes_(nodes), budget_(budget), where_(where), open_(nodes.size(), false) {}

  PlainValue value_of(Ref ref) {
    if (open_[ref]) {
      throw Error(ErrorDetails{.problem = where_ + " contains an object that contains itself",
                               .expected = "a tree of plain data"});
    }
    if (depth_ == deepest_nesting) refuse_nesting(where_);
    budget_.take(sizeof(PlainValue), where_);
    open_[ref] = true;
    ++depth_;
    PlainValue value = std::visit([&](const auto& node) { return expand(node); }, nodes_[ref]);
    --depth_;
    open_[ref] = false;
    return value;
  }

 private:
  PlainValue expand(std::monostate) { return {}; }
  PlainValue expand(bool value) { return value; }
  PlainValue expand(int64_t value) { return value; }
  PlainValue expand(double value) { return value; }
  PlainValue expand(const std::string& text) {
    budget_.take(text.size(), where_);
    return text;
  }
  PlainValue expand(const PlainBytes& bytes) {
    budget_.take(bytes.bytes.size(), where_);
    return bytes;
  }
  PlainValue expand(const PlainDtype& dtype) { return dtype; }
  PlainValue expand(const PlainDevice& device) { return device; }
  PlainValue expand(const std::unique_ptr<PlainTensor>& tensor) {
    budget_.take(tensor->shape.size() * 2 * sizeof(int64_t), where_);
    return *tensor;
  }
  PlainValue expand(const ListNode& list) { return values_of(list.items); }
  PlainValue expand(const TupleNode& tuple) {
    return PlainTuple{.items = values_of(tuple.items), .is_size = tuple.is_size};
  }
  PlainValue expand(const SetNode& set) {
    PlainSet result;
    std::unordered_map<std::string, std::size_t> places;
    for (const Ref ref : set.items) {
      PlainValue item = value_of(ref);
      if (places.try_emplace(key_of(item), places.size()).second) {
        result.items.push_back(std::move(item));
      }
    }
    return result;
  }
  PlainValue expand(const DictNode& dict) {
    return PlainDict{
        .kind = dict.kind, .items = items_of(dict.items), .attributes = items_of(dict.attributes)};
  }
  PlainValue expand(const StorageNode&) { refuse("a storage outside a tensor"); }
  PlainValue expand(const GlobalNode&) { refuse("a class or function as a value"); }
  PlainValue expand(const SkippedNode&) { return {}; }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorDetails{.problem = where_ + " contains something other than plain data",
                             .expected = "numbers, strings, containers and tensors",
                             .got = what});
  }

  std::string key_of(const PlainValue& value) const {
    std::optional<std::string> key = dict_key(value);
    if (!key) {
      throw Error(ErrorDetails{.problem = where_ + " has a dict or set with an unhashable key",
                               .expected =
                                   "None, a number other than nan, a string, bytes or a tuple "
                                   "of these",
                               .got = std::string(name_of(value.kind()))});
    }
    return std::move(*key);
  }

  std::vector<PlainValue> values_of(const std::vector<Ref>& refs) {
    std::vector<PlainValue> values;
    for (const Ref ref : refs) values.push_back(value_of(ref));
    return values;
  }

  // As in Python, a repeated key keeps its position and its first form, and gets the new value.
  std::vector<PlainItem> items_of(const std::vector<Ref>& refs) {
    std::vector<PlainItem> items;
    std::unordered_map<std::string, std::size_t> places;
    for (std::size_t i = 0; i + 1 < refs.size(); i += 2) {
      PlainItem item{.key = value_of(refs[i]), .value = value_of(refs[i + 1])};
      const auto [place, is_new] = places.try_emplace(key_of(item.key), items.size());
      if (is_new) {
        items.push_back(std::move(item));
      } else {
        items[place->second].value = std::move(item.value);
      }
    }
    return items;
  }

  const std::deque<Node>& nodes_;
  ExpansionBudget& budget_;
  const std::string& where_;
  std::vector<bool> open_;  // nodes being expanded
  int depth_ = 0;
};

}  // namespace

std::optional<Node> find_global(const std::string& module, const std::string& name) {
  // Protocol 2 uses the names of Python 2.
  const std::string full = (module == "__builtin__" ? "builtins" : module) + "." + name;
  if (const auto found = functions().find(full); found != functions().end()) {
    return GlobalNode{.name = found->second};
  }
  if (full == "torch.storage.UntypedStorage") return GlobalNode{.name = Global::storage_type};
  if (module == "torch") {
    if (const TorchDtype* const dtype = find_storage_type(name)) {
      return GlobalNode{.name = Global::storage_type, .dtype = dtype};
    }
    if (const TorchDtype* const dtype = find_python_dtype(name)) {
      return PlainDtype{.name = std::string(dtype->name)};
    }
  }
  return std::nullopt;
}

std::optional<Node> find_module_global(const std::string& module, const std::string& name) {
  if (module == "__torch__" || module.starts_with("__torch__.")) {
    return GlobalNode{.name = Global::module};
  }
  if (module == "torch.jit._pickle" && name.starts_with("build_") && name.ends_with("list")) {
    return GlobalNode{.name = Global::build_list};
  }
  return std::nullopt;
}

bool is_of_numpy(const std::string& module, const std::string& name) {
  // numpy 2 renamed numpy.core.
  if (module == "numpy._core.multiarray" || module == "numpy.core.multiarray") {
    return name == "_reconstruct" || name == "scalar";
  }
  return module == "numpy.dtypes" || (module == "numpy" && (name == "ndarray" || name == "dtype"));
}

std::string name_of(const Node& node) {
  if (std::holds_alternative<StorageNode>(node)) return "a storage";
  if (std::holds_alternative<GlobalNode>(node)) return "a class or function";
  if (std::holds_alternative<SkippedNode>(node)) return "a numpy object";
  // The rest are the alternatives of PlainValue, in the same order.
  return std::string(name_of(static_cast<PlainValue::Kind>(node.index())));
}

// A value takes at least one byte of pickle, so data without shared parts always fits.
constexpr uint64_t most_bytes_for_one = 512;
static_assert(most_bytes_for_one > 2 * sizeof(PlainValue));
constexpr uint64_t free_bytes = uint64_t{16} << 20;

ExpansionBudget::ExpansionBudget(uint64_t pickle_bytes)
    : left_(most_bytes_for_one * pickle_bytes + free_bytes) {}

void ExpansionBudget::take(uint64_t bytes, const std::string& where) {
  if (bytes > left_) {
    throw Error(
        ErrorDetails{.problem = where + " would expand to many times its size",
                     .expected = "few shared objects",
                     .hint = "the file is damaged or was made to exhaust memory; do not load it"});
  }
  left_ -= bytes;
}

PlainValue expand(const std::deque<Node>& nodes, Ref root, ExpansionBudget& budget,
                  const std::string& where) {
  return Expansion(nodes, budget, where).value_of(root);
}

}  // namespace accelerant::format
