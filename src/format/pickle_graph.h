// What an unpickler builds: objects that refer to each other, among them the few classes and
// functions that a pickle of plain data may name. Objects may share parts and even contain
// themselves, so they are kept in one list and refer to each other by number. Destroying the list
// then needs no recursion, however deeply the objects are nested.
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
// each would return.
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
  numpy,       // anything of numpy; only if numpy is skipped
  module,      // a class of a TorchScript archive; only when reading modules
  build_list,  // torch.jit's lists of numbers and tensors; only when reading modules
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
  std::vector<Ref> items = {};       // key, value, key, value, ...; the last value of a key wins
  std::vector<Ref> attributes = {};  // the same
  bool is_module = false;            // a module, whose attributes are the items
};
struct StorageNode {
  std::shared_ptr<const PlainStorage> storage = {};
  const TorchDtype* dtype = nullptr;  // null: untyped
};

// A numpy object, whose content is dropped.
struct SkippedNode {};

using Node = std::variant<std::monostate, bool, int64_t, double, std::string, PlainBytes, ListNode,
                          TupleNode, SetNode, DictNode, PlainDtype, PlainDevice,
                          std::unique_ptr<PlainTensor>, StorageNode, GlobalNode, SkippedNode>;

// The node for "module.name", by its name in Python 2 or 3; empty if it is not on the list.
std::optional<Node> find_global(const std::string& module, const std::string& name);

// The same for what only archives of modules contain: their own classes, and typed lists.
std::optional<Node> find_module_global(const std::string& module, const std::string& name);

// Whether numpy's own pickles of arrays, numbers and types use this name.
bool is_of_numpy(const std::string& module, const std::string& name);

// The Python name of a node's type.
std::string name_of(const Node& node);

// How much data the shared parts of a pickle may expand to, beyond its own size. Without a limit, a
// pickle of a few hundred bytes could expand to more than any memory holds.
class ExpansionBudget {
 public:
  explicit ExpansionBudget(uint64_t pickle_bytes);

  // Takes that many bytes of memory; throws Error, naming `where`, if too few are left.
  void take(uint64_t bytes, const std::string& where);

 private:
  uint64_t left_;
};

// The plain data that `root` represents. Shared parts are duplicated. Messages begin with `where`.
PlainValue expand(const std::deque<Node>& nodes, Ref root, ExpansionBudget& budget,
                  const std::string& where);

}  // namespace accelerant::format
