#include "accelerant/dist/world.h"

#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "core/stack_frames.h"
#include "core/texts.h"
#include "dist/backends.h"
#include "dist/exchange.h"
#include "dist/groups.h"
#include "dist/rendezvous.h"
#include "dist/store_board.h"
#include "dist/world_access.h"
#include "watch/failure.h"

namespace accelerant::dist {

struct World::Parts {
  accelerant::detail::OwnProcess process = {};
  Progress progress = {};
  std::shared_ptr<Timeline> timeline;
  std::unique_ptr<Groups> groups = {};
  std::unique_ptr<Monitor> monitor = {};
  std::unique_ptr<FailureHandler> failure_handler = {};
  std::vector<std::weak_ptr<std::function<void()>>> before_close = {};
};

namespace {

// Worlds that are still connected when the process exits (for example, held by a static object)
// must end before the libraries below them: a process group that outlives CUDA's own clean-up
// aborts the process.
class OpenWorlds {
 public:
  static OpenWorlds& instance() {
    static auto* worlds = new accelerant::detail::OnePerProcess<OpenWorlds>();
    return worlds->get();  // a forked child has none of its parent's
  }

  void add(World* world) {
    const std::lock_guard lock(mutex_);
    worlds_.push_back(world);
    if (!std::exchange(registered_, true)) {
      std::atexit([] { instance().close_all(); });
    }
  }

  void remove(World* world) {
    const std::lock_guard lock(mutex_);
    std::erase(worlds_, world);
  }

 private:
  void close_all() {
    std::vector<World*> open;
    {
      const std::lock_guard lock(mutex_);
      open = worlds_;
    }
    for (World* world : open) world->close();
  }

