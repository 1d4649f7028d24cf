#include "store/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/failpoint.h"
#include "accelerant/core/log.h"
#include "core/files.h"
#include "store/lock_file.h"

namespace accelerant::checkpoint {
namespace {

using std::chrono::milliseconds;

// Goes on while this process, or the whole machine, is suspended.
std::int64_t milliseconds_since_start() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

std::string seconds_of(milliseconds time) {
  const std::int64_t seconds = (time.count() + 999) / 1000;
  return std::to_string(seconds) + (seconds == 1 ? " second" : " seconds");
}

std::string real_path_of(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(::realpath(path.c_str(), nullptr),
                                                          &std::free);
  return found ? found.get() : path;
}

}  // namespace

// Lets its Accelerators share a lock. Held while one of them waits for other processes: the others
// would only wait for the same.
struct FolderLock::InProcess {
  std::mutex mutex = {};
  std::weak_ptr<FolderLock> lock = {};
  bool is_held = false;  // longer than `lock` lives: until its file is gone
  std::condition_variable released = {};
};

std::shared_ptr<FolderLock::InProcess> FolderLock::known_of(const std::string& path) {
  struct Known {
    std::mutex mutex = {};
    std::map<std::string, std::shared_ptr<InProcess>> by_path = {};
  };
  // Never destroyed: locks may live in static objects. A forked child holds none of its parent's.
  static auto* const all = new accelerant::detail::OnePerProcess<Known>();
  Known& known = all->get();
  const std::lock_guard guard(known.mutex);
  std::erase_if(known.by_path, [](const auto& entry) { return entry.second.use_count() == 1; });
  auto& entry = known.by_path[path];
  if (!entry) entry = accelerant::detail::make_shared_for_process<InProcess>();
  return entry;
}

// Watches whether a holder that cannot be looked at renews its lock, and waits for one that has been
// killed.
class FolderLock::Watch {
 public:
  Watch(std::string subject, milliseconds lease) : subject_(std::move(subject)), lease_(lease) {}

  enum class Verdict { over, alive, undecided };

  Verdict verdict_on(const LockFile& claim, const LockCandidate& mine) {
    const Life life = claim.holder ? life_of(*claim.holder) : Life::unknown;
    if (life == Life::ended) return Verdict::over;
    if (life == Life::running || life == Life::stopped) return Verdict::alive;
    const std::int64_t lease = std::chrono::nanoseconds(lease_).count();
    if (life == Life::unknown && mine.disk_time() - claim.renewed >= lease) return Verdict::over;
    const std::int64_t now = milliseconds_since_start();
    if (claim.id != id_) {
      id_ = claim.id;
      first_ = claim.renewed;
      began_ = now;
      if (life == Life::ending) {
        log(LogLevel::info, subject_ + " is in use by " + claim.text() +
                                ", which has been killed. Waiting for its end");
      } else if (claim.holder) {
        log(LogLevel::warning, subject_ + " may be in use by " + claim.text() +
                                   ", which cannot be looked at from here. Waiting up to " +
                                   seconds_of(lease_) + " for a sign of life");
      }
    }
    if (now - began_ < lease_.count()) {
      const bool is_renewed = life == Life::unknown && claim.renewed != first_;
      return is_renewed ? Verdict::alive : Verdict::undecided;
    }
    // What a thread does that hangs in the kernel may still happen.
    return life == Life::ending || claim.renewed != first_ ? Verdict::alive : Verdict::over;
  }

