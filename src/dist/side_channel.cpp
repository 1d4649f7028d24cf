#include "dist/side_channel.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "core/texts.h"
#include "dist/groups.h"
#include "dist/message.h"
#include "dist/store_board.h"
#include "dist/store_courier.h"
#include "dist/world_access.h"
#include "watch/failure.h"
#include "watch/heartbeat.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;
using Clock = StoreCourier::Clock;

constexpr const char* kCollect = "side_channel.collect";  // failpoints
constexpr const char* kAnnounce = "side_channel.announce";

// A limit of the store: c10d's server rejects more than 8 MiB.
constexpr size_t kLongestText = size_t{4} << 20;

// For the awaited processes when another process has failed: their text may be on its way, or they
// may be dead.
constexpr milliseconds kGrace(1000);

void check_length(const std::string& text) {
  if (text.size() <= kLongestText) return;
  throw Error(ErrorDetails{.problem = "A text is too long to be exchanged through the store",
                           .expected = c10::str("at most ", kLongestText, " bytes"),
                           .got = c10::str(text.size(), " bytes")});
}

Error stopped_error(const std::string& name) {
  return Error(ErrorDetails{.problem = c10::str("The exchange of messages with other processes (",
                                                name, ") was stopped")});
}

// --- One process ---------------------------------------------------------------------------------

class LocalChannel : public SideChannel {
 public:
  explicit LocalChannel(std::string name) : name_(std::move(name)) {}

  std::vector<std::string> collect(const std::string& mine) override {
    check(kCollect, mine);
    return {mine};
  }
  std::string announce(const std::string& text) override {
    check(kAnnounce, text);
    return text;
  }
  void stop() override {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }

 private:
  void check(const char* point, const std::string& text) {
    failpoint(point);
    check_length(text);
    const std::lock_guard lock(mutex_);
    if (is_stopped_) throw stopped_error(name_);
  }

  const std::string name_;
  std::mutex mutex_;
  bool is_stopped_ = false;
};

// --- Several -------------------------------------------------------------------------------------

using TextsByRank = std::vector<std::pair<int64_t, std::string>>;

// What a process knows about the others while it waits for some of them.
struct Sighting {
  TextsByRank ended = {};                                 // no longer use the channel, and why
  std::vector<std::optional<Heartbeat>> heartbeats = {};  // of the watched processes
};

// Keys of the store, all under "channel/<number of the channel>". For call n: "<n>/<rank>"
// (collect), "<n>" and "<n>/read" (announce). "ended/<rank>" and "ended" if processes have left the
// channel.
struct Keys {
  std::string prefix;

  std::string collected(int64_t call, int64_t rank) const {
    return c10::str(prefix, call, "/", rank);
  }
  std::string announced(int64_t call) const { return c10::str(prefix, call); }
  std::string readers(int64_t call) const { return c10::str(prefix, call, "/read"); }
  std::string ended(int64_t rank) const { return c10::str(prefix, "ended/", rank); }
  std::string any_ended() const { return prefix + "ended"; }
};

struct Awaited {
  int64_t rank;
  std::string key;
};
using AfterRead = std::function<void(c10d::Store&, const std::string& key)>;

std::vector<int64_t> ranks_of(const std::vector<Awaited>& awaited) {
  std::vector<int64_t> ranks;
  for (const Awaited& one : awaited) ranks.push_back(one.rank);
  return ranks;
}

// The available texts: all of them, or only those before the first missing one, which asks for
// less. Never reads a missing key: that would wait for it.
TextsByRank read_some(c10d::Store& store, const std::vector<Awaited>& awaited, bool all,
                      const AfterRead& after) {
  TextsByRank texts;
  for (const auto& [rank, key] : awaited) {
    if (store.check({key})) {
      texts.emplace_back(rank, store.get_to_str(key));
      after(store, key);
    } else if (!all) {
      break;
    }
  }
  return texts;
}

class StoreChannel : public SideChannel {
 public:
  StoreChannel(const World& world, std::string name)
      : name_(std::move(name)),
        rank_(world.rank()),
        size_(world.size()),
        timeout_(world.timeout()),
        // Many processes ask one store.
        longest_pause_(std::max<int64_t>(50, size_ / 2)),
        look_interval_(std::max<int64_t>(250, size_)),
        has_heartbeats_(WorldAccess::monitor(world) != nullptr),
        world_(WorldAccess::groups(world).life),
        keys_{c10::str("channel/", WorldAccess::groups(world).channels++, "/")},
        courier_(StoreCourier::start(WorldAccess::groups(world).store->clone())) {}

  ~StoreChannel() override {
    if (!process_.is_this_one()) return;
    stop();
    courier_->join(milliseconds(100));
  }

