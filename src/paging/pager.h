// Parameters whose memory comes and goes: a module computes as usual, forward and backward, while
// only some of its parameters are in memory.
//
//   Pager pager(plan_units(*net), {.device = at::Device(at::kCUDA, 0), .budget = 4ull << 30});
//   for (const auto& batch : batches) {
//     const auto iteration = pager.begin("train");      // optional: makes prefetching exact
//     loss_of(net->forward(batch)).backward();
//     optimizer.step();
//   }
//   pager.detach();                                     // ordinary parameters again
//
// The module, its code and its tensors stay what they are: the same at::Tensor objects with the
// same autograd state, so optimizers and hooks that hold them go on working. Every operator that
// uses a paged parameter passes through the Pager first (interception.h), which brings its unit in
// and keeps it there while the operator runs. Operators without paged parameters cost nothing.
//
// What does not pass through an operator is refused while the memory is absent: reading data_ptr()
// or an accessor throws, and so do kernels that TorchScript fuses. Code that needs pointers holds a
// Residency (residency.h) meanwhile. A pointer kept beyond that dangles.
//
// A Pager owns the sources and memory of its units; the parameters it borrows. Destroying it
// detaches. It may be used from several threads at once: two may run forward and backward while the
// autograd engine's threads fetch. begin(), detach() and the destructor must not run while
// operators use the parameters.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "paging/unit.h"

namespace accelerant::paging {

class Engine;

struct PagerOptions {
  // Where operators run. Parameters elsewhere (on the CPU, or on the meta device and with a source)
  // become parameters on this device, without ever being there as a whole.
  c10::Device device = c10::kCPU;

  // How much memory of the device units may take, in bytes. Units that an operator is using, or
  // that a Residency holds, stay even beyond it. 0: memory is freed after each operator. Default:
  // no limit.
  uint64_t budget = std::numeric_limits<uint64_t>::max();

  // How many units are fetched ahead of their use. They must fit into the budget. 0: none.
  int64_t prefetch = 1;

  // Use the memory of sources directly where that is possible (on the CPU: a mapped file), instead
  // of copying it into blocks. Such units are not evicted; the kernel drops and rereads their pages
  // as it sees fit.
  bool zero_copy = true;

  // Called before each operator that uses a unit, from its thread. Must not use parameters of this
  // Pager. Default: nothing.
  std::function<void()> before_use = {};
};

// What a Pager has done so far. Bytes count whole blocks.
struct PagerStatistics {
  uint64_t fetches = 0;         // units brought in, prefetched ones included
  uint64_t prefetches = 0;      // those that were brought in ahead of their use
  uint64_t misses = 0;          // first uses that found the unit absent
  uint64_t evictions = 0;       // units whose memory was taken away
  uint64_t write_backs = 0;     // those that had been changed
  uint64_t failures = 0;        // fetches that threw
  uint64_t fetched_bytes = 0;   // from sources
  uint64_t written_bytes = 0;   // to sources
  uint64_t resident_bytes = 0;  // at present
  uint64_t peak_bytes = 0;      // highest value of resident_bytes
  uint64_t lent_bytes = 0;      // in memory of sources, not in resident_bytes
  uint64_t over_budget = 0;     // fetches that had to exceed the budget
};

class Pager {
 public:
  // The time between begin() and the end of this object. Move-only.
  class [[nodiscard]] Iteration {
   public:
    Iteration(Iteration&& other) noexcept
        : process_(other.process_), engine_(std::move(other.engine_)) {}
    Iteration& operator=(Iteration&&) = delete;
    ~Iteration();

   private:
    friend class Pager;
    explicit Iteration(std::weak_ptr<Engine> engine) : engine_(std::move(engine)) {}

    accelerant::detail::OwnProcess process_;
    std::weak_ptr<Engine> engine_;  // a Pager may end before its iteration does
  };

  // Attaches: from here on the parameters' memory belongs to the Pager, and units are absent until
  // used. Throws Error, and changes nothing, if this libtorch cannot be used for paging, a
  // parameter is already paged, or another tensor shares its memory (a view, a result of detach()):
  // such a tensor could be read while the memory is absent.
  explicit Pager(std::vector<UnitPlan> units, const PagerOptions& options = {});
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Gives the parameters ordinary memory with their present values again, on `device`, or by
  // default where they were before (those from the meta device: on the CPU). Afterwards the Pager
  // does nothing. Throws if a source fails; then call it again.
  void detach(std::optional<c10::Device> device = std::nullopt);

  // Begins an iteration: the same work, with the same order of parameters, as other iterations of
  // this phase ("train", "eval"; another name for micro-steps that do more or less than others).
  // The first one is recorded; later ones are fetched ahead and evicted by that order. If an
  // iteration deviates, it is only slower, and the next one is recorded anew. Calls verify().
  //
  // Without begin() the order is guessed from what followed last time.
  Iteration begin(std::string_view phase);

  // Throws Error that names parameters whose memory is no longer the Pager's, because it was
  // replaced (set_data(), set_(), Module::to() to another type or device), and says what to do.
  void verify() const;

  // Frees the memory of all units that nothing is using, and that streams do not use whose work is
  // being recorded as a CUDA graph.
  void evict_all();

  PagerStatistics statistics() const;
  void reset_statistics();

  // The units in their order, with the layouts that sources see.
  const std::vector<UnitLayout>& layouts() const;

  // Names the unit of a parameter: an index into layouts(); empty if it is not paged here.
  std::optional<std::size_t> unit_of(const at::Tensor& parameter) const;

  const PagerOptions& options() const;

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace accelerant::paging
