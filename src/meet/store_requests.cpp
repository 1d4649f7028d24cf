#include "meet/store_requests.h"

#include <algorithm>
#include <exception>

namespace accelerant::meet {
namespace {

using std::chrono::milliseconds;

std::string done() { return MessageWriter(Outcome::done).finish(); }

std::string done(int64_t number) {
  MessageWriter message(Outcome::done);
  message.number(number);
  return message.finish();
}

std::string done(std::string_view text) {
  MessageWriter message(Outcome::done);
  message.text(text);
  return message.finish();
}

std::string failed(std::string_view why) {
  MessageWriter message(Outcome::failed);
  message.text(why);
  return message.finish();
}

}  // namespace

std::optional<std::string> StoreRequests::handle(Asker asker, std::string_view request) {
  MessageReader reader(request);
  try {
    return carry_out(asker, reader);
  } catch (const BadMessage&) {
    throw;
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

std::optional<std::string> StoreRequests::carry_out(Asker asker, MessageReader& reader) {
  const auto operation = static_cast<Operation>(reader.kind());
  switch (operation) {
    case Operation::set:
    case Operation::append: {
      const std::string key(reader.text());
      const std::string_view value = reader.text();
      reader.expect_end();
      operation == Operation::set ? table_.set(key, value) : table_.append(key, value);
      wake(key);
      return done();
    }
    case Operation::multi_set: {
      const std::vector<std::string> keys = reader.texts();
      const std::vector<std::string> values = reader.texts();
      reader.expect_end();
      if (keys.size() != values.size()) throw BadMessage();
      for (std::size_t i = 0; i < keys.size(); ++i) table_.set(keys[i], values[i]);
      for (const std::string& key : keys) wake(key);
      return done();
    }
    case Operation::get:
    case Operation::wait: {
      const int64_t timeout = reader.number();
      Wait wait = {.keys = reader.texts(), .wants_values = operation == Operation::get};
      reader.expect_end();
      return begin_to_wait(asker, std::move(wait), timeout);
    }
    case Operation::check: {
      const std::vector<std::string> keys = reader.texts();
      reader.expect_end();
      return done(table_.first_missing(keys) == nullptr ? 1 : 0);
    }
    case Operation::add: {
      const std::string key(reader.text());
      const int64_t number = reader.number();
      reader.expect_end();
      const int64_t sum = table_.add(key, number);
      wake(key);
      return done(sum);
    }
    case Operation::compare_set: {
      const std::string key(reader.text());
      const std::string_view expected = reader.text();
      const std::string_view desired = reader.text();
      reader.expect_end();
      const std::string value = table_.compare_set(key, expected, desired);
      if (table_.has(key)) wake(key);
      return done(value);
    }
    case Operation::remove: {
      const std::string key(reader.text());
      reader.expect_end();
      return done(table_.remove(key) ? 1 : 0);
    }
    case Operation::count_keys:
      reader.expect_end();
      return done(static_cast<int64_t>(table_.size()));
  }
  throw BadMessage();
}

// Below 0: without end.
std::optional<std::string> StoreRequests::begin_to_wait(Asker asker, Wait wait, int64_t timeout) {
  const std::string* const missing = table_.first_missing(wait.keys);
  if (missing == nullptr) return settle(wait);
  wait.missing = *missing;
  by_missing_[wait.missing].insert(asker);
  if (timeout >= 0) {
    constexpr int64_t kLongestWait =
        int64_t{10} * 365 * 24 * 3'600'000;  // the clock must not overflow
    wait.deadline = Clock::now() + milliseconds(std::min(timeout, kLongestWait));
    deadlines_.emplace(*wait.deadline, asker);
  }
  waiting_[asker] = std::move(wait);
  return std::nullopt;
}

// Nothing if a key is missing.
std::optional<std::string> StoreRequests::settle(const Wait& wait) const {
  if (table_.first_missing(wait.keys) != nullptr) return std::nullopt;
  if (!wait.wants_values) return done();
  std::vector<std::string> values;
  std::size_t size = 1 + kLengthSize;
  for (const std::string& key : wait.keys) {
    size += kLengthSize + table_.get(key).size();
    if (size > kLongestAnswer) return failed("the values are too long to be sent at once");
    values.push_back(table_.get(key));
  }
  MessageWriter message(Outcome::done);
  message.texts(values);
  return message.finish();
}

// The key exists now.
void StoreRequests::wake(const std::string& key) {
  const auto found = by_missing_.extract(key);
  if (!found.empty()) woken_.insert(woken_.end(), found.mapped().begin(), found.mapped().end());
}

std::vector<StoreRequests::Answer> StoreRequests::take_answers(Clock::time_point now) {
  std::vector<Answer> answers;
  for (const Asker asker : std::exchange(woken_, {})) {
    const auto found = waiting_.find(asker);
    if (found == waiting_.end()) continue;
    if (auto answer = settle(found->second)) {
      answers.push_back({.to = asker, .message = std::move(*answer)});
      forget(asker);
    } else {
      found->second.missing = *table_.first_missing(found->second.keys);
      by_missing_[found->second.missing].insert(asker);
    }
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Asker asker = deadlines_.begin()->second;
    answers.push_back({.to = asker, .message = MessageWriter(Outcome::timeout).finish()});
    forget(asker);
  }
  return answers;
}

std::optional<StoreRequests::Clock::time_point> StoreRequests::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void StoreRequests::forget(Asker asker) {
  const auto found = waiting_.find(asker);
  if (found == waiting_.end()) return;
  const Wait& wait = found->second;
  if (wait.deadline) deadlines_.erase({*wait.deadline, asker});
  if (const auto others = by_missing_.find(wait.missing); others != by_missing_.end()) {
    others->second.erase(asker);
    if (others->second.empty()) by_missing_.erase(others);
  }
  waiting_.erase(found);
}

}  // namespace accelerant::meet
