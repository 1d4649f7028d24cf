// How processes wait for those that have not joined yet.
#include "dist/rendezvous.h"

#include <accelerant/core/log.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/expect_error.h"

namespace {

using accelerant::dist::await_all;
using accelerant::dist::Environment;
using accelerant::dist::store_of;
using std::chrono::milliseconds;
using std::chrono::seconds;

Environment rank_of(int64_t rank, int64_t size) {
  Environment environment;
  environment.process_index = rank;
  environment.num_processes = environment.local_num_processes = size;
  return environment;
}

// Collects what is logged during its lifetime, and calls `at` with each text.
class Logged {
 public:
  explicit Logged(std::function<void(const std::string&)> at = {}) {
    before_ = accelerant::set_log_handler([this, at](accelerant::LogLevel, std::string_view text) {
      {
        const std::lock_guard lock(mutex_);
        texts_.emplace_back(text);
      }
      if (at) at(std::string(text));
    });
  }
  ~Logged() { accelerant::set_log_handler(before_); }

  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
  accelerant::LogHandler before_;
};

TEST(Rendezvous, TheMissingAreNamedWhileWaitingAndAtTheEnd) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set("joined/0", "1");
  Logged logged;
  // The lowest rank that has joined speaks for all.
  EXPECT_TRUE(contains(whole_error_of([&] {
                         await_all(*store, "joined", rank_of(3, 6), milliseconds(300),
                                   milliseconds(100));
                       }),
                       "expected 6 processes within 0.3 s, got ranks 1, 2, 4 and 5 missing"));
  EXPECT_EQ(logged.texts(), std::vector<std::string>{}) << "rank 0 says it";
  const std::string error = whole_error_of(
      [&] { await_all(*store, "joined", rank_of(0, 6), milliseconds(2000), milliseconds(100)); });
  EXPECT_TRUE(contains(error, "got ranks 1, 2, 4 and 5 missing"));
  const auto texts = logged.texts();
  ASSERT_GE(texts.size(), 2U);
  EXPECT_LE(texts.size(), 5U);  // at 0.1, 0.2, 0.4, 0.8 and 1.6 s
  EXPECT_TRUE(contains(texts[0], "ranks 1, 2, 4 and 5 have not joined"));
  EXPECT_TRUE(contains(texts[0], "up to 2 s (join_timeout)"));
}

TEST(Rendezvous, TheFirstThatIsThereSpeaks) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  Logged logged([&](const std::string&) {
    for (const char* key : {"joined/0", "joined/1"}) store->set(key, "1");
  });
  await_all(*store, "joined", rank_of(2, 3), seconds(60), milliseconds(50));
  const auto texts = logged.texts();
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_TRUE(contains(texts[0], "ranks 0 and 1 have not joined"));
}

// Nobody serves the store, as when rank 0 ends before it gets to that.
TEST(Rendezvous, AStoreThatIsNotThereIsNamedWhileWaiting) {
  Environment environment = rank_of(1, 2);
  environment.local_process_index = 1;
  environment.master_port = 1;
  // An exception from the program's log handler must not end the wait.
  Logged logged([](const std::string&) { throw std::runtime_error("the log is full"); });
  const std::string error =
      whole_error_of([&] { store_of(environment, seconds(2), milliseconds(100)); });
  EXPECT_TRUE(contains(error, "cannot reach the store at 127.0.0.1:1"));
  const auto texts = logged.texts();
  ASSERT_FALSE(texts.empty());
  EXPECT_TRUE(contains(texts[0], "no store at 127.0.0.1:1 yet"));
  EXPECT_TRUE(contains(texts[0], "Rank 0 serves it"));
}

TEST(Rendezvous, OneProcessOfAMachineSpeaks) {
  Environment environment = rank_of(2, 3);
  environment.local_process_index = 2;
  environment.master_port = 1;
  Logged logged;
  error_of([&] { store_of(environment, seconds(1), milliseconds(50)); });
  EXPECT_EQ(logged.texts(), std::vector<std::string>{});
}

TEST(Rendezvous, WhoHasJoinedMayStillBeConnecting) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set("joined/1", "1");
  const std::string error = whole_error_of(
      [&] { await_all(*store, "connected", rank_of(0, 2), milliseconds(50), milliseconds(1000)); });
  EXPECT_TRUE(contains(error, "have connected"));
}

}  // namespace