  std::vector<std::string> collect(const std::string& mine) override {
    return call(kCollect, mine, [&](int64_t number) { return collect_now(number, mine); });
  }

  std::string announce(const std::string& text) override {
    return call(kAnnounce, rank_ == 0 ? text : "",
                [&](int64_t number) { return announce_now(number, text); });
  }

  void stop() override { end(stopped_error(name_), "it was stopped"); }

 private:
  template <class F>
  auto ask(F f) {
    // Gives a working store enough time to answer.
    return courier_->ask(std::move(f), std::max(deadline_, Clock::now() + milliseconds(1000)));
  }

  template <class F>
  std::invoke_result_t<F, int64_t> call(const char* point, const std::string& text, F&& f) {
    try {
      failpoint(point);
      check_length(text);
      deadline_ = Clock::now() + timeout_;
      failed_at_.reset();
      return f(calls_++);
    } catch (const StoreCourier::Stopped&) {
      // Ended by stop(), or by an earlier error.
    } catch (const StoreCourier::NoAnswer&) {
      end(Error(ErrorDetails{.problem = c10::str("The store does not answer (", name_, ")"),
                             .expected = c10::str("an answer within ", timeout_text()),
                             .hint = "the process that serves it, rank 0 or the launcher, is "
                                     "suspended or unreachable"}));
    } catch (const Error& error) {
      end(error);
    } catch (const std::exception& error) {
      end(Error(ErrorDetails{.problem = c10::str("The connection to the store is lost (", name_,
                                                 "): ", c10d_message(error.what())),
                             .hint = "the process that serves it, rank 0 or the launcher, has "
                                     "ended: look at the end of its output"}));
    }
    const std::lock_guard lock(mutex_);
    throw Error(*error_);
  }

  std::vector<std::string> collect_now(int64_t number, const std::string& mine) {
    if (rank_ != 0) {
      put(keys_.collected(number, rank_), mine);
      return {};
    }
    std::vector<Awaited> awaited;
    for (int64_t rank = 1; rank < size_; ++rank)
      awaited.push_back({rank, keys_.collected(number, rank)});
    auto texts =
        await(awaited, [](c10d::Store& store, const std::string& key) { store.deleteKey(key); });
    texts[0] = mine;
    return texts;
  }

  std::string announce_now(int64_t number, const std::string& text) {
    const std::string announced = keys_.announced(number);
    if (rank_ == 0) {
      put(announced, text);
      return text;
    }
    const auto count_reader = [readers = keys_.readers(number), all = size_ - 1](
                                  c10d::Store& store, const std::string& key) {
      if (store.add(readers, 1) < all) return;
      store.deleteKey(key);  // nobody else needs it
      store.deleteKey(readers);
    };
    return await({{0, announced}}, count_reader)[0];
  }

  void put(const std::string& key, const std::string& text) {
    check_world();
    ask([key, text](c10d::Store& store) {
      store.set(key, text);
      return true;
    });
  }

  // Waits for these texts and returns them by rank; those of other ranks are empty. Then calls
  // after(store, key) for each.
  std::vector<std::string> await(std::vector<Awaited> awaited, const AfterRead& after) {
    std::vector<std::string> texts(static_cast<size_t>(size_));
    const auto take = [&](bool all) {
      check_world();
      auto found = ask([=](c10d::Store& store) { return read_some(store, awaited, all, after); });
      for (auto& read : found) {
        texts[static_cast<size_t>(read.first)] = std::move(read.second);
        std::erase_if(awaited, [&](const Awaited& one) { return one.rank == read.first; });
      }
      return !found.empty();
    };
    milliseconds pause(1);
    auto look_at = Clock::now() + look_interval_;
    while (true) {
      take(false);
      if (awaited.empty()) return texts;
      const auto now = Clock::now();
      const bool is_over = now >= deadline_;
      if (is_over || now >= look_at) {
        look_at = now + look_interval_;
        const auto reason = reason_to_give_up(ranks_of(awaited));
        // Texts that arrived before they ended count.
        if (take(true)) continue;
        if (reason) throw Error(*reason);
        if (is_over) throw late_error(ranks_of(awaited));
      }
      courier_->pause_until(std::min(now + pause, std::max(now, deadline_)));
      pause = std::min(pause + pause / 2 + milliseconds(1), longest_pause_);
    }
  }

  void check_world() const {
    if (!world_.expired()) return;
    throw Error(ErrorDetails{
        .problem = c10::str("The World ended before its processes were done (", name_, ")"),
        .hint = "wait for background work, or stop it, before ending the World"});
  }

  Error late_error(const std::vector<int64_t>& missing) const {
    return Error(ErrorDetails{
        .problem = c10::str("Not all processes have arrived (", name_, ")"),
        .expected = c10::str(size_, " processes within ", timeout_text()),
        .got = ranks_text(missing) + " missing",
        .hint =
            "look at the output of those processes; if they are only slow, raise the timeout of "
            "the process group"});
  }

