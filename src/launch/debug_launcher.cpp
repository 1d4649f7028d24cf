#include "accelerant/launch/debug_launcher.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "core/process_end.h"
#include "core/stack_frames.h"
#include "launch/folders.h"

namespace accelerant::detail {
namespace {

constexpr const char* kCallVariable = "ACCELERANT_DEBUG_LAUNCHER_CALL";  // the call a rank is for
constexpr const char* kMarkVariable =
    "ACCELERANT_DEBUG_LAUNCHER_MARK";  // the file that a rank creates when it gets there

// A call is identified by its place and by how often that place has been reached. Calls elsewhere
// do not count, since a rank with other arguments may pass other ones.
std::string name_of_call(const std::source_location& where) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::string place = std::string(where.file_name()) + ":" + std::to_string(where.line()) +
                            ":" + std::to_string(where.column());
  const std::lock_guard lock(mutex);
  return place + " #" + std::to_string(++calls[place]);
}

std::string program_of_this_process() {
  std::array<char, 4096> path = {};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (size <= 0) throw Error("debug_launcher: /proc/self/exe does not name the program");
  return {path.data(), static_cast<size_t>(size)};
}

std::vector<std::string> arguments_of_this_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return arguments;
}

std::string rank_text() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? "-1" : rank;
}

void report_failure(const std::string& what) {
  const std::string message = error_text(what);
  std::fprintf(stderr, "%s\n", message.c_str());
  if (const char* path = std::getenv("TORCHELASTIC_ERROR_FILE")) {
    write_error_report(path, {.message = message, .rank = std::atoi(rank_text().c_str())});
  }
}

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

int run_as_rank(const std::function<int()>& function) {
  const OwnProcess process;
  if (const char* mark = std::getenv(kMarkVariable)) {
    std::ofstream(std::string(mark) + rank_text()).put('\n');
  }
  try {
    return function();
  } catch (const Preempted& preempted) {
    end_preempted(preempted);
  } catch (...) {
    // A forked child is not the rank.
    if (!process.is_this_one()) std::terminate();
    report_failure(text_of_current_exception());
  }
  return 1;
}

void write_through(int64_t, launch::Stream stream, std::string_view bytes) {
  std::FILE* file = stream == launch::Stream::out ? stdout : stderr;
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fflush(file);
}

}  // namespace

std::vector<launch::RankResult> debug_launch(const std::function<int()>& function,
                                             const DebugLauncherOptions& options,
                                             const std::source_location& where) {
  static std::atomic<bool> is_inside = false;
  if (is_inside) throw Error("debug_launcher was called inside the function of debug_launcher");
  const std::string call = name_of_call(where);
  if (const char* mine = std::getenv(kCallVariable)) {
    if (call != mine) return {};
    is_inside = true;
    std::exit(run_as_rank(function));
  }

  const launch::TemporaryFolder folder;
  const std::string mark = folder.path() + "/rank_";
  std::vector<std::string> command = {program_of_this_process()};
  const auto arguments = options.arguments ? *options.arguments : arguments_of_this_process();
  command.insert(command.end(), arguments.begin(), arguments.end());
  launch::RunRanksOptions run = {.command = command,
                                 .num_processes = options.num_processes,
                                 .timeout = options.timeout,
                                 .environment = options.environment,
                                 .on_output = options.on_output};
  run.environment.emplace("ACCELERATE_USE_CPU", "true");
  run.environment[kCallVariable] = call;
  run.environment[kMarkVariable] = mark;
  if (!run.on_output) run.on_output = write_through;
  launch::RunRanksResult result = run_ranks(run);
  if (!result.succeeded()) throw Error("debug_launcher: " + result.report);
  for (const launch::RankResult& rank : result.ranks) {
    if (::access((mark + std::to_string(rank.rank)).c_str(), F_OK) == 0) continue;
    throw Error(ErrorDetails{
        .problem = "debug_launcher: rank " + std::to_string(rank.rank) +
                   " ended without reaching this call",
        .hint = "a rank is this program started again: it must take the same path up to here"});
  }
  return std::move(result.ranks);
}

}  // namespace accelerant::detail
