#include "checkpoint/state_saver.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/track/timeline.h"
#include "checkpoint/full_disk.h"
#include "core/files.h"
#include "store/rotation.h"

namespace accelerant::checkpoint {
namespace {

using nlohmann::json;

class Alone final : public Agreement {
 public:
  int64_t rank() const override { return 0; }
  bool is_alone() const override { return true; }
  std::vector<std::string> collect(const std::string& mine) override { return {mine}; }
  std::string announce(const std::string& text) override { return text; }
};

// A message between processes: {"error": "..."}, or a result. Error texts may hold any bytes.
std::string to_text(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string failure(const std::string& what) { return to_text({{"error", what}}); }

std::string failure_in(const json& answer) {
  return answer.contains("error") ? answer.at("error").get<std::string>() : "";
}

// Runs f and returns its message; an exception becomes an error message.
template <class F>
std::string message_of(F&& f) {
  try {
    return to_text(f());
  } catch (const SystemError& error) {
    return to_text({{"error", error.what()}, {"disk_is_full", error.is_full_disk()}});
  } catch (const std::exception& error) {
    return failure(error.what());
  }
}

bool is_of_full_disk(const json& answer) { return answer.value("disk_is_full", false); }

std::string not_saved(const std::string& path, const std::string& why) {
  return "The checkpoint " + path + " was not saved: " + why;
}

std::shared_ptr<FolderLock> lock_of_checkpoint(const std::string& path) {
  // Checks the path before a file is made beside it.
  const Owner with_id = {.id = "000000000000"};  // names get longer by it
  const std::string target = CheckpointFolder(path, Existing::replace, with_id).path();
  return FolderLock::acquire(target + ".lock", "The checkpoint " + target);
}

// A save that finds its folder gone in the middle has most likely lost the lock.
std::string cause_of(const Owner& owner, const std::string& failed) {
  try {
    owner.require_held();
    return failed;
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string failures_in(const std::vector<std::string>& answers) {
  std::string text;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const std::string what = failure_in(json::parse(answers[rank]));
    if (what.empty()) continue;
    if (!text.empty()) text += "\n";
    text += answers.size() == 1 ? what : "rank " + std::to_string(rank) + ": " + what;
  }
  return text;
}

json to_json(const std::map<std::string, FileRecord>& records) {
  json files = json::object();
  for (const auto& [name, record] : records) files[name] = {record.size, record.xxh3};
  return files;
}

}  // namespace

std::unique_ptr<Agreement> agreement_with_nobody() { return std::make_unique<Alone>(); }

StateSaver::StateSaver(std::unique_ptr<Agreement> agreement, std::shared_ptr<Timeline> timeline)
    : agreement_(std::move(agreement)), timeline_(std::move(timeline)) {
  if (agreement_->is_alone()) before_end_.emplace([this] { finish_before_end(); });
}

StateSaver::~StateSaver() {
  for (bool waiting = true; waiting;) {
    try {
      wait();
      waiting = false;
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StateSaver::save(const SaveRequest& request) {
  std::exception_ptr earlier;
  for (bool waiting = true; waiting;) {
    try {
      wait();
      waiting = false;
    } catch (...) {
      if (!earlier) earlier = std::current_exception();
    }
  }
  run(request);
  if (earlier) std::rethrow_exception(earlier);
}

void StateSaver::save_in_background(SaveRequest request) {
  wait_for_jobs(kSnapshots - 1);
  auto job = std::make_shared<Job>();
  job->snapshot = &snapshots_[next_snapshot_];
  next_snapshot_ = (next_snapshot_ + 1) % kSnapshots;
  try {
    const auto span = timeline_->span("copy for checkpoint", "save");
    request.parts = job->snapshot->take(request.parts);
  } catch (const std::exception& error) {
    // The other processes rely on this one to take part.
    request.failure = error.what();
    request.parts.clear();
  }
  job->request = std::move(request);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run_jobs(); });
    } catch (const std::system_error&) {
      // Better late than not at all.
      job->snapshot->wait_until_copied();
      run(job->request);
      return;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void StateSaver::wait() { wait_for_jobs(0); }

void StateSaver::wait_for_jobs(std::size_t most) {
  std::unique_lock lock(mutex_);
  if (jobs_.size() <= most) return;
  const auto span = timeline_->span("wait for checkpoint writer", "save");
  while (jobs_.size() > most) {
    const std::shared_ptr<Job> job = jobs_.front();
    changed_.wait(lock, [&] { return job->done; });
    jobs_.pop_front();
    if (!job->error) continue;
    lock.unlock();  // an uncaught exception waits for the other saves
    std::rethrow_exception(job->error);
  }
}

void StateSaver::finish_before_end() noexcept {
  if (std::this_thread::get_id() == thread_.get_id()) return;
  std::unique_lock lock(mutex_);
  const auto all_done = [this] {
    return std::ranges::all_of(jobs_, [](const auto& job) { return job->done; });
  };
  if (!all_done()) {
    log(LogLevel::warning,
        "an exception ends this process; the checkpoint in progress is saved first");
  }
  changed_.wait(lock, all_done);
  for (const auto& job : jobs_) {
    if (!job->error) continue;
    try {
      std::rethrow_exception(job->error);
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
    }
  }
}

void StateSaver::run_jobs() {
  timeline_->name_thread("checkpoint writer");
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Job> job;
    changed_.wait(lock, [&] {
      const auto next = std::ranges::find_if(jobs_, [](const auto& each) { return !each->done; });
      if (next != jobs_.end()) job = *next;
      return job != nullptr || stopping_;
    });
    if (!job) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      job->snapshot->wait_until_copied();
      run(job->request);
    } catch (...) {
      error = std::current_exception();
    }
    job->request = {};
    lock.lock();
    job->error = error;
    job->done = true;
    changed_.notify_all();
  }
}

void StateSaver::run(const SaveRequest& request) {
  const auto span = timeline_->span("write checkpoint", "save");
  const bool is_first = agreement_->rank() == 0;
  std::shared_ptr<FolderLock> lock;  // in the first process
  std::string begun;
  if (is_first) {
    begun = message_of([&] {
      try {
        lock = request.lock ? request.lock : lock_of_checkpoint(request.path);
        CheckpointFolder(request.path, request.existing, lock->owner()).begin();
      } catch (const SystemError& error) {
        if (!error.is_full_disk()) throw Error(not_saved(request.path, error.what()));
        throw Error(not_saved(request.path, error.what() + advice_on_full_disk(request.path, 0)));
      } catch (const std::exception& error) {
        throw Error(not_saved(request.path, error.what()));
      }
      return json{{"path", request.path}, {"owner", lock->id()}};
    });
  }
  const json beginning = json::parse(agreement_->announce(begun));
  if (const std::string what = failure_in(beginning); !what.empty()) {
    await_readers();
    throw Error(what);
  }

  const Owner owner = lock ? lock->owner() : Owner{.id = beginning.at("owner").get<std::string>()};
  const CheckpointFolder folder(beginning.at("path").get<std::string>(), request.existing, owner);
  const std::vector<std::string> answers = agreement_->collect(write(request, folder));
  const json verdict =
      json::parse(agreement_->announce(is_first ? conclude(request, folder, owner, answers) : ""));
  await_readers();
  if (const std::string what = failure_in(verdict); !what.empty()) throw Error(what);
}

// The first process may end after a save, and the channel to the others with it.
void StateSaver::await_readers() { agreement_->collect(""); }

std::string StateSaver::write(const SaveRequest& request, const CheckpointFolder& folder) const {
  if (!request.failure.empty()) return failure(request.failure);
  json answer = json::parse(message_of([&] {
    std::map<std::string, FileRecord> records;
    for (const StatePart& part : request.parts) write_part(part, folder, records);
    return json{{"files", to_json(records)}};
  }));
  uint64_t bytes = 0;
  for (const StatePart& part : request.parts) bytes += tensor_bytes(part);
  answer["bytes"] = bytes;
  return to_text(answer);
}

std::string StateSaver::conclude(const SaveRequest& request, const CheckpointFolder& folder,
                                 const Owner& owner,
                                 const std::vector<std::string>& answers) const {
  std::string failed = failures_in(answers);
  bool is_full = false;
  uint64_t bytes = 0;
  for (const std::string& text : answers) {
    const json answer = json::parse(text);
    is_full = is_full || is_of_full_disk(answer);
    bytes += answer.value("bytes", uint64_t{0});
  }
  if (failed.empty()) {
    const json committed = json::parse(message_of([&] {
      Manifest manifest{.content = request.content};
      for (const std::string& text : answers) {
        const json answer = json::parse(text);
        for (const auto& [name, record] : answer.at("files").items()) {
          manifest.files[name] = {.size = record[0].get<uint64_t>(),
                                  .xxh3 = record[1].get<uint64_t>()};
        }
      }
      folder.commit(manifest);
      return json::object();
    }));
    failed = failure_in(committed);
    is_full = is_of_full_disk(committed);
  }
  if (!failed.empty()) {
    folder.abandon();
    failed = cause_of(owner, failed);
    if (is_full) failed += advice_on_full_disk(folder.path(), bytes);
    return failure(not_saved(folder.path(), failed));
  }
  if (request.total_limit) {
    try {
      prune(folder_of(folder.path()), *request.total_limit, owner);
    } catch (const std::exception& error) {
      // The new checkpoint exists regardless.
      log(LogLevel::warning, std::string("cannot remove old checkpoints: ") + error.what());
    }
  }
  return to_text(json::object());
}

}  // namespace accelerant::checkpoint
