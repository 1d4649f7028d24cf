#include "accelerant/core/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "accelerant/core/error.h"
#include "core/launch_contract.h"

namespace accelerant {
namespace {

enum class Action { kill, stop, hang, exit, raise, sleep };

struct Rule {
  std::string name = {};
  Action action = Action::kill;
  int64_t milliseconds = 0;         // for sleep
  std::optional<int64_t> hit = {};  // only this one
  std::atomic<int64_t> hits = {0};  // so far
};

[[noreturn]] void refuse(std::string_view rule) {
  throw Error(ErrorDetails{
      .problem = "ACCELERANT_FAILPOINT cannot be parsed",
      .expected = "a comma-separated list of name:action[@n][/rank=k], where action is kill, stop, "
                  "hang, exit, throw or sleep=<milliseconds>",
      .got = "'" + std::string(rule) + "'"});
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) return std::nullopt;
  return number;
}

// Cuts `text` at the last `mark` and returns what follows it; empty if there is no mark.
std::optional<std::string_view> cut_after(std::string_view& text, std::string_view mark) {
  const size_t at = text.rfind(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + mark.size());
  text = text.substr(0, at);
  return rest;
}

bool read_action(std::string_view text, Rule& rule) {
  if (text.starts_with("sleep=")) {
    const auto milliseconds = parse_number(text.substr(6));
    rule.action = Action::sleep;
    rule.milliseconds = milliseconds.value_or(0);
    return milliseconds.has_value();
  }
  struct Named {
    std::string_view name;
    Action action;
  };
  constexpr Named kActions[] = {{"kill", Action::kill},
                                {"stop", Action::stop},
                                {"hang", Action::hang},
                                {"exit", Action::exit},
                                {"throw", Action::raise}};
  for (const auto& [name, action] : kActions) {
    if (text != name) continue;
    rule.action = action;
    return true;
  }
  return false;
}

// All rules that apply to this process.
using Rules = std::deque<Rule>;  // a deque, because atomics cannot move

void read_rule(std::string_view whole, Rules& rules) {
  std::string_view text = whole;
  Rule rule;
  bool applies_here = true;
  if (const auto rank = cut_after(text, "/rank=")) {
    const auto wanted = parse_number(*rank);
    if (!wanted) refuse(whole);
    applies_here = parse_number(launched_rank()) == wanted;
  }
  if (const auto hit = cut_after(text, "@")) {
    rule.hit = parse_number(*hit);
    if (rule.hit.value_or(0) < 1) refuse(whole);
  }
  const auto action = cut_after(text, ":");
  if (!action || text.empty() || !read_action(*action, rule)) refuse(whole);
  if (!rule.hit && rule.action != Action::sleep) rule.hit = 1;
  if (!applies_here) return;
  Rule& kept = rules.emplace_back();
  kept.name = text;
  kept.action = rule.action;
  kept.milliseconds = rule.milliseconds;
  kept.hit = rule.hit;
}

std::unique_ptr<Rules> read_rules() {
  auto rules = std::make_unique<Rules>();
  const char* value = std::getenv("ACCELERANT_FAILPOINT");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    read_rule(rest.substr(0, comma), *rules);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) refuse(value);
  }
  return rules;
}

void act(const Rule& rule) {
  switch (rule.action) {
    case Action::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Action::stop:
      // raise() stops the calling thread before it returns; kill() may stop another thread first.
      ::raise(SIGSTOP);
      break;
    case Action::hang:
      while (true) ::pause();
    case Action::exit:
      ::_exit(3);
    case Action::raise:
      throw Error("failpoint " + rule.name + ": thrown because ACCELERANT_FAILPOINT asks for it");
    case Action::sleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(rule.milliseconds));
      break;
  }
}

// Not read yet, nothing to do (the usual case, detected by one load), or rules to check.
enum class State { unread, idle, armed };
std::atomic<State> state = State::unread;
std::mutex read_mutex;
std::unique_ptr<Rules> all_rules;  // not modified once read

void read_once() {
  const std::lock_guard lock(read_mutex);
  if (state.load(std::memory_order_acquire) != State::unread) return;
  all_rules = read_rules();
  state.store(all_rules->empty() ? State::idle : State::armed, std::memory_order_release);
}

}  // namespace

void failpoint(const char* name) {
  if (state.load(std::memory_order_acquire) == State::idle) return;
  read_once();
  std::vector<const Rule*> due;  // every rule counts this hit, even if an earlier one throws
  for (Rule& rule : *all_rules) {
    if (rule.name != name) continue;
    const int64_t hit = 1 + rule.hits.fetch_add(1, std::memory_order_relaxed);
    if (!rule.hit || *rule.hit == hit) due.push_back(&rule);
  }
  for (const Rule* rule : due) act(*rule);
}

void reload_failpoints() {
  {
    const std::lock_guard lock(read_mutex);
    state.store(State::unread, std::memory_order_release);
  }
  read_once();
}

}  // namespace accelerant
