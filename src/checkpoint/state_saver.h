// Writes the checkpoints of a run, synchronously or in the background, together with all of its
// processes.
//
// Every process writes its own parts. The first process creates the folder and, once all have
// written, gives it its name. Then either all processes know that the checkpoint exists, or all get
// the same Error.
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
#include "store/folder_lock.h"

namespace accelerant {
class Timeline;
}

namespace accelerant::checkpoint {

// How the processes of a run exchange texts about a save. All must call it in the same order, and
// never from two threads at once. An Accelerator uses a dist::SideChannel, so it works in the
// background while gradients are exchanged. A process that cannot create its parts still takes
// part, and reports its failure: otherwise the others would wait for it.
class Agreement {
 public:
  virtual ~Agreement() = default;

  virtual int64_t rank() const = 0;

  // Whether there are no other processes.
  virtual bool is_alone() const = 0;

  // The first process gets the texts of all, by rank; the others get nothing.
  virtual std::vector<std::string> collect(const std::string& mine) = 0;

  // All processes get the text of the first one.
  virtual std::string announce(const std::string& text) = 0;
};

// For a single process.
std::unique_ptr<Agreement> agreement_with_nobody();

struct SaveRequest {
  // Where to save the checkpoint. The first process's value counts.
  std::string path = {};

  // What to do if a checkpoint already exists there.
  Existing existing = Existing::refuse;

  // What this process writes.
  std::vector<StatePart> parts = {};

  // Why this process cannot save; then no process does. Empty: it can.
  std::string failure = {};

  // For the manifest; the first process's value counts.
  nlohmann::json content = nlohmann::json::object();

  // What allows the first process to change the folder above. Empty: it locks the checkpoint
  // itself, by `<path>.lock`, while it saves.
  std::shared_ptr<FolderLock> lock = nullptr;

  // How many checkpoints to keep once this one is safe. Default: all.
  std::optional<int64_t> total_limit = std::nullopt;
};

class StateSaver {
 public:
  // Saves are recorded in the timeline while it is on.
  StateSaver(std::unique_ptr<Agreement> agreement, std::shared_ptr<Timeline> timeline);

  // Waits for background saves and logs their Errors, unless they were already thrown. The same
  // happens before an uncaught exception ends the process, unless there are other processes: those
  // must learn of it at once.
  ~StateSaver();
  StateSaver(const StateSaver&) = delete;
  StateSaver& operator=(const StateSaver&) = delete;

  // Returns once the checkpoint is safe. Waits for background saves first, but throws their Error
  // only after this one is safe.
  void save(const SaveRequest& request);

  // Copies the tensors and returns. At most two saves are in progress: a third waits for the first,
  // and throws its Error. This holds in all processes alike, however fast each of them writes.
  void save_in_background(SaveRequest request);

  // Waits for all background saves. Throws the first Error that was not thrown yet.
  void wait();

 private:
  static constexpr std::size_t kSnapshots = 2;

  // A background save.
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
                       const Owner& owner, const std::vector<std::string>& answers) const;
  // Waits until at most this many jobs are left. Throws the error of a job that it removes.
  void wait_for_jobs(std::size_t most);

  std::unique_ptr<Agreement> agreement_;
  std::shared_ptr<Timeline> timeline_;
  HostSnapshot snapshots_[kSnapshots];
  std::size_t next_snapshot_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;  // started and not yet waited for, in order
  bool stopping_ = false;
  std::thread thread_;  // started by the first job
  std::optional<BeforeEnd> before_end_;
};

}  // namespace accelerant::checkpoint
