// What an unpickler builds: objects that refer to each other, among them the few classes and
// functions that a pickle of plain data may name. They may share parts and even contain themselves,
// so they are kept in one list and refer to each other by number. Destroying the list then needs no
// recursion, however deep the objects are nested.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "format/plain_value.h"

namespace accelerant::format {

// The number of a node.
using Ref = uint32_t;

// The functions and classes that a pickle may name. None is ever called; the unpickler knows what
// each would give.
enum class Global {
  ordered_dict,
  counter,
  set,
  bytearray,
  bytes,
  encode,
  size,
  device,
  rebuild_tensor,
  rebuild_tensor_v2,
  rebuild_tensor_v3,
  rebuild_parameter,
  storage_type,
  numpy,       // whatever of numpy: only where it is to be skipped
  module,      // a class of a TorchScript archive: only where modules are read
  build_list,  // torch.jit's lists of numbers and tensors: as above
};

struct GlobalNode {
  Global name = {};
  const TorchDtype* dtype = nullptr;  // of a storage_type; null: torch.storage.UntypedStorage
};
struct ListNode {
  std::vector<Ref> items = {};
};
struct TupleNode {
  std::vector<Ref> items = {};
  bool is_size = false;
};
struct SetNode {
  std::vector<Ref> items = {};
};
struct DictNode {
  PlainDictKind kind = {};
  std::vector<Ref> items = {};       // key, value, key, value, ...; later values of a key count
  std::vector<Ref> attributes = {};  // the same
  bool is_module = false;            // a module, whose attributes are the items
};
struct StorageNode {
  std::shared_ptr<const PlainStorage> storage = {};
  const TorchDtype* dtype = nullptr;  // null: untyped
};

// Something of numpy, of which nothing is kept.
struct SkippedNode {};

using Node = std::variant<std::monostate, bool, int64_t, double, std::string, PlainBytes, ListNode,
                          TupleNode, SetNode, DictNode, PlainDtype, PlainDevice,
                          std::unique_ptr<PlainTensor>, StorageNode, GlobalNode, SkippedNode>;

// What stands for "module.name", under its name in Python 2 or 3; nothing if it is not on the list.
std::optional<Node> find_global(const std::string& module, const std::string& name);

// The same for what only the archives of modules have: classes of their own, and typed lists.
std::optional<Node> find_module_global(const std::string& module, const std::string& name);

// Whether numpy's own pickles of arrays, numbers and types name it.
bool is_of_numpy(const std::string& module, const std::string& name);

// The Python name of what a node is.
std::string name_of(const Node& node);

// How much more data than the pickle itself its shared parts may become. Without it a pickle of a
// few hundred bytes could stand for more than any memory holds.
class ExpansionBudget {
 public:
  explicit ExpansionBudget(uint64_t pickle_bytes);

  // Takes so many bytes of memory; an Error of `where` if too few are left.
  void take(uint64_t bytes, const std::string& where);

 private:
  uint64_t left_;
};

// The plain data that `root` stands for. Parts that are shared become several. `where` begins
// messages.
PlainValue expand(const std::deque<Node>& nodes, Ref root, ExpansionBudget& budget,
                  const std::string& where);

}  // namespace accelerant::format