  // Why the awaited processes will not come, if known.
  std::optional<Error> reason_to_give_up(const std::vector<int64_t>& awaited) {
    const Sighting seen = look(awaited);
    for (const auto& [rank, reason] : seen.ended)
      return given_up_error(rank, "no longer takes part: " + reason);
    std::optional<Error> failure_of_another;
    for (int64_t rank = 0; rank < size_; ++rank) {
      const auto& heartbeat = seen.heartbeats[static_cast<size_t>(rank)];
      if (!heartbeat || heartbeat->state == ProcessState::running) continue;
      const bool is_awaited = std::ranges::find(awaited, rank) != awaited.end();
      const std::string what =
          heartbeat->state == ProcessState::left ? "has finished"
          : heartbeat->state == ProcessState::failed
              ? "failed: " + heartbeat->message
              : "has lost its connection to another process: " + heartbeat->message;
      if (is_awaited) return given_up_error(rank, what);
      if (heartbeat->state != ProcessState::left && !failure_of_another)
        failure_of_another = given_up_error(rank, what);
    }
    if (!failure_of_another) return std::nullopt;
    if (!failed_at_) failed_at_ = Clock::now();
    if (Clock::now() - *failed_at_ < kGrace) return std::nullopt;
    return failure_of_another;
  }

  Error given_up_error(int64_t rank, const std::string& what) const {
    return Error(ErrorDetails{.problem = c10::str("Rank ", rank, " ", what, " (", name_, ")"),
                              .hint = "look at the end of its output"});
  }

  // Process 0 watches all; the others watch only it and themselves, so that not all processes read
  // what all write. They learn the rest when process 0 gives up.
  Sighting look(const std::vector<int64_t>& awaited) {
    std::vector<int64_t> watched;
    if (has_heartbeats_) {
      watched = {0, rank_};
      if (rank_ == 0) {
        watched.resize(static_cast<size_t>(size_));
        std::iota(watched.begin(), watched.end(), 0);
      }
    }
    return ask(
        [awaited, watched, keys = keys_, size = static_cast<size_t>(size_)](c10d::Store& store) {
          Sighting seen{.heartbeats = std::vector<std::optional<Heartbeat>>(size)};
          // Every process has written one on joining, or will soon.
          std::vector<std::string> beats;
          for (const int64_t rank : watched) beats.push_back(heartbeat_key(rank));
          if (!beats.empty() && store.check(beats)) {
            const auto values = store.multiGet(beats);
            for (size_t i = 0; i < watched.size(); ++i) {
              seen.heartbeats[static_cast<size_t>(watched[i])] =
                  heartbeat_of(std::string(values.at(i).begin(), values.at(i).end()));
            }
          }
          // Checked after the heartbeats: a process says why it leaves the channel before it ends.
          if (store.check({keys.any_ended()}))
            for (const int64_t rank : awaited)
              if (store.check({keys.ended(rank)}))
                seen.ended.emplace_back(rank, store.get_to_str(keys.ended(rank)));
          return seen;
        });
  }

  // May be called from any thread. `reason` is for those who wait for this process; by default the
  // error.
  void end(const Error& error, std::string reason = {}) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      error_ = error;
    }
    if (reason.empty()) reason = error.what();
    courier_->stop([keys = keys_, rank = rank_, size = size_, reason](c10d::Store& store) {
      store.set(keys.ended(rank), reason);
      if (store.add(keys.any_ended(), 1) < size) return;
      // Nobody is left to read them.
      for (int64_t other = 0; other < size; ++other) store.deleteKey(keys.ended(other));
      store.deleteKey(keys.any_ended());
    });
  }

  std::string timeout_text() const { return seconds_text(timeout_); }

  const std::string name_;
  const int64_t rank_;
  const int64_t size_;
  const milliseconds timeout_;
  const milliseconds longest_pause_;
  const milliseconds look_interval_;
  const bool has_heartbeats_;
  const std::weak_ptr<const int> world_;
  const Keys keys_;
  const std::shared_ptr<StoreCourier> courier_;
  const accelerant::detail::OwnProcess process_;

  // Used by the thread that makes the calls.
  int64_t calls_ = 0;
  Clock::time_point deadline_ = {};
  std::optional<Clock::time_point> failed_at_;  // when another process's failure was first seen

  std::mutex mutex_;
  std::optional<Error> error_;  // the error that ended the channel
};

}  // namespace

std::unique_ptr<SideChannel> SideChannel::open(const World& world, const std::string& name) {
  if (world.size() == 1) return std::make_unique<LocalChannel>(name);
  return std::make_unique<StoreChannel>(world, name);
}

}  // namespace accelerant::dist
