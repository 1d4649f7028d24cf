// Carries out what the processes of a run ask of its store, without their connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "meet/store_message.h"
#include "meet/store_table.h"

namespace accelerant::meet {

class StoreRequests {
 public:
  using Clock = std::chrono::steady_clock;
  using Asker = int;  // whoever has at most one request under way; a number of the caller's choice

  struct Answer {
    Asker to = 0;
    std::string message = {};  // with its length in front
  };

  // The answer, or nothing if the request waits for keys. Throws BadMessage if it cannot be read.
  std::optional<std::string> handle(Asker asker, std::string_view request);

  // Answers to requests that have waited: their keys exist now, or their time is over.
  std::vector<Answer> take_answers(Clock::time_point now);

  bool waits(Asker asker) const { return waiting_.contains(asker); }
  std::optional<Clock::time_point> next_deadline() const;

  // The asker is gone.
  void forget(Asker asker);

 private:
  struct Wait {
    std::vector<std::string> keys = {};
    bool wants_values = false;
    std::string missing = {};  // the first key that does not exist
    std::optional<Clock::time_point> deadline = {};
  };

  std::optional<std::string> carry_out(Asker asker, MessageReader& reader);
  std::optional<std::string> begin_to_wait(Asker asker, Wait wait, int64_t timeout);
  std::optional<std::string> settle(const Wait& wait) const;
  void wake(const std::string& key);

  StoreTable table_;
  std::unordered_map<Asker, Wait> waiting_;
  std::unordered_map<std::string, std::set<Asker>> by_missing_;  // who waits for a key
  std::set<std::pair<Clock::time_point, Asker>> deadlines_;
  std::vector<Asker> woken_;  // whose missing key has come
};

}  // namespace accelerant::meet
