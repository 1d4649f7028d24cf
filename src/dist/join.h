// Training when the processes have different numbers of batches: those that have ended go on taking
// part in the exchanges of the others, with gradients of zero, until all have ended.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "accelerant/dist/data_parallel_options.h"
#include "dist/data_parallel.h"

namespace accelerant::dist {

// Runs `loop`, the training loop of this process, and then follows the others. Those with inputs
// must call the models in the same order; forwards without gradients do not count. At the end all
// processes have the models of one that ended last.
void join_uneven(const std::vector<DataParallel*>& models, const JoinOptions& options,
                 const std::function<void()>& loop);

// Of the models in a join_uneven(), while it lasts. Processes with inputs announce what they are
// about to exchange, in a small exchange of its own that those without take part in.
class Join {
 public:
  Join(const std::vector<DataParallel*>& models, const JoinOptions& options);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Before a forward with gradients. Returns a rank with inputs, the same for all, whose buffers
  // count.
  int announce_forward(DataParallel::State& state, bool synchronise);

  // When a backward that reduces comes to the model.
  void announce_backward(DataParallel::State& state);

  // After the loop.
  void follow_the_others();

 private:
  enum class Kind { local_forward, forward, backward };

  // What the processes with inputs do next.
  struct Event {
    int64_t active = 0;       // how many have inputs
    int highest_active = -1;  // the last of them
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
