// What a training has told so far, through the lines that recorder.h writes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace demo {

class RunLog {
 public:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    pid_t pid = 0;                       // of the latest process
    int starts = 0;                      // how often it was started
    int64_t started_after = 0;           // updates done when it was started for the last time
    int64_t updates = 0;                 // done so far
    std::map<int64_t, uint32_t> losses;  // the bits of each update's loss
    int64_t computed_twice = 0;          // updates that were lost and done again
    bool repeats_itself = true;          // with the same losses
  };

  explicit RunLog(int64_t processes) : ranks_(static_cast<std::size_t>(processes)) {}

  // Whether the line was one of a recorder. `accelerant launch` puts "[rank 1] " before it.
  bool take(const std::string& line);

  const Rank& rank(std::size_t index) const { return ranks_.at(index); }
  double accuracy() const { return accuracy_; }
  double latest_loss() const;

  // From the first start to the end of the last update, a restart in between included.
  double seconds() const;

  // Every process has told the loss of every update.
  bool is_complete(int64_t updates) const;

  // The same losses in every bit, in every process, also where one was computed twice.
  bool has_the_losses_of(const RunLog& other) const;

 private:
  void take_losses(Rank& rank, int64_t first, const std::string& bits);

  std::vector<Rank> ranks_;
  double accuracy_ = 0;
  Clock::time_point start_ = {};
  Clock::time_point stop_ = {};
};

}  // namespace demo
