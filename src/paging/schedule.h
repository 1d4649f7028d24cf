// Which units will be used next, learnt from what was used before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace accelerant::paging {

class Schedule {
 public:
  // Within a phase the whole order of its previous iteration is known.
  void begin(std::string_view phase);
  void end();

  // Notes that a unit is used. Returns false if it was the last one used, too.
  bool touch(std::size_t unit) {
    if (unit == last_) return false;
    advance(unit);
    return true;
  }

  // Whether it was the last one used.
  bool is_current(std::size_t unit) const { return unit == last_; }

  // The units that are expected next, nearest first, each once, at most `most` of them. Empty if
  // nothing is known.
  std::vector<std::size_t> upcoming(std::size_t most) const;

 private:
  static constexpr std::size_t none = SIZE_MAX;

  void advance(std::size_t unit);
  void follow(std::size_t unit);

  // Outside of known phases: what followed a pair of units last time. One unit would not suffice,
  // as a layer's neighbour differs between forward and backward.
  static uint64_t pair(std::size_t first, std::size_t second) {
    return (static_cast<uint64_t>(first) << 32) | static_cast<uint32_t>(second);
  }
  std::unordered_map<uint64_t, std::size_t> successors_;
  std::size_t before_last_ = none;
  std::size_t last_ = none;

  std::map<std::string, std::vector<std::size_t>, std::less<>> orders_;  // by phase
  std::optional<std::string> phase_;
  const std::vector<std::size_t>* order_ = nullptr;  // of the phase, while it is followed
  std::size_t position_ = 0;                         // in it: the next unit
  std::vector<std::size_t> recording_;
};

}  // namespace accelerant::paging
