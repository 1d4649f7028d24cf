// Writes the checkpoints of a run, at once or in the background, by all of its processes together.
//
// Of a checkpoint every process writes its own parts. The first process makes the folder, and when
// all have written, it gives the folder its name; then all know that the checkpoint is there, or
// all get the same Error.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/host_snapshot.h"
#include "checkpoint/state_part.h"
#include "core/process_end.h"

namespace accelerant {
class Timeline;
}

namespace accelerant::checkpoint {

// How the processes of a run exchange texts about a save. All call it in the same order; not from
// two threads at once. An Accelerator's is a dist::SideChannel, so it works in the background while
// gradients are exchanged. A process that cannot even make its parts takes part all the same, with
// its failure: otherwise the others would wait for it.
class Agreement {
 public:
  virtual ~Agreement() = default;

  virtual int64_t rank() const = 0;

  // Whether there are other processes.
  virtual bool is_alone() const = 0;

  // The first process gets the texts of all, by rank; the others nothing.
  virtual std::vector<std::string> collect(const std::string& mine) = 0;

  // All get the text of the first process.
  virtual std::string announce(const std::string& text) = 0;
};

// For one process.
std::unique_ptr<Agreement> agreement_with_nobody();

struct SaveRequest {
  // Where the checkpoint is to be. What the first process says counts.
  std::string path = {};

  // What to do with a checkpoint that is there already.
  Existing existing = Existing::refuse;

  // What this process writes.
  std::vector<StatePart> parts = {};

  // Why this process cannot save; then nobody does. Empty: it can.
  std::string failure = {};

  // For the manifest, from the first process.
  nlohmann::json content = nlohmann::json::object();

  // How many checkpoints are to be left beside each other when this one is safe. Default: all.
  std::optional<int64_t> total_limit = std::nullopt;
};

class StateSaver {
 public:
  // What is saved, and when, goes to the timeline while it is on.
  StateSaver(std::unique_ptr<Agreement> agreement, std::shared_ptr<Timeline> timeline);

  // Waits for saves in the background. Their Errors, if nobody has got them, are logged. The same
  // is done before an exception that nobody catches ends the process, unless there are others:
  // those must hear of it at once.
  ~StateSaver();
  StateSaver(const StateSaver&) = delete;
  StateSaver& operator=(const StateSaver&) = delete;

  // Returns when the checkpoint is safe. Waits for saves in the background first; their Error is
  // thrown when this one is safe.
  void save(const SaveRequest& request);

  // Copies the tensors and returns. At most two saves are under way: a third waits for the first,
  // and throws its Error. That is the same in all processes, however fast each of them writes.
  void save_in_background(SaveRequest request);

  // Waits for all saves in the background. Throws the first Error that nobody has got.
  void wait();

 private:
  static constexpr std::size_t kSnapshots = 2;

  // A save in the background.
  struct Job {
    SaveRequest request = {};
    HostSnapshot* snapshot = nullptr;
    bool done = false;
    std::exception_ptr error = {};
  };

  void run_jobs();
  void finish_before_end() noexcept;
  void run(const SaveRequest& request);
  void await_readers();
  std::string write(const SaveRequest& request, const CheckpointFolder& folder) const;
  std::string conclude(const SaveRequest& request, const CheckpointFolder& folder,
                       const std::vector<std::string>& answers) const;
  // Until no more than this many jobs are left. Throws the error of one that is taken off.
  void wait_for_jobs(std::size_t most);

  std::unique_ptr<Agreement> agreement_;
  std::shared_ptr<Timeline> timeline_;
  HostSnapshot snapshots_[kSnapshots];
  std::size_t next_snapshot_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;  // begun and not yet waited for, in their order
  bool stopping_ = false;
  std::thread thread_;  // started with the first job
  std::optional<BeforeEnd> before_end_;
};

}  // namespace accelerant::checkpoint
