#include "stream_ranks.h"

#include <accelerant/data/loader.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/fake_channel.h"
#include "support/index_dataset.h"
#include "support/number_stream.h"
#include "values.h"

namespace replay {
namespace {

using accelerant::data::Placement;
using nlohmann::json;

json loop_to(const IndexLoader& loader) {
  json batches = json::array();
  int64_t remainder = 0;
  for (const IndexBatch& batch : loader) {
    batches.push_back(batch);
    remainder = loader.remainder();
  }
  json result = {{"batches", batches}, {"remainder", remainder}};
  if (const auto length = loader.length()) result["length"] = *length;
  return result;
}

template <class Stream>
json rank_to(const json& document, const Placement& placement) {
  const auto loader = index_loader(number_stream<Stream>(document.at("length").get<int64_t>()),
                                   {.batch_size = document.value("batch_size", int64_t{1}),
                                    .drop_last = document.value("drop_last", false)})
                          .placed(placement);
  loader.skip_first_batches(document.value("skip_batches", int64_t{0}));
  return loop_to(loader);
}

}  // namespace

json stream_ranks_to(const json& document) {
  const auto processes = document.value("num_processes", int64_t{1});
  const auto mode = document.at("mode").get<std::string>();
  const bool dispatch = mode == "dispatch";
  if (!dispatch && mode != "stream") throw BadDocument("mode is neither stream nor dispatch");
  const bool sized = document.value("sized", false);
  FakeNetwork network(processes);
  std::vector<json> ranks(static_cast<std::size_t>(processes));
  const auto run = [&](int64_t rank) {
    const Placement placement{.rank = rank,
                              .num_processes = processes,
                              .split_batches = document.value("split_batches", false),
                              .even_batches = document.value("even_batches", true),
                              .dispatch_batches = dispatch,
                              .channel = network.channel(rank)};
    ranks[static_cast<std::size_t>(rank)] = sized
                                                ? rank_to<SizedStream>(document, placement)
                                                : rank_to<CountingSkipStream>(document, placement);
  };
  if (dispatch) {
    on_all_ranks(processes, run);
  } else {
    for (int64_t rank = 0; rank < processes; ++rank) run(rank);
  }
  return {{"ranks", ranks}};
}

}  // namespace replay
