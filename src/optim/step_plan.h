// What a fused step works on: the parameters of an optimizer that have gradients, as tables for the
// kernels.
//
// Building the tables inspects everything; after that, a step only checks whether something has
// moved. If only a gradient has moved (they are freed and recreated in every iteration), only its
// address is transferred to the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerant/optim/fused_step.h"
#include "amp/scaled_step.h"
#include "kernels/fused_step.h"
#include "optim/device_table.h"
#include "optim/fused_kind.h"
#include "optim/fused_step_replay.h"

namespace accelerant::optim::detail {

// For tests: parameters on the CPU get images, as if they were elsewhere.
bool& images_on_every_device();

// A run of tensors in the tables that is updated and sent to the parameters' device as a whole.
struct StepPart {
  kernels::BlockRange blocks = {};
  int32_t first_tensor = 0;
  int32_t end_tensor = 0;
};

class StepPlan {
 public:
  StepPlan(torch::optim::Optimizer& optimizer, const FusedStepOptions& options);
  ~StepPlan();

  enum class Readiness { ready, no_gradients, impossible };

  // Call it before each use of the functions below. Does not wait for the device.
  Readiness prepare();

  // Why it is impossible.
  const std::string& reason() const { return reason_; }

  // Incremented whenever a gradient may be a different one, or have different values, than at the
  // previous prepare().
  int64_t gradients_version() const { return gradients_version_; }

  c10::Device device() const { return device_; }
  kernels::StepTables tables() const;
  const std::vector<kernels::StepSegment>& segments() const { return segments_; }
  std::span<const int64_t> costs() const { return costs_; }
  int32_t blocks() const { return static_cast<int32_t>(blocks_.host.size()); }
  int32_t bundles() const { return static_cast<int32_t>(bundles_.host.size()); }
  int32_t tensors() const { return static_cast<int32_t>(tensors_.host.size()); }

  // Whether parameters have images in host memory, to which the second pass writes. It runs part by
  // part then: wait_until_sent(), and for each part the update and send().
  bool has_images() const { return has_images_; }
  const std::vector<StepPart>& parts() const { return parts_; }

  // The images are being read until then, by the copies of the previous step.
  void wait_until_sent();

  // Around all parts: a step that fails in between is done in part, and none may follow.
  void begin_parts() { is_done_in_part_ = true; }
  void end_parts();

  // Throws Error if the last step is done in part.
  void require_whole_step() const;

  // Queues copies of the part's images to their parameters, on the current streams.
  void send(const StepPart& part);

  // See EarlyUpdate. update_early() returns the tensor that it updated, or -1.
  bool begin_early();
  int32_t update_early(const at::Tensor& parameter, const kernels::StepFactors& factors);
  void send_early(const at::Tensor& parameter);
  bool has_early() const { return !early_.empty(); }
  bool is_early(int32_t tensor) const;

  // The step has come. Throws Error if it is another one than what was begun; `is_plain`: without
  // a scaler, factors or clipping.
  void check_early(bool is_plain);
  void forget_early() { early_.clear(); }

  // The blocks of a tensor.
  kernels::BlockRange blocks_of(int32_t tensor) const;

  // What the first pass leaves in the tables, for a report.
  std::shared_ptr<const CheckedGradients> checked() const;

  // Call it once the second pass is queued.
  void applied();

  // See FusedStepReplay. `choice` may be null.
  void prepare_replay(const RateChoice* choice);
  void note_replayed();
  uint64_t fingerprint();
  void reserve_for_capture();
  std::vector<at::Tensor> take_memory_of_graphs();

  // Copies the counts from the device to the optimizer's state. Waits for the device.
  void sync();

  // Reads everything again from the optimizer's state.
  void reload();

 private:
  struct Slot;
  struct Place;
  struct Layout;
  class Report;

  // How the elements of a gradient are accessed.
  enum class Access : uint8_t {
    contiguous,    // directly; the parameter is contiguous too
    same_strides,  // directly; in the same order as the parameter
    packed,        // through a copy
  };

  // A parameter in the order of the optimizer, and what was seen of it: compared at every step, so
  // it is kept small.
  struct Seen {
    const c10::TensorImpl* parameter = nullptr;
    const c10::StorageImpl* storage = nullptr;
    int64_t offset = 0;
    int64_t numel = 0;
    uint64_t gradient_keys = 0;
    int64_t gradient_version = -1;
    int32_t tensor = -1;  // its index in the tables; -1 without a gradient
    Access access = Access::contiguous;
    at::ScalarType gradient_type = at::ScalarType::Undefined;
  };

