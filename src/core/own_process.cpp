#include "accelerant/core/detail/own_process.h"

#include <pthread.h>

#include <new>

namespace accelerant::detail {
namespace {

std::atomic<uint64_t> count = 0;

struct Kept {
  const void* object;
  Kept* next;
};
std::atomic<Kept*> kept = nullptr;

// A process id would not do: a child may get that of an ancestor that has ended.
[[maybe_unused]] const int is_counting =
    ::pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t forks() noexcept { return count.load(std::memory_order_relaxed); }

void never_destroy(const void* object) noexcept {
  auto* const entry = new (std::nothrow) Kept{object, kept.load(std::memory_order_relaxed)};
  if (entry == nullptr) return;
  while (!kept.compare_exchange_weak(entry->next, entry, std::memory_order_relaxed)) {
  }
}

}  // namespace accelerant::detail
