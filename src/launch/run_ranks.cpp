#include "accelerant/launch/debug_launcher.h"

#include <utility>

#include "accelerant/core/error.h"
#include "core/stack_frames.h"
#include "launch/folders.h"
#include "launch/master_port.h"
#include "launch/rank_group.h"
#include "launch/rank_variables.h"
#include "launch/report.h"
#include "meet/secret.h"

namespace accelerant::launch {
namespace {

constexpr size_t kReportedLines = 40;  // of each rank

class Capture : public OutputReceiver {
 public:
  explicit Capture(const RunRanksOptions& options)
      : options_(options), texts_(static_cast<size_t>(options.num_processes)) {}

  void receive(size_t index, Stream stream, std::string_view bytes) override {
    (stream == Stream::out ? texts_[index].out : texts_[index].err) += bytes;
    if (options_.on_output) options_.on_output(static_cast<int64_t>(index), stream, bytes);
  }

  void move_to(std::vector<RankResult>& ranks) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].out = std::move(texts_[i].out);
      ranks[i].err = std::move(texts_[i].err);
    }
  }

 private:
  struct Texts {
    std::string out = {};
    std::string err = {};
  };
  const RunRanksOptions& options_;
  std::vector<Texts> texts_;
};

std::vector<RankStart> plan(const RunRanksOptions& options, const std::string& folder) {
  const std::string program = find_program(options.command.front());
  MasterPort port = bind_master_port();
  const std::string secret_file = folder + "/secret";
  meet::Secret::random().write(secret_file);
  std::vector<RankStart> starts;
  for (int64_t rank = 0; rank < options.num_processes; ++rank) {
    RankStart start = {.rank = rank,
                       .command = {.path = program, .arguments = options.command},
                       .error_file = folder + "/error_" + std::to_string(rank) + ".json"};
    Variables variables = rank_variables({.local_rank = rank,
                                          .local_world_size = options.num_processes,
                                          .master_port = port.port,
                                          .error_file = start.error_file,
                                          .secret_file = secret_file});
    if (rank == 0) {
      variables["ACCELERANT_MASTER_LISTEN_FD"] = std::to_string(port.socket.get());
      start.inherited = std::move(port.socket);
    }
    for (const auto& [name, value] : options.environment) variables[name] = value;
    start.command.environment = environment_with(variables);
    starts.push_back(std::move(start));
  }
  return starts;
}

std::string tail_of(const RankResult& rank) {
  std::string text = "--- rank " + std::to_string(rank.rank) + ": " +
                     (rank.stopped ? "stopped" : describe_end(rank)) + "\n";
  text += indented(last_lines(rank.out, kReportedLines), "out: ");
  const std::string err = without_stack_frames(rank.err);
  text += indented(without_error(last_lines(err, kReportedLines), rank), "err: ");
  text += indented(describe_error(rank), "error: ");
  text += indented(describe_advice(rank), "what to do: ");
  return text;
}

std::string report_of(const RunRanksResult& result, const RunRanksOptions& options) {
  const auto cause = root_cause(result.ranks);
  std::string text;
  if (result.timed_out) {
    text = "the ranks did not end within " + seconds_text(*options.timeout) + " and were killed\n";
  }
  if (cause) text += describe_failure(result.ranks, *cause, options.num_processes) + "\n";
  if (const std::string saved = describe_preempted(result.ranks); !saved.empty()) {
    text += "stopped on request: " + saved + "\n";
  }
  if (text.empty()) return text;
  // The cause comes last, where eyes go first.
  for (size_t i = 0; i < result.ranks.size(); ++i) {
    if (i != cause) text += tail_of(result.ranks[i]);
  }
  if (cause) text += tail_of(result.ranks[*cause]);
  return text;
}

}  // namespace

RunRanksResult run_ranks(const RunRanksOptions& options) {
  if (options.command.empty()) throw Error("run_ranks: the command is empty");
  if (options.num_processes < 1) {
    throw Error(ErrorDetails{.problem = "run_ranks: num_processes",
                             .expected = "at least 1",
                             .got = std::to_string(options.num_processes)});
  }
  const TemporaryFolder folder;
  Capture capture(options);
  using std::chrono::milliseconds;
  RankGroupOptions group = {.grace = std::chrono::ceil<milliseconds>(options.grace)};
  if (options.timeout) group.timeout = std::chrono::ceil<milliseconds>(*options.timeout);
  RankGroupResult run = run_rank_group(plan(options, folder.path()), capture, group);
  RunRanksResult result = {.ranks = std::move(run.ranks), .timed_out = run.timed_out};
  capture.move_to(result.ranks);
  result.report = report_of(result, options);
  return result;
}

}  // namespace accelerant::launch