  // Changes of gradients since the previous step.
  struct Changes {
    bool values = false;
    bool addresses = false;
  };

  // A parameter that, itself or by its gradient, does not have the layout that the kernels need,
  // and the copy that does.
  struct Packed {
    at::Tensor parameter;
    at::Tensor copy;
  };

  bool are_groups_known();
  bool look();
  bool look_at(Seen& seen, const at::Tensor& parameter, Changes& changes);
  bool is_state_known();
  Readiness rebuild();
  void upload_options(bool all);
  void upload_options(const RateChoice& choice);
  // Why kernels cannot step the parameter; empty if they can.
  std::string reason_against(const at::Tensor& parameter, const at::Tensor& gradient) const;
  void add(std::size_t group, std::size_t index);
  Slot& slot_of(const at::Tensor& parameter, std::size_t group);
  void fill(Slot& slot, const at::Tensor& parameter, std::size_t group);
  bool has_other_rules();
  bool has_slot_for(const at::Tensor& parameter) const;
  void refuse_in_capture(bool has_changes) const;
  void sort_into_segments(std::vector<Place> places);
  void add_to_bundles(bool is_small);
  void bring_steps();
  void pack_gradients();
  static void settle_copies(Slot& slot);
  void require_parameters_of_early() const;
  bool needs_image(const at::Tensor& parameter) const;
  c10::Device home_of(const at::Tensor& parameter) const;
  void divide_into_parts();

  torch::optim::Optimizer& optimizer_;
  const OptimizerKind& kind_;
  const FusedStepOptions options_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::string reason_;
  bool built_ = false;
  bool reload_ = true;
  uint64_t capture_ = 0;  // the capture in which the tables were built; 0: none
  int64_t gradients_version_ = 0;
  uint64_t generation_ = 0;  // changes when captured graphs become stale

  // By parameter. A slot stays if its parameter temporarily has no gradient.
  std::unordered_map<const c10::TensorImpl*, std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> new_slots_;  // whose counts are not on the device yet
  int64_t slot_count_ = 0;
  // int64 on the device, by slot. Large enough for all parameters, because graphs refer to the
  // memory.
  at::Tensor steps_;
  bool steps_ahead_ = false;

  std::vector<std::size_t> group_sizes_;
  std::vector<OptionReader> readers_;
  std::vector<kernels::Rule> rules_;
  std::vector<Seen> seen_;
  std::size_t next_looked_up_ = 0;
  std::vector<Packed> packed_parameters_;
  std::vector<Packed> packed_gradients_;
  std::vector<Slot*> slots_with_copies_;
  std::vector<Slot*> slots_by_tensor_;
  bool has_images_ = false;
  std::vector<StepPart> parts_;
  std::vector<int64_t> first_blocks_;  // by tensor, and the end
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen_by_parameter_;
  uint64_t seen_generation_ = 0;
  uint64_t built_generation_ = 0;  // counts how often the tables were built

  // By parameter: the gradients that early updates were made with.
  struct Early {
    const c10::TensorImpl* gradient = nullptr;
    int64_t version = 0;
    bool is_sent = false;
  };
  std::unordered_map<const c10::TensorImpl*, Early> early_;
  std::mutex early_mutex_;  // while one thread updates and another one sends
  std::vector<kernels::Hyper> early_groups_;
  std::vector<std::pair<c10::Device, c10::Event>> sent_;  // the last copies, one per device
  bool is_done_in_part_ = false;

  std::shared_ptr<const Layout> layout_;
  DeviceTable<kernels::StepTensor> tensors_;
  DeviceTable<const void*> gradients_;
  DeviceTable<kernels::StepBlock> blocks_;
  DeviceTable<kernels::StepBundle> bundles_;
  bool has_open_bundle_ = false;  // the last bundle accepts more small blocks
  DeviceTable<kernels::Hyper> groups_;
  bool has_chosen_rates_ = false;  // in groups_; the host does not know them
  std::vector<kernels::StepSegment> segments_;
  std::vector<int64_t> costs_;
  at::Tensor partials_;
  GraphTables of_graphs_;
};

}  // namespace accelerant::optim::detail
