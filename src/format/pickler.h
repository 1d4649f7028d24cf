// Writes plain data as a pickle that torch's weights_only unpickler reads: protocol 2, and only the
// opcodes it knows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/pickle_opcodes.h"
#include "format/plain_value.h"

namespace accelerant::format {

class Pickler {
 public:
  // The pickle of `value`; afterwards storages() has its storages. Call it once.
  std::string dump(const PlainValue& value);

  // In the order of their keys, "0", "1" and so on.
  const std::vector<const PlainStorage*>& storages() const { return storages_; }

 private:
  struct KnownStorage {
    std::size_t key;
    const TorchDtype* dtype;  // null: untyped
  };

  void put(Opcode opcode) { out_ += static_cast<char>(opcode); }
  template <class T>
  void put_number(Opcode opcode, T value);
  void global(std::string_view module, std::string_view name);
  // Writes a reference to an object that was stored before; returns false if there is none.
  bool recall(const std::string& name);
  void remember(const std::string& name);

  void save(const PlainValue& value);
  void save(std::monostate) { put(Opcode::none); }
  void save(bool value) { put(value ? Opcode::new_true : Opcode::new_false); }
  void save(int64_t value);
  void save(double value);
  void save(const std::string& text);
  void save(const PlainBytes& bytes);
  void save(const PlainList& list);
  void save(const PlainTuple& tuple);
  void save(const PlainSet& set);
  void save(const PlainDict& dict);
  void save(const PlainDtype& dtype);
  void save(const PlainDevice& device);
  void save(const PlainTensor& tensor);

  void save_text(std::string_view text);
  void save_list(const std::vector<PlainValue>& items);
  void save_tuple(const std::vector<PlainValue>& items);
  void save_integers(const std::vector<int64_t>& numbers);
  void save_items(const std::vector<PlainItem>& items);
  void save_empty_ordered_dict();
  void save_tensor_data(const PlainTensor& tensor, bool requires_grad);
  void save_storage(const PlainTensor& tensor, const TorchDtype& dtype);
  // A tuple of `size` items: begin_tuple, the items, end_tuple.
  void begin_tuple(std::size_t size);
  void end_tuple(std::size_t size);

  std::string out_;
  int depth_ = 0;
  std::unordered_map<std::string, uint32_t> memo_;
  std::unordered_map<const PlainStorage*, KnownStorage> known_storages_;
  std::vector<const PlainStorage*> storages_;
};

}  // namespace accelerant::format
