#include "core/process_end.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace accelerant {
namespace {

struct Work {
  const BeforeEnd* owner;
  std::function<void()> work;
};

// Belongs to an EndHandler, or to a std::terminate handler that was set before ours.
struct Turn {
  const EndHandler* owner = nullptr;
  std::function<void(Ending)> tell = {};
  std::terminate_handler handler = nullptr;
};

// The handlers of the program that ours has replaced, the newest first. Never removed, and not
// locked, so that a forked child can read them whatever the threads of its parent were doing.
struct Replaced {
  std::terminate_handler handler;
  const Replaced* older;
};
std::atomic<const Replaced*> replaced = nullptr;

std::vector<Turn> turns_of_program() {
  std::vector<Turn> turns;
  for (const Replaced* each = replaced; each != nullptr; each = each->older) {
    turns.insert(turns.begin(), {.handler = each->handler});
  }
  return turns;
}

struct Registry {
  std::atomic<bool> have_works_begun = false;
  std::mutex works_mutex = {};
  std::vector<Work> works = {};
  std::atomic<std::thread::id> ending = {};
  std::recursive_mutex turns_mutex = {};         // a `tell` may itself terminate
  std::vector<Turn> turns = turns_of_program();  // newest last
};

// Created on first use, possibly while the program is being loaded. Never destroyed: a program may
// also terminate after main. A forked child gets another one, since the works and the handlers of
// its parent speak for the parent.
Registry& registry() {
  static auto* const made = new detail::OnePerProcess<Registry>();
  return made->get();
}

// Runs once. A second thread does not wait for the work: the work might be waiting for that thread.
void do_works() {
  if (registry().have_works_begun.exchange(true)) return;
  // Held while the work runs, so that its owners are not destroyed.
  const std::lock_guard lock(registry().works_mutex);
  // Newest first, as destructors would do it: later work may rely on what was set up before it.
  const std::vector<Work>& works = registry().works;
  for (auto each = works.rbegin(); each != works.rend(); ++each) each->work();
}

// The thread that is let through may call this again.
void let_one_thread_through() {
  std::thread::id other = {};
  if (!registry().ending.compare_exchange_strong(other, std::this_thread::get_id()) &&
      other != std::this_thread::get_id())
    while (true) ::pause();
}

void end_if_preempted() {
  const std::exception_ptr error = std::current_exception();
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const Preempted& preempted) {
    const std::lock_guard lock(registry().turns_mutex);
    const auto newest = std::find_if(registry().turns.rbegin(), registry().turns.rend(),
                                     [](const Turn& turn) { return turn.owner != nullptr; });
    if (newest != registry().turns.rend()) newest->tell(Ending::preempted);
    end_preempted(preempted);
  } catch (...) {  // left to the handlers, which inspect it themselves
  }
}

[[noreturn]] void on_terminate() {
  do_works();
  let_one_thread_through();
  end_if_preempted();
  std::unique_lock lock(registry().turns_mutex);
  if (registry().turns.empty()) std::abort();
  const Turn turn = std::move(registry().turns.back());
  registry().turns.pop_back();
  if (turn.owner != nullptr) {
    turn.tell(Ending::failed);  // holding the lock keeps the owner alive
    end_process(1);
  }
  lock.unlock();
  turn.handler();
  std::abort();
}

void take_over() {
  const std::lock_guard lock(registry().turns_mutex);
  const std::terminate_handler before = std::set_terminate(on_terminate);
  if (before == nullptr || before == on_terminate) return;
  auto& turns = registry().turns;
  if (!turns.empty() && turns.back().handler == before) return;
  turns.push_back({.handler = before});
  replaced = new Replaced{.handler = before, .older = replaced};
}

}  // namespace

BeforeEnd::BeforeEnd(std::function<void()> work) {
  take_over();
  const std::lock_guard lock(registry().works_mutex);
  registry().works.push_back({this, std::move(work)});
}

BeforeEnd::~BeforeEnd() {
  if (!process_.is_this_one()) return;
  const std::lock_guard lock(registry().works_mutex);
  std::erase_if(registry().works, [this](const Work& each) { return each.owner == this; });
}

EndHandler::EndHandler(std::function<void(Ending)> tell) {
  take_over();
  const std::lock_guard lock(registry().turns_mutex);
  registry().turns.push_back({.owner = this, .tell = std::move(tell)});
}

EndHandler::~EndHandler() {
  if (!process_.is_this_one()) return;
  const std::lock_guard lock(registry().turns_mutex);
  std::erase_if(registry().turns, [this](const Turn& turn) { return turn.owner == this; });
}

void handle_preempted() { take_over(); }

void end_preempted(const Preempted& preempted) noexcept {
  std::cout.flush();  // in case of sync_with_stdio(false)
  std::fflush(stdout);
  std::fprintf(stderr, "accelerant: %s, exit code %d\n", preempted.what(), kPreemptedExitCode);
  end_process(kPreemptedExitCode);
}

void end_process(int exit_code) noexcept {
  std::fflush(stdout);
  std::fflush(stderr);
  ::_exit(exit_code);
}

}  // namespace accelerant
