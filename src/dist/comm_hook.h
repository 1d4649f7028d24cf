// Creates the hook through which c10d::Reducer sends its buckets. A heavy header: only for sources
// that use c10d directly.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>

#include "accelerant/dist/data_parallel_options.h"
#include "accelerant/tensor/named_state.h"

namespace accelerant::dist {

// A hook that can be saved.
class SavedHook : public c10d::CommHookInterface {
 public:
  // See Compressor.
  virtual NamedState state_dict() const = 0;
  virtual void load_state_dict(const NamedState& state) = 0;
};

// Throws Error if the options are invalid.
void check(const CommHookOptions& options);

// For Reducer::register_comm_hook, which takes ownership. Null for CommHook::no: the Reducer's own
// way is the fastest then. Throws Error if the options are invalid.
//
// All its exchanges are started by the threads that call the Reducer, in an order that depends only
// on the order of the buckets, so the group may be the one that the Reducer uses itself.
std::unique_ptr<SavedHook> make_comm_hook(const CommHookOptions& options,
                                          const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace accelerant::dist
