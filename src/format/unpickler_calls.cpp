// The opcodes that name classes and functions, refer to storages, or call functions, and what each
// would return.
#include <algorithm>
#include <utility>

#include "accelerant/core/error.h"
#include "core/utf8.h"
#include "format/unpickler.h"

namespace accelerant::format {

void Unpickler::push_stack_global() {
  const Ref name = pop();
  const Ref module = pop();
  const auto* const name_text = std::get_if<std::string>(&nodes_[name]);
  const auto* const module_text = std::get_if<std::string>(&nodes_[module]);
  if (name_text == nullptr || module_text == nullptr) fail("the name of a global is not a string");
  push_global(*module_text, *name_text);
}

void Unpickler::push_global(const std::string& module, const std::string& name) {
  std::optional<Node> node = find_global(module, name);
  if (!node && options_.modules) node = find_module_global(module, name);
  if (!node && options_.skip_numpy && is_of_numpy(module, name)) {
    node = GlobalNode{.name = Global::numpy};
  }
  if (!node) {
    throw Error(ErrorDetails{
        .problem = place() + ": the pickle uses a class or function that is not allowed",
        .expected = "tensors, torch's dtypes, devices and sizes, and containers",
        .got = module + "." + name,
        .hint = "nothing was executed; save plain data only, such as a state_dict()"});
  }
  push(std::move(*node));
}

// A tuple ("storage", type, key, location, number of elements) represents a storage.
void Unpickler::push_storage() {
  const Ref id = pop();
  const TupleNode* const tuple = std::get_if<TupleNode>(&nodes_[id]);
  if (tuple == nullptr || tuple->items.size() != 5) {
    fail("a persistent reference is not a storage", "a tuple of five items", name_of(nodes_[id]));
  }
  const std::vector<Ref>& parts = tuple->items;
  const std::string& what = argument<std::string>(parts, 0, "the string 'storage'");
  const GlobalNode type = argument<GlobalNode>(parts, 1, "a storage type");
  const std::string& key = argument<std::string>(parts, 2, "a string");
  const std::string& location = argument<std::string>(parts, 3, "a string");
  const int64_t numel = argument<int64_t>(parts, 4, "an integer");
  if (what != "storage" || type.name != Global::storage_type) {
    fail("a persistent reference is not a storage");
  }
  int64_t size = 0;
  if (numel < 0 ||
      __builtin_mul_overflow(numel, type.dtype == nullptr ? 1 : type.dtype->size, &size)) {
    fail("the size of storage '" + key + "' is impossible", {}, std::to_string(numel));
  }
  const auto known = storages_.find(key);
  if (known == storages_.end()) {
    const StorageNode node{.storage = find_storage_(key, location, static_cast<uint64_t>(size)),
                           .dtype = type.dtype};
    storages_.emplace(key, KnownStorage{.node = node, .size = static_cast<uint64_t>(size)});
    push(node);
    return;
  }
  const KnownStorage& first = known->second;
  if (first.node.dtype != type.dtype || first.size != static_cast<uint64_t>(size) ||
      first.node.storage->location() != location) {
    fail("storage '" + key + "' is described in two ways");
  }
  push(first.node);
}

// A module without attributes, which follow. Its class and code are never read.
void Unpickler::make_object() {
  const Ref arguments = pop();
  const Ref type = pop();
  const TupleNode* const tuple = std::get_if<TupleNode>(&nodes_[arguments]);
  const GlobalNode* const global = std::get_if<GlobalNode>(&nodes_[type]);
  if (tuple == nullptr || !tuple->items.empty() || global == nullptr ||
      global->name != Global::module) {
    fail("the pickle creates an object that is not a module",
         "a class of the archive without arguments",
         name_of(nodes_[type]) + " and " + name_of(nodes_[arguments]));
  }
  push(DictNode{.is_module = true});
}

// Sets the attributes of a module, or of an OrderedDict (state dicts of modules have one). Also
// takes the content of a skipped object.
void Unpickler::build() {
  const Ref state = pop();
  if (std::holds_alternative<SkippedNode>(nodes_[top()])) return;
  DictNode& dict = top_as<DictNode>("OrderedDict");
  const DictNode* const attributes = std::get_if<DictNode>(&nodes_[state]);
  if ((dict.kind != PlainDictKind::ordered && !dict.is_module) || attributes == nullptr) {
    fail("the pickle sets attributes of something that has none", "a dict for an OrderedDict",
         name_of(nodes_[state]));
  }
  for (std::size_t i = 0; i < attributes->items.size(); i += 2) {
    if (!std::holds_alternative<std::string>(nodes_[attributes->items[i]])) {
      fail("the name of an attribute is not a string");
    }
  }
  // Through a copy, as both may be the same dict; and charged to the budget, as a dict may be used
  // many times.
  const std::vector<Ref> added = attributes->items;
  budget_.take(added.size() * sizeof(Ref), where_);
  std::vector<Ref>& target = dict.is_module ? dict.items : dict.attributes;
  target.insert(target.end(), added.begin(), added.end());
}

void Unpickler::reduce() {
  const Ref arguments_ref = pop();
  const Ref function_ref = pop();
  const TupleNode* const arguments = std::get_if<TupleNode>(&nodes_[arguments_ref]);
  const GlobalNode* const function = std::get_if<GlobalNode>(&nodes_[function_ref]);
  if (arguments == nullptr || function == nullptr) {
    fail("the pickle calls something that is not a function", "a function and a tuple of arguments",
         name_of(nodes_[function_ref]) + " and " + name_of(nodes_[arguments_ref]));
  }
  push(call(*function, arguments->items));
}

Node Unpickler::call(const GlobalNode& function, const std::vector<Ref>& arguments) {
  switch (function.name) {
    case Global::ordered_dict:
      expect_arguments(arguments, 0, 0);
      return DictNode{.kind = PlainDictKind::ordered};
    case Global::counter:
      return make_counter(arguments);
    case Global::set: {
      expect_arguments(arguments, 1, 1);
      const ListNode& list = argument<ListNode>(arguments, 0, "a list");
      budget_.take(list.items.size() * sizeof(Ref), where_);
      return SetNode{.items = list.items};
    }
    case Global::bytearray:
      return make_bytearray(arguments);
    case Global::bytes:  // only empty bytes are written this way
      expect_arguments(arguments, 0, 0);
      return PlainBytes{};
    case Global::encode:
      return encode(arguments);
    case Global::size: {
      expect_arguments(arguments, 1, 1);
      integers_of(arguments[0]);
      const TupleNode& tuple = argument<TupleNode>(arguments, 0, "a tuple");
      budget_.take(tuple.items.size() * sizeof(Ref), where_);
      return TupleNode{.items = tuple.items, .is_size = true};
    }
    case Global::device:
      return make_device(arguments);
    case Global::rebuild_tensor:
    case Global::rebuild_tensor_v2:
    case Global::rebuild_tensor_v3:
      return rebuild_tensor(function.name, arguments);
    case Global::rebuild_parameter:
      return rebuild_parameter(arguments);
    case Global::numpy:
      return SkippedNode{};
    case Global::build_list: {
      expect_arguments(arguments, 1, 1);
      const ListNode& list = argument<ListNode>(arguments, 0, "a list");
      budget_.take(list.items.size() * sizeof(Ref), where_);
      return list;
    }
    case Global::module:
      fail("the pickle calls the class of a module", "an object without arguments");
    case Global::storage_type:
      break;
  }
  fail("the pickle creates a storage itself", "a reference to one");
}

void Unpickler::expect_arguments(const std::vector<Ref>& arguments, std::size_t least,
                                 std::size_t most) const {
  if (arguments.size() >= least && arguments.size() <= most) return;
  fail(
      "a call has the wrong number of arguments",
      least == most ? std::to_string(least) : std::to_string(least) + " to " + std::to_string(most),
      std::to_string(arguments.size()));
}

std::vector<int64_t> Unpickler::integers_of(Ref ref) const {
  const TupleNode* const tuple = std::get_if<TupleNode>(&nodes_[ref]);
  if (tuple == nullptr) fail("sizes or strides are not a tuple", "a tuple", name_of(nodes_[ref]));
  // Far more than a tensor can have. Without a limit, a long tuple used for many tensors would be
  // read that many times.
  constexpr std::size_t most = 1024;
  if (tuple->items.size() > most) fail("a shape has too many dimensions");
  std::vector<int64_t> numbers;
  for (std::size_t i = 0; i < tuple->items.size(); ++i) {
    numbers.push_back(argument<int64_t>(tuple->items, i, "an integer"));
  }
  return numbers;
}

// (storage, offset, sizes, strides); v2 and v3 add requires_grad and hooks, and v3 the dtype. Both
// may end with a dict of flags.
Node Unpickler::rebuild_tensor(Global function, const std::vector<Ref>& arguments) {
  const bool is_v1 = function == Global::rebuild_tensor;
  const bool is_v3 = function == Global::rebuild_tensor_v3;
  const std::size_t least = is_v1 ? 4 : is_v3 ? 7 : 6;
  expect_arguments(arguments, least, is_v1 ? least : least + 1);
  const StorageNode& storage = argument<StorageNode>(arguments, 0, "a storage");
  auto tensor = std::make_unique<PlainTensor>();
  tensor->storage = storage.storage;
  tensor->storage_offset = argument<int64_t>(arguments, 1, "an integer");
  tensor->shape = integers_of(arguments[2]);
  tensor->strides = integers_of(arguments[3]);
  // As in torch, a tensor of an untyped storage has bytes as elements unless it says otherwise.
  tensor->dtype = storage.dtype == nullptr ? "U8" : std::string(storage.dtype->name);
  if (!is_v1) {
    tensor->requires_grad = argument<bool>(arguments, 4, "a bool");
    expect_no_hooks(arguments, 5);
  }
  if (is_v3) tensor->dtype = argument<PlainDtype>(arguments, 6, "a dtype").name;
  if (arguments.size() > least) {
    const DictNode* const flags = std::get_if<DictNode>(&nodes_[arguments[least]]);
    const bool is_none = std::holds_alternative<std::monostate>(nodes_[arguments[least]]);
    if (!is_none && (flags == nullptr || !flags->items.empty())) {
      fail("a tensor is a conjugate or negative view", "a plain tensor", {});
    }
  }
  check_tensor(*tensor, place() + ": the tensor");
  budget_.take(tensor->shape.size() * 2 * sizeof(int64_t), where_);
  return tensor;
}

// (tensor, requires_grad, hooks)
Node Unpickler::rebuild_parameter(const std::vector<Ref>& arguments) {
  expect_arguments(arguments, 3, 3);
  const auto& data = argument<std::unique_ptr<PlainTensor>>(arguments, 0, "a tensor");
  auto parameter = std::make_unique<PlainTensor>(*data);
  parameter->is_parameter = true;
  parameter->requires_grad = argument<bool>(arguments, 1, "a bool");
  expect_no_hooks(arguments, 2);
  check_tensor(*parameter, place() + ": the parameter");
  budget_.take(parameter->shape.size() * 2 * sizeof(int64_t), where_);
  return parameter;
}

// Old versions of torch wrote hooks, which are functions.
void Unpickler::expect_no_hooks(const std::vector<Ref>& arguments, std::size_t index) const {
  if (!argument<DictNode>(arguments, index, "an OrderedDict").items.empty()) {
    fail("a tensor has backward hooks", "none");
  }
}

// (type) or (type, index)
Node Unpickler::make_device(const std::vector<Ref>& arguments) const {
  expect_arguments(arguments, 1, 2);
  const std::string& type = argument<std::string>(arguments, 0, "a string");
  const bool is_name = !type.empty() && type.size() < 32 && std::ranges::all_of(type, [](char c) {
    return (c >= 'a' && c <= 'z') || c == '_';
  });
  if (!is_name) fail("a device has an invalid type", "a name such as cuda", "'" + type + "'");
  if (arguments.size() == 1) return PlainDevice{.name = type};
  constexpr int64_t most = 127;  // torch keeps it in a byte
  const int64_t index = argument<int64_t>(arguments, 1, "an integer");
  if (index < 0 || index > most) fail("a device has an invalid index", {}, std::to_string(index));
  return PlainDevice{.name = type + ":" + std::to_string(index)};
}

// Protocol 2 has no bytes; they are written as text with the same code points.
Node Unpickler::encode(const std::vector<Ref>& arguments) {
  expect_arguments(arguments, 2, 2);
  const std::string& text = argument<std::string>(arguments, 0, "a string");
  const std::string& encoding = argument<std::string>(arguments, 1, "a string");
  if (encoding != "latin1") fail("bytes have an unknown encoding", "latin1", encoding);
  budget_.take(text.size(), where_);
  std::optional<std::string> bytes = latin1_of_utf8(text);
  if (!bytes) fail("text that encodes bytes has a character above 255");
  return PlainBytes{.bytes = std::move(*bytes)};
}

Node Unpickler::make_counter(const std::vector<Ref>& arguments) {
  expect_arguments(arguments, 0, 1);
  DictNode counter{.kind = PlainDictKind::counter};
  if (!arguments.empty()) {
    const DictNode& counts = argument<DictNode>(arguments, 0, "a dict");
    budget_.take(counts.items.size() * sizeof(Ref), where_);
    counter.items = counts.items;
  }
  return counter;
}

Node Unpickler::make_bytearray(const std::vector<Ref>& arguments) {
  expect_arguments(arguments, 0, 1);
  PlainBytes result{.is_bytearray = true};
  if (!arguments.empty()) {
    const PlainBytes& bytes = argument<PlainBytes>(arguments, 0, "bytes");
    budget_.take(bytes.bytes.size(), where_);
    result.bytes = bytes.bytes;
  }
  return result;
}

}  // namespace accelerant::format