 private:
  std::string subject_;
  milliseconds lease_;
  std::string id_;
  std::int64_t first_ = 0;
  std::int64_t began_ = 0;
};

std::shared_ptr<FolderLock> FolderLock::acquire(const std::string& path,
                                                const std::string& subject) {
  make_folders(folder_of(path));
  const auto known = known_of(join_path(real_path_of(folder_of(path)), name_of(path)));
  std::unique_lock guard(known->mutex);
  std::shared_ptr<FolderLock> lock;
  known->released.wait(guard, [&] {
    lock = known->lock.lock();
    return lock != nullptr || !known->is_held;
  });
  if (lock) return lock;
  lock.reset(new FolderLock(path, subject));
  lock->known_ = known;
  known->lock = lock;
  known->is_held = true;
  return lock;
}

FolderLock::FolderLock(std::string path, std::string subject)
    : path_(std::move(path)),
      subject_(std::move(subject)),
      rules_(lock_rules()),
      renewing_(std::make_unique<Renewing>()) {
  take();
  looked_ = milliseconds_since_start();
  try {
    renewing_->thread = std::thread([this] { renew_until_over(); });
  } catch (const std::system_error&) {
    // Saves renew the lock, too.
  }
}

FolderLock::~FolderLock() {
  if (holder_.pid != ::getpid()) {
    // The thread exists only in the parent. Waiting for it, or for its condition, would hang.
    static_cast<void>(renewing_.release());
    return;
  }
  release();
  if (renewing_->thread.joinable()) renewing_->thread.join();
  if (!known_) return;
  const std::lock_guard guard(known_->mutex);
  known_->is_held = false;
  known_->released.notify_all();
}

std::string FolderLock::successor_of(const std::string& id) const { return path_ + ".after-" + id; }

void FolderLock::take() {
  Watch watch(subject_, rules_.lease);
  while (true) {
    holder_ = this_process_as_holder();
    const LockCandidate mine(path_, holder_);
    failpoint("lock.candidate");
    try {
      while (try_to_take(mine, watch) == Progress::again) {
      }
    } catch (const SystemError& error) {
      // This process was suspended for so long that another one has removed its candidate.
      if (error.number() != ENOENT) throw;
      continue;
    }
    failpoint("lock.taken");
    try {
      clean_up();
    } catch (const Error&) {
      // A few small files stay for the next run.
    }
    return;
  }
}

FolderLock::Progress FolderLock::try_to_take(const LockCandidate& mine, Watch& watch) {
  if (mine.put_new(path_)) return Progress::taken;
  // The holder, and processes that have ended while they replaced the one before them.
  std::vector<LockFile> chain;
  for (std::string path = path_;;) {
    const auto claim = read_lock_file(path);
    if (!claim) return Progress::again;
    chain.push_back(*claim);
    const auto verdict = watch.verdict_on(chain.back(), mine);
    if (verdict != Watch::Verdict::over) {
      const auto now = read_lock_file(path_);
      if (!now || now->id != chain.front().id) return Progress::again;
      if (verdict == Watch::Verdict::alive) refuse(chain.back(), mine);
      std::this_thread::sleep_for(std::min(rules_.renewal / 4, milliseconds(250)));
      return Progress::again;
    }
    path = successor_of(chain.back().id);
    if (mine.put_new(path)) return replace(mine, chain) ? Progress::taken : Progress::again;
  }
}

// Called with the only file that says who comes after the last of the chain. False if another
// process had replaced the holder before that file was made.
bool FolderLock::replace(const LockCandidate& mine, const std::vector<LockFile>& chain) const {
  failpoint("lock.successor");
  for (std::size_t i = 1; i < chain.size(); ++i) drop_name(path_ + "." + chain[i].id);
  const auto now = read_lock_file(path_);
  const bool is_unchanged = now && now->id == chain.front().id;
  if (is_unchanged) {
    failpoint("lock.before_replace");
    rename_path(mine.path(), path_);
    const LockFile& before = chain.front();
    const bool has_ended = before.holder && life_of(*before.holder) == Life::ended;
    if (has_ended) {
      log(LogLevel::info, subject_ + " is taken over from " + before.text() + ", which has ended");
    } else {
      log(LogLevel::warning, subject_ + " is taken over from " + before.text() +
                                 ", which has given no sign of life for " +
                                 seconds_of(rules_.lease));
    }
    for (const LockFile& claim : chain) drop_name(successor_of(claim.id));
  } else {
    drop_name(successor_of(chain.back().id));
  }
  return is_unchanged;
}

// Removes what processes have left that ended while they waited for the lock or took it. Whoever
// holds a file L.after-X now finds that L does not name X.
void FolderLock::clean_up() const {
  const std::string prefix = name_of(path_) + ".";
  const auto own = read_lock_file(path_);
  if (!own) return;
  for (const std::string& name : entries_of(folder_of(path_))) {
    if (!name.starts_with(prefix)) continue;
    const std::string path = join_path(folder_of(path_), name);
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest == holder_.id || rest == "after-" + holder_.id) continue;
    if (rest.starts_with("after-")) {
      drop_name(path);
      continue;
    }
    const auto claim = read_lock_file(path);
    if (!claim || !claim->holder || claim->holder->id != rest) continue;
    const Life life = life_of(*claim->holder);
    const std::int64_t age = own->renewed - claim->renewed;
    const bool is_old = age >= std::chrono::nanoseconds(rules_.lease).count();
    if (life == Life::ended || (life == Life::unknown && is_old)) drop_name(path);
  }
}

