// The prepared objects of one kind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace accelerant::detail {

// Holds the objects weakly: an object is registered as long as one of its handles lives. So what it
// borrows may be destroyed together with its handles, for example at the end of a function, and is
// not touched afterwards. Numbers are unique until clear(), so that a checkpoint finds an object
// again even if earlier ones are gone.
template <class T>
class Registry {
 public:
  void add(const std::shared_ptr<T>& object) {
    objects_.push_back({next_number_++, object});
    ++version_;
  }

  struct Numbered {
    int64_t number = 0;  // in the order of preparation, including objects that are gone
    std::shared_ptr<T> object = {};
  };

  // In the order of preparation.
  std::vector<std::shared_ptr<T>> all() const {
    std::vector<std::shared_ptr<T>> alive;
    alive.reserve(objects_.size());
    for (const Entry& entry : objects_) {
      if (auto strong = entry.object.lock()) alive.push_back(std::move(strong));
    }
    if (alive.size() != objects_.size()) {
      std::erase_if(objects_, [](const Entry& entry) { return entry.object.expired(); });
      ++version_;
    }
    return alive;
  }

  std::vector<Numbered> numbered() const {
    std::vector<Numbered> alive;
    for (const Entry& entry : objects_) {
      if (auto strong = entry.object.lock()) alive.push_back({entry.number, std::move(strong)});
    }
    return alive;
  }

  // Changes whenever the result of all() changes.
  int64_t version() const {
    const bool changed = std::any_of(objects_.begin(), objects_.end(),
                                     [](const Entry& entry) { return entry.object.expired(); });
    if (changed) all();
    return version_;
  }

  void clear() {
    objects_.clear();
    next_number_ = 0;
    ++version_;
  }

 private:
  struct Entry {
    int64_t number = 0;
    std::weak_ptr<T> object = {};
  };

  mutable std::vector<Entry> objects_;
  int64_t next_number_ = 0;
  mutable int64_t version_ = 0;
};

}  // namespace accelerant::detail
