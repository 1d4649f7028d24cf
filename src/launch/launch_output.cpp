#include "launch/launch_output.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "accelerant/core/error.h"

namespace accelerant::launch {
namespace {

Fd open_log(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  if (file.is_open()) return file;
  throw Error(ErrorDetails{.problem = "cannot write the log file " + path,
                           .got = std::strerror(errno),
                           .hint = "name another folder for log files"});
}

struct StreamPlace {
  ConsoleStream* console = nullptr;  // where it is shown; null: nowhere
  Fd log = {};
  std::string log_path = {};
};

StreamPlace place_of(Console& console, const LaunchPlan& plan, int64_t local_rank, Stream stream,
                     const std::string& folder) {
  const bool tee = plan.tee.has(local_rank, stream);
  const bool redirect = plan.redirect.has(local_rank, stream);
  const std::string path = folder + "/" + std::to_string(plan.rank_of(local_rank)) +
                           (stream == Stream::out ? "/stdout.log" : "/stderr.log");
  return {.console = tee || !redirect ? &console.of(stream) : nullptr,
          .log = tee || redirect ? open_log(path) : Fd(),
          .log_path = path};
}

std::unique_ptr<RankStream> make_stream(Console& console, const LaunchPlan& plan,
                                        int64_t local_rank, Stream stream,
                                        const std::string& folder) {
  StreamPlace place = place_of(console, plan, local_rank, stream, folder);
  const int64_t rank = plan.rank_of(local_rank);
  RankStreamOptions options = {
      .console = place.console,
      .rank = rank,
      // One process needs no name.
      .prefix = plan.world_size() > 1 ? "[rank " + std::to_string(rank) + "] " : "",
      // One bar is enough: that of the local main process.
      .draws_bar = local_rank == 0 && place.console != nullptr && place.console->is_terminal()};
  return std::make_unique<RankStream>(std::move(options),
                                      RankLog(std::move(place.log), place.log_path));
}

}  // namespace

LaunchOutput::LaunchOutput(Console& console, const LaunchPlan& plan, const std::string& folder,
                           std::function<void(const std::string&)> say)
    : console_(console), say_(std::move(say)) {
  for (int64_t rank = 0; rank < plan.local_world_size; ++rank) {
    ranks_.push_back({make_stream(console, plan, rank, Stream::out, folder),
                      make_stream(console, plan, rank, Stream::err, folder)});
  }
}

void LaunchOutput::receive(size_t index, Stream stream, std::string_view bytes) {
  RankStream& receiver = stream == Stream::out ? *ranks_[index].out : *ranks_[index].err;
  receiver.receive(bytes);
  if (const std::string problem = receiver.log().take_problem(); !problem.empty()) say_(problem);
}

int LaunchOutput::terminal_of(size_t index, Stream stream) const {
  const RankStream& from = stream == Stream::out ? *ranks_[index].out : *ranks_[index].err;
  return from.draws_bar() ? console_.of(stream).fd() : -1;
}

void LaunchOutput::finish(std::vector<RankResult>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks_[i].out->finish();
    ranks_[i].err->finish();
    ranks[i].err = ranks_[i].err->last_lines();
  }
}

bool LaunchOutput::are_logs_complete() const {
  return std::ranges::all_of(ranks_, [](const Streams& streams) {
    return streams.out->log().is_complete() && streams.err->log().is_complete();
  });
}

}  // namespace accelerant::launch
