// The files of a lock (folder_lock.h): what they say, and the operations on them that are atomic on
// network disks, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "store/lock_holder.h"

namespace accelerant::checkpoint {

struct LockFile {
  std::string id = {};                    // the holder's, or one for a file without a holder
  std::optional<LockHolder> holder = {};  // empty: the file is damaged, or being written
  std::int64_t renewed = 0;               // nanoseconds, by the clock of the disk

  std::string text() const { return holder ? text_of(*holder) : "an unknown process"; }
};

// Empty if there is no such file. Throws SystemError if it cannot be read.
std::optional<LockFile> read_lock_file(const std::string& path);

// Removes a name that others may have removed already, or will remove.
void drop_name(const std::string& path);

// The private file of a process that wants the lock; removed by the destructor.
class LockCandidate {
 public:
  LockCandidate(const std::string& lock, const LockHolder& holder);
  ~LockCandidate();
  LockCandidate(const LockCandidate&) = delete;
  LockCandidate& operator=(const LockCandidate&) = delete;

  const std::string& path() const { return path_; }

  // Creates another file with the same content. False if there is one already.
  bool put_new(const std::string& path) const;

  // The present time by the clock of the disk, which may be another machine's.
  std::int64_t disk_time() const;

 private:
  std::string path_;
  std::string text_;
};

}  // namespace accelerant::checkpoint
