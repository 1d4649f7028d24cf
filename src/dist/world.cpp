#include "accelerant/dist/world.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/track/timeline.h"
#include "dist/backends.h"
#include "dist/exchange.h"
#include "dist/groups.h"
#include "dist/rendezvous.h"
#include "dist/store_board.h"
#include "watch/failure.h"
#include "watch/monitor.h"
#include "watch/progress.h"

namespace accelerant::dist {
namespace {

// Worlds that are still connected when the process exits (held by a static object, say) must end before
// the libraries under them do: a process group that outlives CUDA's own clean-up aborts the process.
class OpenWorlds {
 public:
  static OpenWorlds& instance() {
    static auto* worlds = new OpenWorlds();
    return *worlds;
  }

  void add(World* world) {
    const std::lock_guard lock(mutex_);
    worlds_.push_back(world);
    if (!std::exchange(registered_, true)) std::atexit([] { instance().close_all(); });
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
  // A number for each World of this process, the same on all; and for each restart, since a store that
  // the launcher serves still holds the keys of the attempt before.
  static std::atomic<int64_t> made = 0;
  return c10::str("accelerant/", environment.restart_count, "/", made++);
}

bool debug_from_environment() {
  const char* value = std::getenv("ACCELERATE_DEBUG_MODE");
  if (value == nullptr || *value == '\0') return false;
  std::string text = value;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"n", "no", "f", "false", "off", "0"}) {
    if (text == no) return false;
  }
  throw Error(
      ErrorDetails{.problem = "The environment variable ACCELERATE_DEBUG_MODE cannot be used",
                   .expected = "true or false",
                   .got = c10::str("'", value, "'"),
                   .hint = "change it, or set ProcessGroupOptions::debug in the program"});
}

std::unique_ptr<Groups> connect(const Environment& environment, const ProcessGroupOptions& options,
                                c10::Device device) {
  c10d::
      setDebugLevelFromEnvironment();  // TORCH_DISTRIBUTED_DEBUG, which only Python's bindings read
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
      progress_(std::make_unique<Progress>()),
      timeline_(std::make_shared<Timeline>(TimelineOptions{.rank = environment.process_index})) {
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
  failure_handler_ = std::make_unique<FailureHandler>(rank(), *progress_, nullptr);
  try {
    groups_ = connect(environment_, options_, device_);
    if (options_.monitor.enabled) {
      monitor_ =
          std::make_unique<Monitor>(rank(), size(), options_.monitor,
                                    make_store_board(*groups_->store, rank(), size()), *progress_);
    }
    // A process that ended at once, now that it is connected, would seem lost to those still at it.
    await_all(*groups_->store, "connected", environment_, options_.join_timeout);
  } catch (const Error&) {
    throw;
  } catch (...) {
    rethrow_exchange_error(*this, "connecting the processes", std::current_exception());
  }
  failure_handler_.reset();  // one that knows the monitor takes its place
  failure_handler_ = std::make_unique<FailureHandler>(rank(), *progress_, monitor_.get());
  OpenWorlds::instance().add(this);
}

std::shared_ptr<World> World::join(const Environment& environment,
                                   const ProcessGroupOptions& options, c10::Device device) {
  return std::shared_ptr<World>(new World(environment, options, device));
}

World::~World() { close(); }

void World::close() {
  if (!groups_) return;
  OpenWorlds::instance().remove(this);
  if (monitor_ && std::uncaught_exceptions() > 0) {
    monitor_->fail(ProcessState::failed, "an exception is ending its training");
  }
  failure_handler_.reset();
  monitor_.reset();
  for (const auto& registered : before_close_) {
    if (const auto f = registered.lock()) (*f)();
  }
  // The training's group first: its NCCL part may still talk through the store.
  groups_->data->shutdown();
  groups_->data.reset();
  groups_->control.reset();
  groups_.reset();
}

std::shared_ptr<void> World::before_close(std::function<void()> f) {
  std::erase_if(before_close_, [](const auto& registered) { return registered.expired(); });
  auto shared = std::make_shared<std::function<void()>>(std::move(f));
  before_close_.push_back(shared);
  return shared;
}

Groups& World::groups() const {
  if (groups_) return *groups_;
  throw Error(ErrorDetails{
      .problem = "An exchange between processes without process groups",
      .expected = "several processes that are connected",
      .got = environment_.use_distributed() ? "groups that have ended" : "a single process"});
}

void rethrow_exchange_error(const World& world, const char* name, std::exception_ptr error) {
  rethrow_as_error(error, {.operation = name,
                           .rank = world.rank(),
                           .size = world.size(),
                           .step = world.progress().step(),
                           .monitor = world.monitor()});
}

}  // namespace accelerant::dist