  std::mutex mutex_;
  std::vector<World*> worlds_;
  bool registered_ = false;
};

std::string key_prefix(const Environment& environment) {
  // A number for each World of this process, the same on all processes, and for each restart, since
  // a store that the launcher serves still holds the keys of the previous attempt.
  static std::atomic<int64_t> made = 0;
  return c10::str("accelerant/", environment.restart_count, "/", made++);
}

bool debug_from_environment() {
  const char* value = std::getenv("ACCELERATE_DEBUG_MODE");
  if (value == nullptr || *value == '\0') return false;
  if (const auto flag = parse_flag(value)) return *flag;
  throw Error(
      ErrorDetails{.problem = "The environment variable ACCELERATE_DEBUG_MODE cannot be used",
                   .expected = "true or false",
                   .got = c10::str("'", value, "'"),
                   .hint = "change it, or set ProcessGroupOptions::debug in the program"});
}

// c10d logs the errors of its connections with all stack frames, thirty lines for each process that
// ends a little earlier than another one, and buries what matters.
void leave_out_stack_frames() {
  if (wants_stack_frames()) return;
  [[maybe_unused]] static const bool once = [] {
    c10::SetStackTraceFetcher([]() -> std::string { return ""; });
    return true;
  }();
}

std::unique_ptr<Groups> connect(const Environment& environment, const ProcessGroupOptions& options,
                                c10::Device device) {
  c10d::
      setDebugLevelFromEnvironment();  // TORCH_DISTRIBUTED_DEBUG, which only Python's bindings read
  leave_out_stack_frames();
  auto groups = std::make_unique<Groups>();
  groups->store = c10::make_intrusive<c10d::PrefixStore>(
      key_prefix(environment), store_of(environment, options.join_timeout));
  await_all(*groups->store, "joined", environment, options.join_timeout);
  groups->control =
      make_group(groups->store, "control", environment, options, c10::Device(c10::kCPU));
  groups->data = make_group(groups->store, "data", environment, options, device);
  return groups;
}

}  // namespace

World::World(const Environment& environment, const ProcessGroupOptions& options, c10::Device device)
    : environment_(environment),
      options_(options),
      device_(device),
      parts_(std::make_unique<Parts>()) {
  parts_->timeline = std::make_shared<Timeline>(TimelineOptions{.rank = environment.process_index});
  const auto is_positive = [](std::chrono::milliseconds time) { return time.count() > 0; };
  if (!is_positive(options.timeout) || !is_positive(options.join_timeout)) {
    throw Error(
        ErrorDetails{.problem = "A timeout of the process groups is out of range",
                     .expected = "more than 0 ms",
                     .got = c10::str("timeout ", options.timeout.count(), " ms, join_timeout ",
                                     options.join_timeout.count(), " ms")});
  }
  is_debug_ = options.debug ? *options.debug : debug_from_environment();
  if (!environment.use_distributed() && !options.with_one_process) return;
  parts_->failure_handler = std::make_unique<FailureHandler>(rank(), parts_->progress, nullptr);
  try {
    parts_->groups = connect(environment_, options_, device_);
    if (options_.monitor.enabled) {
      parts_->monitor = std::make_unique<Monitor>(
          rank(), size(), options_.monitor,
          make_store_board(*parts_->groups->store, rank(), size()), parts_->progress);
    }
    // A process that ended at once, right after connecting, would seem lost to those still
    // connecting.
    await_all(*parts_->groups->store, "connected", environment_, options_.join_timeout);
  } catch (const Error&) {
    throw;
  } catch (...) {
    rethrow_exchange_error(*this, "connecting the processes", std::current_exception());
  }
  parts_->failure_handler.reset();  // replaced by one that knows the monitor
  parts_->failure_handler =
      std::make_unique<FailureHandler>(rank(), parts_->progress, parts_->monitor.get());
  OpenWorlds::instance().add(this);
}

std::shared_ptr<World> World::join(const Environment& environment,
                                   const ProcessGroupOptions& options, c10::Device device) {
  return std::shared_ptr<World>(new World(environment, options, device),
                                accelerant::detail::DeleteInOwnProcess());
}

World::~World() { close(); }

bool World::is_connected() const { return parts_->groups != nullptr; }

void World::close() {
  if (!parts_->groups || !parts_->process.is_this_one()) return;
  OpenWorlds::instance().remove(this);
  if (parts_->monitor && std::uncaught_exceptions() > 0) {
    parts_->monitor->fail(ProcessState::failed, "an exception is ending its training");
  }
  parts_->failure_handler.reset();
  parts_->monitor.reset();
  for (const auto& registered : parts_->before_close) {
    if (const auto f = registered.lock()) (*f)();
  }
  // The data group first: its NCCL part may still use the store.
  parts_->groups->data->shutdown();
  parts_->groups->data.reset();
  parts_->groups->control.reset();
  parts_->groups.reset();
}

std::shared_ptr<void> WorldAccess::before_close(World& world, std::function<void()> f) {
  auto& all = world.parts_->before_close;
  std::erase_if(all, [](const auto& registered) { return registered.expired(); });
  auto shared = std::make_shared<std::function<void()>>(std::move(f));
  all.push_back(shared);
  return shared;
}

Groups& WorldAccess::groups(const World& world) {
  if (!world.parts_->process.is_this_one()) {
    throw Error(ErrorDetails{
        .problem = "A forked child cannot exchange data between processes",
        .expected = "the process that created the Accelerator or World",
        .got = "a child that it forked, which has neither its threads nor its place in the run",
        .hint = "exchange in the parent; a child can compute, or start another program (exec)"});
  }
  if (world.is_connected()) return *world.parts_->groups;
  throw Error(
      ErrorDetails{.problem = "Cannot exchange data between processes without process groups",
                   .expected = "several connected processes",
                   .got = world.environment().use_distributed() ? "groups that have ended"
                                                                : "a single process"});
}

Progress& WorldAccess::progress(const World& world) { return world.parts_->progress; }

const std::shared_ptr<Timeline>& WorldAccess::timeline(const World& world) {
  return world.parts_->timeline;
}

Monitor* WorldAccess::monitor(const World& world) { return world.parts_->monitor.get(); }

void rethrow_exchange_error(const World& world, const char* name, std::exception_ptr error) {
  rethrow_as_error(error, {.operation = name,
                           .rank = world.rank(),
                           .size = world.size(),
                           .step = WorldAccess::progress(world).step(),
                           .monitor = WorldAccess::monitor(world)});
}

}  // namespace accelerant::dist