void FolderLock::refuse(const LockFile& claim, const LockCandidate& mine) const {
  drop_name(mine.path());  // if nobody catches the Error, destructors do not run
  const Life life = claim.holder ? life_of(*claim.holder) : Life::unknown;
  const std::string state = life == Life::stopped   ? ", which is stopped but may continue"
                            : life == Life::ending  ? ", which has been killed but hangs in a call "
                                                      "to the system: look at its disk"
                            : life == Life::unknown ? ", which has just given a sign of life"
                                                    : "";
  throw LockRefused(
      ErrorDetails{.problem = subject_ + " is in use",
                   .expected = "one run at a time",
                   .got = claim.text() + state,
                   .hint = "wait until that process ends, end it, or use another folder. If this "
                           "one is a copy, remove " +
                           path_});
}

void FolderLock::require_held() {
  if (holder_.pid != ::getpid()) {
    throw Error(ErrorDetails{
        .problem = subject_ + " is in use",
        .expected = "the process that began the run",
        .got = "process " + std::to_string(::getpid()) + ", forked from " + text_of(holder_),
        .hint = "save in the process that began the run"});
  }
  const std::lock_guard guard(renewing_->mutex);
  if (is_lost_ || is_released_) throw_lost();
  auto claim = read_lock_file(path_);
  if (!claim && milliseconds_since_start() - looked_ < rules_.lease.count()) {
    // Removed, perhaps with the whole folder, but not by a run that has taken it over.
    make_folders(folder_of(path_));
    LockCandidate(path_, holder_).put_new(path_);
    claim = read_lock_file(path_);
  }
  note(claim);
  if (is_lost_) throw_lost();
}

void FolderLock::note(const std::optional<LockFile>& claim) {
  const std::int64_t now = milliseconds_since_start();
  if (claim && claim->id == holder_.id) {
    ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
  } else if (claim || now - looked_ >= rules_.lease.count()) {
    is_lost_ = true;
    taken_by_ = claim ? claim->text() : "a run that has ended since";
  }
  looked_ = now;
}

void FolderLock::renew_until_over() {
  std::unique_lock lock(renewing_->mutex);
  while (!renewing_->changed.wait_for(lock, rules_.renewal, [&] { return renewing_->is_over; })) {
    try {
      note(read_lock_file(path_));
    } catch (const std::exception&) {
      continue;  // the disk does not answer at present
    }
    if (!is_lost_) continue;
    log(LogLevel::warning, subject_ + " was taken over by " + taken_by_ +
                               ", because this process was suspended. It cannot save any more");
    return;
  }
}

Owner FolderLock::owner() {
  return {.id = holder_.id, .require_held = [this] { require_held(); }};
}

void FolderLock::release() noexcept {
  if (holder_.pid != ::getpid()) return;
  try {
    const std::lock_guard guard(renewing_->mutex);
    renewing_->is_over = true;
    renewing_->changed.notify_all();
    if (std::exchange(is_released_, true) || is_lost_) return;
    const auto claim = read_lock_file(path_);
    if (claim && claim->id == holder_.id) drop_name(path_);
  } catch (const std::exception&) {
    // The next run finds the file of a process that has ended.
  }
}

void FolderLock::throw_lost() const {
  throw Error(ErrorDetails{.problem = subject_ + " belongs to another run now",
                           .expected = text_of(holder_),
                           .got = taken_by_.empty() ? "a lock that was released" : taken_by_,
                           .hint = "this process was suspended for longer than " +
                                   seconds_of(rules_.lease) +
                                   "; end it, and let the other run go on"});
}

}  // namespace accelerant::checkpoint
