// The batches that each process of a run gets.
//
// Input: {"length": 17, "batch_size": 4, "drop_last": false, "num_processes": 3,
//         "split_batches": false, "even_batches": true, "shuffle": false, "seed": 0, "epoch": 0,
//         "skip_batches": 0}. "batches": [[indices] ...], the batches of a batch sampler, may
//         replace length and batch_size. With "mode": "stream" the samples come from a stream that
//         each process reads, with "dispatch" from one that rank 0 reads for all; "sized" means
//         that it knows its length. These two modes take neither batches nor shuffle.
// Output: {"ranks": [{"batches": [[indices] ...], "length": 2, "remainder": 5} ...]}.
#include <accelerant/order/detail/epoch_plan.h>
#include <accelerant/order/detail/sharding.h>
#include <accelerant/order/sampler.h>

#include <vector>

#include "refusal.h"
#include "stream_ranks.h"
#include "topics.h"

namespace replay {
namespace {

using accelerant::data::EpochPlan;
using accelerant::data::RandomSampler;
using accelerant::data::SequentialSampler;
using accelerant::data::Sharding;
using accelerant::data::ShardingOptions;
using nlohmann::json;

json rank_to(const EpochPlan& plan, const Sharding& whole) {
  json batches = json::array();
  for (int64_t step = 0; step < plan.steps(); ++step) batches.push_back(plan.indices(step));
  return {{"batches", batches}, {"length", plan.steps()}, {"remainder", whole.remainder()}};
}

// The epoch without the skipped steps. The remainder is that of the whole epoch.
template <class Lengths>
json rank_from(const std::vector<int64_t>& order, const Lengths& lengths,
               const ShardingOptions& options, int64_t skip) {
  const Sharding whole(lengths, options);
  return rank_to(EpochPlan(order, Sharding(lengths, options, whole.position_before(skip))), whole);
}

json ranks_to(const json& document) {
  ShardingOptions options{.batch_size = document.value("batch_size", int64_t{1}),
                          .drop_last = document.value("drop_last", false),
                          .num_processes = document.value("num_processes", int64_t{1}),
                          .split_batches = document.value("split_batches", false),
                          .even_batches = document.value("even_batches", true)};
  const int64_t skip = document.value("skip_batches", int64_t{0});
  const auto seed = document.value("seed", uint64_t{0});
  const auto epoch = document.value("epoch", int64_t{0});
  json ranks = json::array();
  do {
    if (document.contains("batches")) {
      std::vector<int64_t> order;
      std::vector<int64_t> lengths;
      for (const auto& batch : document.at("batches").get<std::vector<std::vector<int64_t>>>()) {
        lengths.push_back(static_cast<int64_t>(batch.size()));
        order.insert(order.end(), batch.begin(), batch.end());
      }
      ranks.push_back(rank_from(order, lengths, options, skip));
    } else {
      const auto length = document.at("length").get<int64_t>();
      const auto order = document.value("shuffle", false)
                             ? RandomSampler(length).order(seed, epoch)
                             : SequentialSampler(length).order(seed, epoch);
      ranks.push_back(rank_from(order, length, options, skip));
    }
  } while (++options.rank < options.num_processes);
  return {{"ranks", ranks}};
}

}  // namespace

json replay_sharding(const json& document) {
  return result_or_error(
      [&] { return document.contains("mode") ? stream_ranks_to(document) : ranks_to(document); });
}

}  // namespace replay
