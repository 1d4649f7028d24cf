// A machine that executes pickles, limited to what builds plain data. It follows torch's own
// weights_only unpickler, and is stricter where that one accepts damaged files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/pickle_graph.h"
#include "format/pickle_opcodes.h"
#include "format/plain_value.h"

namespace accelerant::format {

struct UnpicklerOptions {
  bool skip_numpy = false;  // numpy objects become None
  bool modules = false;     // TorchScript modules become dicts of their attributes
};

class Unpickler {
 public:
  // Finds a storage by its key; it must have `size` bytes.
  using FindStorage = std::function<std::shared_ptr<const PlainStorage>(
      const std::string& key, const std::string& location, uint64_t size)>;

  // Borrows the pickle. Messages begin with `where`, such as "model.pt: data.pkl".
  Unpickler(std::span<const std::byte> pickle, std::string where, FindStorage find_storage,
            UnpicklerOptions options = {});

  // Runs the whole pickle. Errors name the byte at which it cannot continue.
  PlainValue load();

 private:
  struct KnownStorage {
    StorageNode node;
    uint64_t size;
  };

  [[noreturn]] void fail(const std::string& problem, const std::string& expected = {},
                         const std::string& got = {}) const;
  std::string place() const;

  // Reading bytes of the pickle.
  std::span<const std::byte> take(uint64_t size);
  template <class T>
  T take_number();
  std::string take_line();
  std::string take_text(uint64_t size);
  std::string take_raw(uint64_t size);

  // The stack. Values below the last mark cannot be reached.
  void push(Node node);
  void push_ref(Ref ref) { stack_.push_back(ref); }
  Ref top() const;
  Ref pop();
  std::vector<Ref> pop_to_mark();
  template <class T>
  T& top_as(std::string_view what);

  bool step(Opcode opcode);  // false at the end
  bool step_of_values(Opcode opcode);
  bool step_of_containers(Opcode opcode);
  void make_tuple(std::size_t size);
  void push_long(uint64_t size);
  void put(uint64_t index);
  void get(uint64_t index);

  // Opcodes that name classes, refer to storages, or call functions (unpickler_calls.cpp).
  void push_global(const std::string& module, const std::string& name);
  void push_stack_global();
  void push_storage();
  void make_object();
  void build();
  void reduce();
  Node call(const GlobalNode& function, const std::vector<Ref>& arguments);
  template <class T>
  const T& argument(const std::vector<Ref>& arguments, std::size_t index,
                    std::string_view what) const;
  void expect_arguments(const std::vector<Ref>& arguments, std::size_t least,
                        std::size_t most) const;
  std::vector<int64_t> integers_of(Ref ref) const;
  Node rebuild_tensor(Global function, const std::vector<Ref>& arguments);
  Node rebuild_parameter(const std::vector<Ref>& arguments);
  void expect_no_hooks(const std::vector<Ref>& arguments, std::size_t index) const;
  Node make_device(const std::vector<Ref>& arguments) const;
  Node encode(const std::vector<Ref>& arguments);
  Node make_counter(const std::vector<Ref>& arguments);
  Node make_bytearray(const std::vector<Ref>& arguments);

  std::span<const std::byte> pickle_;
  std::string where_;
  FindStorage find_storage_;
  UnpicklerOptions options_;
  ExpansionBudget budget_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::deque<Node> nodes_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<uint64_t, Ref> memo_;
  std::unordered_map<std::string, KnownStorage> storages_;
};

template <class T>
const T& Unpickler::argument(const std::vector<Ref>& arguments, std::size_t index,
                             std::string_view what) const {
  const Node& node = nodes_[arguments.at(index)];
  const T* const value = std::get_if<T>(&node);
  if (value == nullptr) {
    fail("argument " + std::to_string(index + 1) + " has the wrong type", std::string(what),
         name_of(node));
  }
  return *value;
}

}  // namespace accelerant::format
