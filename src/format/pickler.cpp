#include "format/pickler.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <unordered_set>

#include "accelerant/core/error.h"
#include "core/utf8.h"
#include "format/little_endian.h"

namespace accelerant::format {
namespace {

constexpr uint8_t protocol = 2;
constexpr const char* kWritten = "the value to write";

[[noreturn]] void refuse(const std::string& problem, const std::string& expected = {},
                         const std::string& got = {}, const std::string& hint = {}) {
  throw Error(ErrorDetails{.problem = std::string(kWritten) + " " + problem,
                           .expected = expected,
                           .got = got,
                           .hint = hint});
}

std::string key_of(const PlainValue& value) {
  std::optional<std::string> key = dict_key(value);
  if (!key) {
    refuse("has a dict or set with an unhashable key",
           "None, a number other than nan, a string, bytes or a tuple of these",
           std::string(name_of(value.kind())));
  }
  return std::move(*key);
}

}  // namespace

std::string Pickler::dump(const PlainValue& value) {
  put_number(Opcode::proto, protocol);
  save(value);
  put(Opcode::stop);
  return std::move(out_);
}

template <class T>
void Pickler::put_number(Opcode opcode, T value) {
  put(opcode);
  append_little_endian(out_, value);
}

// --- Objects written once ---------------------------------------------------------------

bool Pickler::recall(const std::string& name) {
  const auto found = memo_.find(name);
  if (found == memo_.end()) return false;
  if (found->second <= 0xff) {
    put_number(Opcode::bin_get, static_cast<uint8_t>(found->second));
  } else {
    put_number(Opcode::long_bin_get, found->second);
  }
  return true;
}

void Pickler::remember(const std::string& name) {
  const auto index = static_cast<uint32_t>(memo_.size());
  memo_.emplace(name, index);
  if (index <= 0xff) {
    put_number(Opcode::bin_put, static_cast<uint8_t>(index));
  } else {
    put_number(Opcode::long_bin_put, index);
  }
}

void Pickler::global(std::string_view module, std::string_view name) {
  const std::string line = std::string(module) + "\n" + std::string(name) + "\n";
  const std::string memo_name = "global " + line;
  if (recall(memo_name)) return;
  put(Opcode::global);
  out_ += line;
  remember(memo_name);
}

void Pickler::save_text(std::string_view text) {
  // Names repeat often; long texts do not, and would only be stored twice.
  constexpr std::size_t longest_remembered = 128;
  const std::string memo_name = "text " + std::string(text.substr(0, longest_remembered));
  const bool is_short = text.size() <= longest_remembered;
  if (is_short && recall(memo_name)) return;
  if (find_invalid_utf8(text, Surrogates::valid)) {
    refuse("has a string that is not UTF-8", {}, {}, "use PlainBytes for bytes");
  }
  if (text.size() > std::numeric_limits<uint32_t>::max()) refuse("has a string of more than 4 GiB");
  put_number(Opcode::bin_unicode, static_cast<uint32_t>(text.size()));
  out_ += text;
  if (is_short && memo_.size() < std::numeric_limits<uint32_t>::max()) remember(memo_name);
}

// --- Values --------------------------------------------------------------------------------------

void Pickler::save(const PlainValue& value) {
  if (depth_ == deepest_nesting) refuse_nesting(kWritten);
  ++depth_;
  std::visit([&](const auto& content) { save(content); }, value.content());
  --depth_;
}

void Pickler::save(int64_t value) {
  if (value >= 0 && value <= 0xff) {
    put_number(Opcode::bin_int1, static_cast<uint8_t>(value));
  } else if (value >= 0 && value <= 0xffff) {
    put_number(Opcode::bin_int2, static_cast<uint16_t>(value));
  } else if (value == static_cast<int32_t>(value)) {
    put_number(Opcode::bin_int, static_cast<int32_t>(value));
  } else {
    put_number(Opcode::long1, static_cast<uint8_t>(sizeof(value)));
    append_little_endian(out_, value);
  }
}

void Pickler::save(double value) {
  put_number(Opcode::bin_float, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void Pickler::save(const std::string& text) { save_text(text); }

void Pickler::save(const PlainBytes& bytes) {
  // Protocol 2 has no bytes type; this is how Python writes them.
  if (bytes.is_bytearray) global("__builtin__", "bytearray");
  global("_codecs", "encode");
  save_text(utf8_of_latin1(bytes.bytes));
  save_text("latin1");
  put(Opcode::tuple2);
  put(Opcode::reduce);
  if (bytes.is_bytearray) {
    put(Opcode::tuple1);
    put(Opcode::reduce);
  }
}

void Pickler::save(const PlainDtype& dtype) {
  const TorchDtype* const known = find_dtype(dtype.name);
  if (known == nullptr)
    refuse("has an unknown dtype", "a name such as F32", "'" + dtype.name + "'");
  global("torch", known->python);
}

void Pickler::save(const PlainDevice& device) {
  const std::size_t colon = device.name.find(':');
  const std::string type = device.name.substr(0, colon);
  int64_t index = -1;
  bool is_good = !type.empty();
  if (colon != std::string::npos) {
    const char* const end = device.name.data() + device.name.size();
    const auto [read_to, error] = std::from_chars(device.name.data() + colon + 1, end, index);
    is_good = is_good && error == std::errc{} && read_to == end && index >= 0;
  }
  if (!is_good) refuse("has an invalid device", "a name such as cuda:0", "'" + device.name + "'");
  global("torch", "device");
  save_text(type);
  if (index >= 0) save(index);
  put(index >= 0 ? Opcode::tuple2 : Opcode::tuple1);
  put(Opcode::reduce);
}

// --- Containers ----------------------------------------------------------------------------------

void Pickler::begin_tuple(std::size_t size) {
  if (size > 3) put(Opcode::mark);
}

void Pickler::end_tuple(std::size_t size) {
  constexpr Opcode by_size[] = {Opcode::empty_tuple, Opcode::tuple1, Opcode::tuple2,
                                Opcode::tuple3};
  put(size > 3 ? Opcode::tuple : by_size[size]);
}

void Pickler::save_tuple(const std::vector<PlainValue>& items) {
  begin_tuple(items.size());
  for (const PlainValue& item : items) save(item);
  end_tuple(items.size());
}

void Pickler::save_integers(const std::vector<int64_t>& numbers) {
  begin_tuple(numbers.size());
  for (const int64_t number : numbers) save(number);
  end_tuple(numbers.size());
}

void Pickler::save_list(const std::vector<PlainValue>& items) {
  put(Opcode::empty_list);
  if (items.empty()) return;
  put(Opcode::mark);
  for (const PlainValue& item : items) save(item);
  put(Opcode::appends);
}

void Pickler::save(const PlainList& list) { save_list(list); }

void Pickler::save(const PlainTuple& tuple) {
  if (!tuple.is_size) return save_tuple(tuple.items);
  for (const PlainValue& item : tuple.items) {
    if (item.kind() != PlainValue::Kind::integer) {
      refuse("has a torch.Size with items other than integers");
    }
  }
  global("torch", "Size");
  save_tuple(tuple.items);
  put(Opcode::tuple1);
  put(Opcode::reduce);
}

void Pickler::save(const PlainSet& set) {
  std::unordered_set<std::string> keys;
  for (const PlainValue& item : set.items) {
    if (!keys.insert(key_of(item)).second) refuse("has a set with the same item twice");
  }
  global("__builtin__", "set");
  save_list(set.items);
  put(Opcode::tuple1);
  put(Opcode::reduce);
}

void Pickler::save_items(const std::vector<PlainItem>& items) {
  if (items.empty()) return;
  std::unordered_set<std::string> keys;
  put(Opcode::mark);
  for (const PlainItem& item : items) {
    if (!keys.insert(key_of(item.key)).second) refuse("has a dict with the same key twice");
    save(item.key);
    save(item.value);
  }
  put(Opcode::set_items);
}

void Pickler::save_empty_ordered_dict() {
  global("collections", "OrderedDict");
  put(Opcode::empty_tuple);
  put(Opcode::reduce);
}

void Pickler::save(const PlainDict& dict) {
  if (dict.kind == PlainDictKind::ordered) {
    save_empty_ordered_dict();
  } else {
    if (!dict.attributes.empty()) refuse("has attributes on a dict that is not ordered");
    if (dict.kind == PlainDictKind::counter) global("collections", "Counter");
    put(Opcode::empty_dict);
  }
  save_items(dict.items);
  if (dict.kind == PlainDictKind::counter) {
    put(Opcode::tuple1);
    put(Opcode::reduce);
  }
  if (!dict.attributes.empty()) {
    for (const PlainItem& item : dict.attributes) {
      if (item.key.kind() != PlainValue::Kind::string)
        refuse("has an attribute whose name is not a string");
    }
    put(Opcode::empty_dict);
    save_items(dict.attributes);
    put(Opcode::build);
  }
}

// --- Tensors -------------------------------------------------------------------------------------

void Pickler::save(const PlainTensor& tensor) {
  check_tensor(tensor, std::string(kWritten) + " has a tensor that");
  if (!tensor.is_parameter) return save_tensor_data(tensor, tensor.requires_grad);
  global("torch._utils", "_rebuild_parameter");
  save_tensor_data(tensor, false);
  save(tensor.requires_grad);
  save_empty_ordered_dict();
  put(Opcode::tuple3);
  put(Opcode::reduce);
}

void Pickler::save_tensor_data(const PlainTensor& tensor, bool requires_grad) {
  const TorchDtype& dtype = *find_dtype(tensor.dtype);
  const bool is_typed = !dtype.storage.empty();
  if (!is_typed && requires_grad) {
    refuse("has a tensor that torch.load cannot read", "a tensor that does not require a gradient",
           "a tensor of type " + tensor.dtype + " that does", "make it a parameter");
  }
  global("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  put(Opcode::mark);
  save_storage(tensor, dtype);
  save(tensor.storage_offset);
  save_integers(tensor.shape);
  save_integers(tensor.strides);
  save(requires_grad);
  save_empty_ordered_dict();  // hooks
  if (!is_typed) global("torch", dtype.python);
  put(Opcode::tuple);
  put(Opcode::reduce);
}

void Pickler::save_storage(const PlainTensor& tensor, const TorchDtype& dtype) {
  const PlainStorage& storage = *tensor.storage;
  const TorchDtype* const type = dtype.storage.empty() ? nullptr : &dtype;
  const auto [known, is_new] =
      known_storages_.try_emplace(&storage, KnownStorage{.key = storages_.size(), .dtype = type});
  if (is_new) storages_.push_back(&storage);
  if (known->second.dtype != type) {
    refuse(
        "has tensors that view the same storage as different types",
        known->second.dtype == nullptr ? "an untyped one" : std::string(known->second.dtype->name),
        tensor.dtype, "copy one of them; Python cannot save this either");
  }
  const uint64_t element_size = type == nullptr ? 1 : static_cast<uint64_t>(dtype.size);
  if (storage.size() % element_size != 0) {
    refuse("has a storage whose size is not a multiple of its element size",
           "a multiple of " + std::to_string(element_size), std::to_string(storage.size()));
  }
  put(Opcode::mark);
  save_text("storage");
  if (type == nullptr) {
    global("torch.storage", "UntypedStorage");
  } else {
    global("torch", dtype.storage);
  }
  save_text(std::to_string(known->second.key));
  save_text(storage.location());
  save(static_cast<int64_t>(storage.size() / element_size));
  put(Opcode::tuple);
  put(Opcode::bin_pers_id);
}

}  // namespace accelerant::format
