#include "watch/speaker.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/log.h"

namespace accelerant::dist {

// Shared with the thread, which may be left blocked.
struct Speaker::State {
  std::mutex mutex = {};
  std::condition_variable changed = {};
  std::deque<std::string> texts = {};
  bool is_running = false;  // the thread, which ends when it has nothing left to say

  void run() {
    std::unique_lock lock(mutex);
    while (!texts.empty()) {
      const std::string text = std::move(texts.front());
      texts.pop_front();
      lock.unlock();
      try {
        log(LogLevel::warning, text);
      } catch (...) {  // thrown by the program's own log handler: not a reason to stop
      }
      lock.lock();
    }
    is_running = false;
    changed.notify_all();
  }
};

Speaker::Speaker() : state_(accelerant::detail::make_shared_for_process<State>()) {}

Speaker::~Speaker() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return !state_->is_running; });
}

void Speaker::warn(std::string text) {
  const std::lock_guard lock(state_->mutex);
  state_->texts.push_back(std::move(text));
  if (std::exchange(state_->is_running, true)) return;
  try {
    std::thread([state = state_] { state->run(); }).detach();
  } catch (const std::system_error&) {  // no threads left: a warning less
    state_->texts.clear();
    state_->is_running = false;
  }
}

}  // namespace accelerant::dist
