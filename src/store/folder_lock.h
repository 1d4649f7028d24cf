// One run at a time may change a folder: a file in it, or beside it, names the process that may.
//
//   const auto lock = FolderLock::acquire("runs/first/accelerant.lock", "The project runs/first");
//   …
//   lock->require_held();   // before anything is renamed or removed
//
// Whoever finds the file of a process that has ended takes the lock over. Within one machine the
// kernel knows whether the process lives. A process on another machine, or in another container,
// counts as alive while it renews the lock, which a sleeping thread does every 15 seconds; without
// a renewal for 90 seconds it has lost the lock. If it was only suspended, it notices when it
// continues: from then on require_held() throws.
//
// The protocol needs nothing but links, renames and removals that are atomic, which network disks
// have, too. (flock() is not: some network disks ignore it, and others keep the lock of a machine
// that is gone.) The file L is created complete, by a link from a private file L.<id>. To replace
// the holder X, a process first creates L.after-X, which only one can, makes sure that L still
// names X, and renames its own file to L. If it dies in between, the next one replaces both: it
// creates L.after-<id of the dead one>, and removes the private file of the dead one, so that it
// cannot be renamed if its process was only suspended.
//
// Between a successful require_held() and the action after it, a process may still be suspended for
// longer than a lease. So the new holder begins by removing the folders that the old one was
// writing: renaming them fails then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "accelerant/core/error.h"
#include "store/lock_holder.h"

namespace accelerant::checkpoint {

struct LockFile;
class LockCandidate;

// The lock belongs to a run that is alive.
class LockRefused : public Error {
 public:
  using Error::Error;
};

// Who changes a checkpoint: marks its unfinished folders, and makes sure that it still may.
struct Owner {
  std::string id = {};                      // empty: the folders have no mark
  std::function<void()> require_held = {};  // throws if it may not any more; empty: it always may
};

class FolderLock {
 public:
  // Takes the lock at `path`, creating folders as needed. `subject` begins its messages. Within a
  // process, all who ask for one path share the lock. Throws LockRefused if another process holds
  // it, after up to a lease if that process cannot be looked at; SystemError if the disk refuses.
  static std::shared_ptr<FolderLock> acquire(const std::string& path, const std::string& subject);

  // Releases the lock. Does nothing in a forked child: it belongs to the parent.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& id() const { return holder_.id; }

  // For those of this process who share the lock and must not work at the same time. Waits.
  std::unique_lock<std::mutex> turn() { return std::unique_lock(turn_); }

  // Throws Error if another run has the lock now, or this process is a forked child.
  void require_held();

  // The lock must outlive it.
  Owner owner();

  // Removes the file. Thread-safe; does not wait for the renewing thread, so that it may be called
  // while the process ends.
  void release() noexcept;

 private:
  class Watch;
  struct InProcess;  // what this process knows of a path
  struct Renewing {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_over = false;
    std::thread thread;
  };
  enum class Progress { taken, again };

  FolderLock(std::string path, std::string subject);
  static std::shared_ptr<InProcess> known_of(const std::string& path);
  std::string successor_of(const std::string& id) const;
  void take();
  Progress try_to_take(const LockCandidate& mine, Watch& watch);
  bool replace(const LockCandidate& mine, const std::vector<LockFile>& chain) const;
  void clean_up() const;
  [[noreturn]] void refuse(const LockFile& claim, const LockCandidate& mine) const;
  void renew_until_over();
  void note(const std::optional<LockFile>& claim);
  [[noreturn]] void throw_lost() const;

  std::string path_;
  std::string subject_;
  LockRules rules_;
  LockHolder holder_;
  std::mutex turn_;
  std::shared_ptr<InProcess> known_;
  std::unique_ptr<Renewing> renewing_;  // its mutex guards what follows
  std::int64_t looked_ = 0;             // when last, in milliseconds since the machine started
  bool is_released_ = false;
  bool is_lost_ = false;
  std::string taken_by_ = {};  // who has the lock now, if it is lost and that is known
};

}  // namespace accelerant::checkpoint
