// A connection to the store of a run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/fd.h"
#include "meet/place.h"
#include "meet/secret.h"
#include "meet/store_message.h"

namespace accelerant::meet {

// Nobody has answered at that place in time.
struct StoreUnreachable : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The store and this process do not agree on the secret, or something else listens there.
struct StoreRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The connection is lost, and stays lost: the process that serves the store has ended.
struct StoreLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The keys did not come in time.
struct StoreTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The store cannot do what was asked.
struct StoreFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thread-safe: one request at a time, and while one waits for keys the others wait too.
class StoreClient {
 public:
  using Timeout = std::chrono::milliseconds;

  // Keeps trying until the store is there and has proven that it knows the secret.
  StoreClient(Place place, std::optional<Secret> secret, Timeout timeout);

  // A new connection to the same store.
  std::unique_ptr<StoreClient> connect_again(Timeout timeout) const {
    return std::make_unique<StoreClient>(place_, secret_, timeout);
  }

  void set(const std::string& key, std::string_view value);
  void append(const std::string& key, std::string_view value);
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);
  // These two wait until all keys exist; below 0: without end.
  std::vector<std::string> get(const std::vector<std::string>& keys, Timeout timeout);
  void wait(const std::vector<std::string>& keys, Timeout timeout);
  bool check(const std::vector<std::string>& keys);
  int64_t add(const std::string& key, int64_t number);
  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired);
  bool remove(const std::string& key);
  int64_t count_keys();

 private:
  using Clock = std::chrono::steady_clock;

  // Empty, or why there is no connection yet.
  std::string try_to_connect(Clock::time_point deadline);
  std::string connect_to(const Endpoint& endpoint, Clock::time_point deadline);
  // A message's content behind its outcome. `keys` are for the error of a timeout.
  std::string ask(MessageWriter request, const std::vector<std::string>& keys = {},
                  Timeout timeout = {});
  int64_t ask_number(MessageWriter request);
  std::string exchange(const std::string& request);
  [[noreturn]] void lose(const std::string& why);

  const Place place_;
  const std::optional<Secret> secret_;
  std::mutex mutex_;
  Fd socket_;
  std::string lost_;  // why the connection is lost
};

}  // namespace accelerant::meet
