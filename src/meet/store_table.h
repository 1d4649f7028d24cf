// The keys and values of a store, with the meaning of c10d's TCPStore.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace accelerant::meet {

class StoreTable {
 public:
  bool has(const std::string& key) const { return values_.contains(key); }
  // The first of these keys that does not exist; null if all do.
  const std::string* first_missing(const std::vector<std::string>& keys) const;

  // The key must exist.
  const std::string& get(const std::string& key) const { return values_.at(key); }

  void set(const std::string& key, std::string_view value);
  void append(const std::string& key, std::string_view value);

  // Adds to a whole number in decimal digits; a missing one is 0. Throws std::runtime_error if the
  // value is something else.
  int64_t add(const std::string& key, int64_t number);

  // Sets the value if it is the expected one; returns the value then. An empty expected value also
  // stands for a missing key; if any other is expected of a missing key, nothing is set and the
  // expected value is returned.
  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired);

  bool remove(const std::string& key) { return values_.erase(key) > 0; }
  std::size_t size() const { return values_.size(); }

 private:
  std::unordered_map<std::string, std::string> values_;
};

}  // namespace accelerant::meet
