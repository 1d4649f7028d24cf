// Training with different numbers of batches per process: those that have finished keep taking part
// in the exchanges of the others, with gradients of zero, until all have finished.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "accelerant/dist/data_parallel_options.h"
#include "dist/data_parallel.h"

namespace accelerant::dist {

// Runs `loop`, the training loop of this process, and then follows the others. Processes with
// inputs must call the models in the same order; forwards without gradients do not count. At the
// end all processes have the models of a process that finished last.
void join_uneven(const std::vector<DataParallel*>& models, const JoinOptions& options,
                 const std::function<void()>& loop);

// Coordinates the models during a join_uneven(). Processes with inputs announce what they are about
// to exchange, in a small separate exchange that those without inputs take part in.
class Join {
 public:
  Join(const std::vector<DataParallel*>& models, const JoinOptions& options);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Call it before a forward with gradients. Returns a rank with inputs, the same for all, whose
  // buffers count.
  int announce_forward(DataParallel::State& state, bool synchronise);

  // Called when a backward that reduces reaches the model.
  void announce_backward(DataParallel::State& state);

  // Call it after the loop.
  void follow_the_others();

 private:
  enum class Kind { local_forward, forward, backward };

  // What the processes with inputs do next.
  struct Event {
    int64_t active = 0;       // processes that have inputs
    int highest_active = -1;  // the highest rank among them
    Kind kind = Kind::forward;
    DataParallel::State* state = nullptr;
  };

  // `state` is the model of the event, or null in a process without inputs.
  Event exchange_event(DataParallel::State* state, Kind kind);
  void follow_forward(const Event& event);
  void follow_backward(DataParallel::State& state);
  void share_last_model(bool ended_last);

  std::vector<DataParallel*> models_;
  JoinOptions options_;
  World& world_;
};

}  // namespace accelerant::dist
