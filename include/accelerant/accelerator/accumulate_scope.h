// One micro-step of a window of accumulated gradients, from Accelerator::accumulate.
//
//   for (auto&& [data, target] : loader) {
//     auto window = accelerator.accumulate(model);
//     accelerator.backward(loss_of(model(data), target));
//     optimizer.step();       // only where the window is complete
//     optimizer.zero_grad();
//   }
//
// Whether the micro-step completes the window is decided when the scope opens. Scopes do not nest.
//
// The gradients of a window are the mean over the micro-steps in which a backward ran. If nothing was
// stepped with when the last one ends (`continue` before the step), the next window goes on with them.
//
// When an exception leaves the scope before an optimizer has stepped, the micro-step does not count.
// If it was the first with a backward, or gradients were already clipped or unscaled, what the window
// holds is dropped. Else gradients of the failed backward cannot be told from those before: go on, or
// give the window up with Accelerator::drop_gradients().
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace accelerant {

class Accelerator;

namespace detail {
struct Core;
class ModelState;
class OptimizerState;
struct Window;
}  // namespace detail

class [[nodiscard]] AccumulateScope {
 public:
  ~AccumulateScope();
  AccumulateScope(const AccumulateScope&) = delete;
  AccumulateScope& operator=(const AccumulateScope&) = delete;

  // Whether this micro-step completes its window.
  bool sync_gradients() const;

  // Its place in the window, from 1.
  int64_t micro_step() const;

 private:
  friend class Accelerator;

  AccumulateScope(std::shared_ptr<detail::Core> core,
                  std::vector<const detail::ModelState*> models);

  static void enter(detail::Core& core, const std::shared_ptr<detail::Window>& window);
  static std::vector<std::shared_ptr<detail::OptimizerState>> concerned(
      const detail::Core& core, const detail::Window& window);
  void clean_up_failure();

  std::shared_ptr<detail::Core> core_;
  std::shared_ptr<detail::Window> window_;
  int exceptions_at_entry_;
};

// A scope in which forwards of a model do not prepare an exchange of gradients between processes: the
// backward adds to the gradients of its own process. The first synchronised forward and backward after it
// exchange what has gathered. Scopes nest. With one process it does nothing.
class [[nodiscard]] NoSyncScope {
 public:
  ~NoSyncScope();
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  friend class Accelerator;

  explicit NoSyncScope(std::shared_ptr<detail::ModelState> model);

  std::shared_ptr<detail::ModelState> model_;
};

}  // namespace accelerant
