#include "format/unpickler.h"

#include <bit>
#include <limits>
#include <utility>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "core/utf8.h"
#include "format/little_endian.h"

namespace accelerant::format {

Unpickler::Unpickler(std::span<const std::byte> pickle, std::string where, FindStorage find_storage,
                     UnpicklerOptions options)
    : pickle_(pickle),
      where_(std::move(where)),
      find_storage_(std::move(find_storage)),
      options_(options),
      budget_(pickle.size()) {}

std::string Unpickler::place() const { return where_ + ", byte " + std::to_string(opcode_at_); }

void Unpickler::fail(const std::string& problem, const std::string& expected,
                     const std::string& got) const {
  throw Error(ErrorDetails{.problem = place() + ": " + problem, .expected = expected, .got = got});
}

PlainValue Unpickler::load() {
  do {
    opcode_at_ = at_;
  } while (step(static_cast<Opcode>(take_number<uint8_t>())));
  const Ref result = pop();
  if (!stack_.empty() || !marks_.empty() || at_ != pickle_.size()) {
    fail("the pickle ends with data left over");
  }
  return expand(nodes_, result, budget_, where_);
}

// --- Bytes ---------------------------------------------------------------------------------------

std::span<const std::byte> Unpickler::take(uint64_t size) {
  const uint64_t left = pickle_.size() - at_;
  if (size > left) {
    fail("the pickle is truncated", counted(size, "more byte"), std::to_string(left));
  }
  const auto bytes = pickle_.subspan(at_, size);
  at_ += size;
  return bytes;
}

template <class T>
T Unpickler::take_number() {
  return read_little_endian<T>(take(sizeof(T)).data());
}

std::string Unpickler::take_raw(uint64_t size) {
  const auto bytes = take(size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Unpickler::take_text(uint64_t size) {
  std::string text = take_raw(size);
  if (find_invalid_utf8(text, Surrogates::valid)) fail("a string is not UTF-8");
  return text;
}

std::string Unpickler::take_line() {
  std::size_t end = at_;
  while (end < pickle_.size() && pickle_[end] != std::byte{'\n'}) ++end;
  std::string line = take_text(end - at_);
  take(1);  // the line break
  return line;
}

// --- Stack ---------------------------------------------------------------------------------------

void Unpickler::push(Node node) {
  if (nodes_.size() == std::numeric_limits<Ref>::max()) fail("the pickle makes too many objects");
  nodes_.push_back(std::move(node));
  stack_.push_back(static_cast<Ref>(nodes_.size() - 1));
}

Ref Unpickler::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
    fail("the pickle uses a missing value");
  }
  return stack_.back();
}

Ref Unpickler::pop() {
  const Ref ref = top();
  stack_.pop_back();
  return ref;
}

std::vector<Ref> Unpickler::pop_to_mark() {
  if (marks_.empty()) fail("the pickle uses a missing mark");
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Ref> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

template <class T>
T& Unpickler::top_as(std::string_view what) {
  Node& node = nodes_[top()];
  T* const content = std::get_if<T>(&node);
  if (content == nullptr) {
    fail("the pickle adds items to something that is not a container", std::string(what),
         name_of(node));
  }
  return *content;
}

void Unpickler::make_tuple(std::size_t size) {
  TupleNode tuple;
  tuple.items.resize(size);
  for (std::size_t i = size; i-- > 0;) tuple.items[i] = pop();
  push(std::move(tuple));
}

void Unpickler::put(uint64_t index) { memo_[index] = top(); }

void Unpickler::get(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) {
    fail("the pickle recalls object " + std::to_string(index) + ", which it never stored");
  }
  push_ref(found->second);
}

// --- Opcodes -------------------------------------------------------------------------------------

bool Unpickler::step(Opcode opcode) {
  switch (opcode) {
    case Opcode::stop:
      return false;
    case Opcode::proto: {
      constexpr int newest = 5;
      const int protocol = take_number<uint8_t>();
      if (protocol > newest) fail("unknown pickle protocol", "at most 5", std::to_string(protocol));
      return true;
    }
    case Opcode::frame: {
      const auto size = take_number<uint64_t>();
      if (size > pickle_.size() - at_) fail("the pickle is truncated");
      return true;
    }
    case Opcode::bin_put:
      put(take_number<uint8_t>());
      return true;
    case Opcode::long_bin_put:
      put(take_number<uint32_t>());
      return true;
    case Opcode::memoize:
      put(memo_.size());
      return true;
    case Opcode::bin_get:
      get(take_number<uint8_t>());
      return true;
    case Opcode::long_bin_get:
      get(take_number<uint32_t>());
      return true;
    case Opcode::global: {
      const std::string module = take_line();
      push_global(module, take_line());
      return true;
    }
    case Opcode::stack_global:
      push_stack_global();
      return true;
    case Opcode::reduce:
      reduce();
      return true;
    case Opcode::build:
      build();
      return true;
    case Opcode::new_object:
      if (!options_.modules) break;
      make_object();
      return true;
    case Opcode::bin_pers_id:
      push_storage();
      return true;
    default:
      break;
  }
  if (step_of_values(opcode) || step_of_containers(opcode)) return true;
  fail("the pickle has an instruction that plain data does not need",
       "what torch.save writes for plain data",
       "opcode " + std::to_string(static_cast<int>(opcode)) + "; nothing was executed");
}

bool Unpickler::step_of_values(Opcode opcode) {
  switch (opcode) {
    case Opcode::none:
      push(std::monostate{});
      return true;
    case Opcode::new_true:
      push(true);
      return true;
    case Opcode::new_false:
      push(false);
      return true;
    case Opcode::bin_int:
      push(int64_t{take_number<int32_t>()});
      return true;
    case Opcode::bin_int1:
      push(int64_t{take_number<uint8_t>()});
      return true;
    case Opcode::bin_int2:
      push(int64_t{take_number<uint16_t>()});
      return true;
    case Opcode::long1:
      push_long(take_number<uint8_t>());
      return true;
    case Opcode::long4:
      push_long(take_number<uint32_t>());
      return true;
    case Opcode::bin_float: {
      const auto bits = __builtin_bswap64(take_number<uint64_t>());  // the only big-endian number
      push(std::bit_cast<double>(bits));
      return true;
    }
    case Opcode::bin_unicode:
      push(take_text(take_number<uint32_t>()));
      return true;
    case Opcode::short_bin_unicode:
    case Opcode::short_bin_string:  // Python 2's str, which torch.load decodes as UTF-8
      push(take_text(take_number<uint8_t>()));
      return true;
    case Opcode::bin_unicode8:
      push(take_text(take_number<uint64_t>()));
      return true;
    case Opcode::short_bin_bytes:
      push(PlainBytes{.bytes = take_raw(take_number<uint8_t>())});
      return true;
    case Opcode::bin_bytes:
      push(PlainBytes{.bytes = take_raw(take_number<uint32_t>())});
      return true;
    case Opcode::bin_bytes8:
      push(PlainBytes{.bytes = take_raw(take_number<uint64_t>())});
      return true;
    case Opcode::byte_array8:
      push(PlainBytes{.bytes = take_raw(take_number<uint64_t>()), .is_bytearray = true});
      return true;
    default:
      return false;
  }
}

bool Unpickler::step_of_containers(Opcode opcode) {
  switch (opcode) {
    case Opcode::mark:
      marks_.push_back(stack_.size());
      return true;
    case Opcode::empty_list:
      push(ListNode{});
      return true;
    case Opcode::empty_dict:
      push(DictNode{});
      return true;
    case Opcode::empty_set:
      push(SetNode{});
      return true;
    case Opcode::empty_tuple:
      push(TupleNode{});
      return true;
    case Opcode::tuple: {
      push(TupleNode{.items = pop_to_mark()});
      return true;
    }
    case Opcode::tuple1:
    case Opcode::tuple2:
    case Opcode::tuple3:
      make_tuple(1 + static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::tuple1));
      return true;
    case Opcode::append: {
      const Ref item = pop();
      top_as<ListNode>("list").items.push_back(item);
      return true;
    }
    case Opcode::appends: {
      const std::vector<Ref> added = pop_to_mark();
      std::vector<Ref>& items = top_as<ListNode>("list").items;
      items.insert(items.end(), added.begin(), added.end());
      return true;
    }
    case Opcode::add_items: {
      const std::vector<Ref> added = pop_to_mark();
      std::vector<Ref>& items = top_as<SetNode>("set").items;
      items.insert(items.end(), added.begin(), added.end());
      return true;
    }
    case Opcode::set_item: {
      const Ref value = pop();
      const Ref key = pop();
      std::vector<Ref>& items = top_as<DictNode>("dict").items;
      items.push_back(key);
      items.push_back(value);
      return true;
    }
    case Opcode::set_items: {
      const std::vector<Ref> added = pop_to_mark();
      if (added.size() % 2 != 0) fail("a dict gets a key without a value");
      std::vector<Ref>& items = top_as<DictNode>("dict").items;
      items.insert(items.end(), added.begin(), added.end());
      return true;
    }
    default:
      return false;
  }
}

// An integer in as few bytes as it needs, two's complement.
void Unpickler::push_long(uint64_t size) {
  const auto bytes = take(size);
  const bool negative = size > 0 && (std::to_integer<int>(bytes.back()) & 0x80) != 0;
  const std::byte filler{static_cast<unsigned char>(negative ? 0xff : 0)};
  uint64_t value = negative ? ~uint64_t{0} : 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i < sizeof(value)) {
      value &= ~(uint64_t{0xff} << (8 * i));
      value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    } else if (bytes[i] != filler) {
      fail("an integer is too large", "at most 64 bits");
    }
  }
  const auto number = std::bit_cast<int64_t>(value);
  if ((number < 0) != negative) fail("an integer is too large", "at most 64 bits");
  push(number);
}

}  // namespace accelerant::format
