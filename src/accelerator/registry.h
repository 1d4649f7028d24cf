// The prepared objects of one kind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace accelerant::detail {

// Holds them weakly: an object is registered as long as a handle of it is alive. So what was borrowed
// for it may be destroyed with its handles, for example at the end of a function, and is not touched
// after that.
template <class T>
class Registry {
 public:
  void add(const std::shared_ptr<T>& object) {
    objects_.push_back(object);
    ++version_;
  }

  // In the order of their preparation.
  std::vector<std::shared_ptr<T>> all() const {
    std::vector<std::shared_ptr<T>> alive;
    alive.reserve(objects_.size());
    for (const auto& object : objects_) {
      if (auto strong = object.lock()) alive.push_back(std::move(strong));
    }
    if (alive.size() != objects_.size()) {
      objects_.assign(alive.begin(), alive.end());
      ++version_;
    }
    return alive;
  }

  // Another number whenever all() gives something else.
  int64_t version() const {
    const bool changed = std::any_of(objects_.begin(), objects_.end(),
                                     [](const auto& object) { return object.expired(); });
    if (changed) all();
    return version_;
  }

  void clear() {
    objects_.clear();
    ++version_;
  }

 private:
  mutable std::vector<std::weak_ptr<T>> objects_;
  mutable int64_t version_ = 0;
};

}  // namespace accelerant::detail
