#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "track/trace_merge.h"

namespace accelerant::cli {
namespace {

// The share of its time that a rank spends waiting for others, in percent.
double waiting(const track::RankTimes& rank) {
  const PhaseTimes& times = rank.times;
  if (times.total <= 0) return 0;
  return 100 * (times.of(Phase::reduction) + times.of(Phase::exchange)) / times.total;
}

// All ranks take the same time for a step, so the slowest is the one that waits least for others.
void show_slowest(const std::vector<track::RankTimes>& ranks) {
  if (ranks.size() < 2) return;
  const auto [least, most] = std::ranges::minmax_element(ranks, {}, waiting);
  if (waiting(*most) - waiting(*least) < 5) return;
  std::printf(
      "rank %lld is the slowest: it waits %ld %% of the time for others, rank %lld %ld %%\n",
      static_cast<long long>(least->rank), std::lround(waiting(*least)),
      static_cast<long long>(most->rank), std::lround(waiting(*most)));
}

}  // namespace

int merge_traces_command(int argc, char** argv) {
  const auto app = make_parser("merge-traces", "[OPTIONS] FOLDER [OUTPUT]",
                               "Merges the traces that the processes of a training wrote into one "
                               "for https://ui.perfetto.dev, and shows where each process spent "
                               "its time.");
  std::string folder;
  std::string output;
  app->add_option("folder", folder,
                  "The folder with profile_<rank>.json: output_trace_dir of the profile")
      ->required();
  app->add_option("output", output, "The file to write. Default: trace.json in FOLDER");
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  require_path(folder);
  if (output.empty()) output = join_path(folder, "trace.json");
  const track::MergedTrace merged = track::merge_traces(track::traces_in(folder), output);
  for (const track::RankTimes& rank : merged.ranks) {
    std::printf("rank %lld: %s\n", static_cast<long long>(rank.rank),
                summary_line(rank.times).c_str());
    if (rank.dropped > 0) {
      std::printf("rank %lld: %s did not fit in its file\n", static_cast<long long>(rank.rank),
                  plural(static_cast<std::uint64_t>(rank.dropped), "event").c_str());
    }
  }
  show_slowest(merged.ranks);
  std::printf("merged %s into %s\n",
              plural(static_cast<std::uint64_t>(merged.files), "file").c_str(),
              printable(output).c_str());
  return 0;
}

}  // namespace accelerant::cli
