#include "dist/transport.h"

#include <c10/util/StringUtil.h>

#include <charconv>
#include <chrono>
#include <thread>
#include <vector>

#include "accelerant/core/error.h"
#include "compat/c10d.h"
#include "core/texts.h"
#include "dist/exchange.h"
#include "dist/groups.h"
#include "dist/message.h"
#include "dist/world_access.h"
#include "watch/failure.h"
#include "watch/monitor.h"

namespace accelerant::dist {
namespace {

c10d::ProcessGroup& group_of(Groups& groups, Channel channel) {
  return channel == Channel::data ? *groups.data : *groups.control;
}

c10d::ReduceOp operator_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::max:
      return c10d::ReduceOp::MAX;
    case Reduction::min:
      return c10d::ReduceOp::MIN;
    case Reduction::product:
      return c10d::ReduceOp::PRODUCT;
    case Reduction::sum:
    case Reduction::mean:
      return c10d::ReduceOp::SUM;
  }
  return c10d::ReduceOp::SUM;
}

// --- Who has arrived at wait_for_everyone --------------------------------------------------------

std::string arrival_key(int64_t rank) { return c10::str("wait_for_everyone/", rank); }

// The number of the latest wait that the process has reached; 0 if none.
int64_t latest_wait(c10d::Store& store, int64_t rank) {
  if (!store.check({arrival_key(rank)})) return 0;
  const std::vector<uint8_t> value = store.get(arrival_key(rank));
  const std::string text(value.begin(), value.end());
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The processes that have not reached this wait.
std::vector<int64_t> missing_ranks(const World& world, Groups& groups) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    if (latest_wait(*groups.store, rank) < groups.waits) missing.push_back(rank);
  }
  return missing;
}

[[noreturn]] void refuse_wait(const World& world, Groups& groups, const std::string& name,
                              std::chrono::milliseconds waited, std::string reason) {
  // A process that died is noticed at once, while others may just not have arrived yet.
  const bool is_early = waited < world.timeout();
  if (Monitor* const monitor = WorldAccess::monitor(world)) {
    // Processes that still wait for this one should name the missing ones, not this one.
    monitor->fail(ProcessState::lost, reason);
    if (is_early) reason = monitor->who_ended(std::chrono::milliseconds(500)).cause;
  }
  std::string found;
  try {
    std::vector<int64_t> missing = missing_ranks(world, groups);
    for (int i = 0; is_early && missing.size() > 1 && i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      missing = missing_ranks(world, groups);
    }
    found = missing.empty() ? c10::str("all have arrived, but then: ", reason)
                            : c10::str(ranks_text(missing), " missing (", reason, ")");
  } catch (const std::exception& error) {
    found = c10::str(reason, "; cannot find out who is missing: ", error.what());
  }
  const std::string which = name.empty() ? "" : c10::str(" ('", name, "')");
  ErrorDetails details{
      .problem = "after " + seconds_text(waited),
      .expected =
          c10::str("all ", world.size(), " processes within ", seconds_text(world.timeout())),
      .got = found,
      .hint =
          "look at the output of the missing processes, and check that all of them make this "
          "call; if they are only slow, raise ProcessGroupOptions::timeout"};
  const std::string rest = Error(details).what();
  const std::string operation = c10::str("wait_for_everyone", which, " failed ");
  throw ExchangeError(c10::str(operation, "on rank ", world.rank(), " ", rest), operation + rest,
                      /*is_consequence=*/is_early);
}

}  // namespace

void all_gather(const World& world, Channel channel, const char* name, at::Tensor output,
                at::Tensor input) {
  exchange(world, name, [&](Groups& groups) {
    compat::all_gather_single(group_of(groups, channel), output, input)->wait();
  });
}

void all_reduce(const World& world, Channel channel, const char* name, at::Tensor tensor,
                Reduction reduction) {
  exchange(world, name, [&](Groups& groups) {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = operator_of(reduction);
    group_of(groups, channel).allreduce(tensors, options)->wait();
  });
}

void all_reduce_pack(const World& world, const char* name, const std::vector<at::Tensor>& tensors,
                     const Pack& pack, Reduction reduction) {
  std::vector<at::Tensor> flat(tensors.size());
  for (const std::size_t i : pack) flat[i] = tensors[i].view({-1});
  const at::Tensor buffer = joined(flat, pack);
  all_reduce(world, Channel::data, name, buffer, reduction);
  if (pack.size() == 1) return;  // in place
  int64_t begin = 0;
  for (const std::size_t i : pack) {
    const int64_t end = begin + flat[i].numel();
    flat[i].copy_(buffer.slice(0, begin, end));
    begin = end;
  }
}

void broadcast_tensor(const World& world, Channel channel, const char* name, at::Tensor tensor,
                      int64_t from_process) {
  exchange(world, name, [&](Groups& groups) {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = from_process;
    group_of(groups, channel).broadcast(tensors, options)->wait();
  });
}

void barrier(const World& world, const std::string& name) {
  exchange(world, "wait_for_everyone", [&](Groups& groups) {
    // Gloo's barrier says who is missing on rank 0 only, if at all. The entry in the store, which
    // nobody waits for, lets every process find out.
    ++groups.waits;
    const auto begin = std::chrono::steady_clock::now();
    try {
      groups.store->set(arrival_key(world.rank()), c10::str(groups.waits));
      groups.control->barrier()->wait();
    } catch (const std::exception& error) {
      const auto waited = std::chrono::steady_clock::now() - begin;
      refuse_wait(world, groups, name,
                  std::chrono::duration_cast<std::chrono::milliseconds>(waited),
                  c10d_message(error.what()));
    }
  });
}

int64_t next_call(const World& world) { return ++WorldAccess::groups(world).calls; }

void require_rank(const World& world, const char* name, int64_t rank) {
  if (rank >= 0 && rank < world.size()) return;
  throw Error(ErrorDetails{.problem = c10::str(name, " from a process that does not exist"),
                           .expected = c10::str("a rank from 0 to ", world.size() - 1),
                           .got = c10::str(rank)});
}

}  // namespace accelerant::dist
