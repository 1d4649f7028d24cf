// What a forked child leaves alone.
//
// fork() copies the memory of a process but only the thread that called it. The copies of objects
// that the child destroys when it returns from main, calls exit or throws belong to the parent:
// their threads do not exist here, their locks may be held by such threads, data that those were
// changing may be half changed, and their files, sockets, child processes and messages to other
// processes are the parent's. So destructors with such effects do nothing in a forked child, and
// what threads share is not destroyed at all. Children that exec are not concerned; see
// docs/forked_children.md for what a child may do.
//
//   const OwnProcess process_;                              // a destructor with effects begins with
//   if (!process_.is_this_one()) return;                    // this
//
//   auto shared = make_shared_for_process<Shared>(…);       // for what owns threads, or shares data
//   std::unique_ptr<Shared, DeleteInOwnProcess> owner(…);   // with them: never destroyed in a child
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace accelerant::detail {

// A number that differs between a process and its forked children.
uint64_t forks() noexcept;

// Remembers the process that made it. Copies remember the same one.
class OwnProcess {
 public:
  bool is_this_one() const noexcept { return forks_ == forks(); }

 private:
  uint64_t forks_ = forks();
};

// Keeps the object reachable, so that leak checkers do not report it.
void never_destroy(const void* object) noexcept;

// A deleter that does nothing in forked children.
class DeleteInOwnProcess {
 public:
  template <class T>
  void operator()(T* object) const noexcept {
    if (process_.is_this_one()) {
      delete object;
    } else {
      never_destroy(object);
    }
  }

 private:
  OwnProcess process_;
};

template <class T, class... Arguments>
std::shared_ptr<T> make_shared_for_process(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), DeleteInOwnProcess());
}

// A T for this process. A forked child gets one of its own, new and unlocked, when it first asks.
// For static objects, which it never destroys. Thread-safe.
template <class T>
class OnePerProcess {
 public:
  T& get() {
    Entry* entry = newest_.load(std::memory_order_acquire);
    if (entry != nullptr && entry->process.is_this_one()) return entry->value;
    auto* const made = new Entry{.before = entry};
    while (!newest_.compare_exchange_strong(entry, made, std::memory_order_acq_rel)) {
      if (entry == nullptr || !entry->process.is_this_one()) continue;
      delete made;  // another thread was faster
      return entry->value;
    }
    return made->value;
  }

 private:
  struct Entry {
    OwnProcess process = {};
    T value = {};
    Entry* before = nullptr;  // the parent's
  };
  std::atomic<Entry*> newest_ = nullptr;
};

}  // namespace accelerant::detail
