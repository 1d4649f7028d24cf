// Training when the processes have different numbers of batches: those that have ended go on taking part
// in the exchanges of the others, with gradients of zero, until all have ended.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "accelerant/dist/data_parallel.h"

namespace accelerant::dist {

struct JoinOptions {
  // Divide the sum of gradients by the number of all processes, also when some have ended: a late batch
  // then weighs as much as any other. If false, divide by the number of those still at it. Default: true.
  bool divide_by_initial_world_size = true;

  // Instead of going on, end the training of all processes with an Error as soon as one has no more
  // inputs. Default: false.
  bool throw_on_early_termination = false;
};

// Runs `loop`, the training loop of this process, and then follows the others. In each iteration, the
// models must be called in the given order, once, with gradients enabled; forwards without do not count. At
// the end all processes have the model of one that ended last.
void join_uneven(const std::vector<DataParallel*>& models, const JoinOptions& options,
                 const std::function<void()>& loop);

// Of the models in a join_uneven(), while it lasts.
class Join {
 public:
  Join(const std::vector<DataParallel*>& models, const JoinOptions& options);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Before a forward of a process that still has inputs. Returns a rank that has them too, the same for
  // all, whose buffers count.
  int announce(DataParallel::State& state, bool synchronise);

  // After the loop.
  void follow_the_others();

 private:
  struct Round {
    int64_t active = 0;       // processes that still have inputs
    int highest_active = -1;  // the last of them
    bool is_synchronised = false;
  };
  Round exchange_round(DataParallel::State& state, bool is_active, bool synchronise);
  void follow_forward(DataParallel::State& state, const Round& round);
  void follow_backward(DataParallel::State& state);

  std::vector<DataParallel*> models_;
  JoinOptions options_;
  World& world_;
};

}  // namespace accelerant::dist
