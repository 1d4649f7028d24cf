// An option that is one number for all param groups of an optimizer, or one number for each.
//
//   .max_lr = 0.1            // all groups
//   .max_lr = {0.1, 0.01}    // the first and the second of two groups
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace accelerant::optim {

class PerGroup {
 public:
  PerGroup() = default;  // not given
  PerGroup(double value) : values_{value}, is_list_(false) {}
  PerGroup(std::initializer_list<double> values) : values_(values) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}

  bool empty() const { return values_.empty(); }

  // The number of a group. Throws Error if there is none: see check_size().
  double of(std::size_t group) const;

  // Throws Error if there is a list and it has not one number for each of so many groups. `name` is
  // the option's name, for the message.
  void check_size(std::size_t groups, const char* name) const;

  // What was given: one number, or the list.
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  bool is_list_ = true;  // a list of one is not for all groups, as in Python
};

}  // namespace accelerant::optim
