// The number of threads that torch's operators use when they are called from this thread.
#pragma once

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace accelerant::compat {

// Operators called from this thread run in it. at::set_num_threads would change the default of all
// threads to come; OpenMP's own setting is of one thread only. Which OpenMP library torch brought
// differs between its builds, so it is looked up; where there is none, nothing is done.
inline void use_one_intra_op_thread() {
  at::internal::lazy_init_num_threads();  // torch's own setting, which must not come after ours
  using SetThreads = void (*)(int);
  static const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

}  // namespace accelerant::compat
