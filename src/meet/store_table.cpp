#include "meet/store_table.h"

#include <charconv>
#include <stdexcept>

namespace accelerant::meet {

const std::string* StoreTable::first_missing(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys)
    if (!has(key)) return &key;
  return nullptr;
}

void StoreTable::set(const std::string& key, std::string_view value) { values_[key].assign(value); }

void StoreTable::append(const std::string& key, std::string_view value) {
  values_[key].append(value);
}

int64_t StoreTable::add(const std::string& key, int64_t number) {
  int64_t before = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::string& text = found->second;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, before);
    if (read.ec != std::errc() || read.ptr != end) {
      throw std::runtime_error("the value of " + key + " is not a number");
    }
  }
  // Wraps around instead of overflowing, which would be undefined.
  const auto sum =
      static_cast<int64_t>(static_cast<uint64_t>(before) + static_cast<uint64_t>(number));
  values_[key] = std::to_string(sum);
  return sum;
}

std::string StoreTable::compare_set(const std::string& key, std::string_view expected,
                                    std::string_view desired) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (!expected.empty()) return std::string(expected);
    values_[key].assign(desired);
    return std::string(desired);
  }
  if (found->second == expected) found->second.assign(desired);
  return found->second;
}

}  // namespace accelerant::meet
