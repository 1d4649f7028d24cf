#include "core/heap.h"

#include <cstdlib>
#include <initializer_list>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace accelerant {

void keep_freed_memory() {
#ifdef __GLIBC__
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name) != nullptr) return;
  }
  // Set both, since setting one freezes the other at its initial value. 32 MiB is the largest value
  // that malloc accepts; larger blocks always come from the system.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace accelerant
