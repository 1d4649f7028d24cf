#include "compat/autograd_threads.h"

#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <cstdlib>

#include "accelerant/core/detail/own_process.h"

namespace accelerant::compat {
namespace {

// Whether a process may have such threads of its own. Never destroyed: it is read while others are.
std::atomic<bool>& may_have_threads() {
  static auto* const made = new accelerant::detail::OnePerProcess<std::atomic<bool>>();
  return made->get();
}

void forget_threads_of_parent() {
  if (!may_have_threads()) torch::autograd::Engine::get_default_engine().release_workers();
}

}  // namespace

void let_forked_children_exit() {
  may_have_threads() = true;
  // What exit() calls is called in the reverse order: the engine must be there before, so that its
  // destructor, which waits, comes later. Children inherit the order.
  torch::autograd::Engine::get_default_engine();
  [[maybe_unused]] static const int registered = std::atexit(forget_threads_of_parent);
}

}  // namespace accelerant::compat
