// Kills a process that saves checkpoints at every place where this is possible. Whatever it leaves
// behind, the right checkpoint is complete, nothing else looks complete, and the next save works.
//
// By default each place is tried once, at a random visit; with ACCELERANT_KILL_SWEEP=all, at every
// visit.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "core/fd.h"
#include "store/rotation.h"
#include "store/sample_checkpoint.h"
#include "store/system_calls.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using accelerant::entries_of;
using accelerant::path_exists;

// The places, and how far a save has got there.
enum class Place { before_rename, after_rename };
const std::map<std::string, Place>& places() {
  static const std::map<std::string, Place> all = {
      {"checkpoint.begun", Place::before_rename},
      {"checkpoint.write", Place::before_rename},
      {"checkpoint.before_sync", Place::before_rename},
      {"checkpoint.file_written", Place::before_rename},
      {"checkpoint.before_manifest", Place::before_rename},
      {"checkpoint.before_folder_sync", Place::before_rename},
      {"checkpoint.before_rename", Place::before_rename},
      {"checkpoint.old_aside", Place::before_rename},
      {"checkpoint.before_recover", Place::before_rename},
      {"checkpoint.recovered", Place::before_rename},
      {"checkpoint.after_rename", Place::after_rename},
      {"checkpoint.committed", Place::after_rename},
      {"checkpoint.before_remove", Place::after_rename},
      {"checkpoint.set_aside", Place::after_rename},
      {"checkpoint.removed", Place::after_rename},
      {"files.remove_entry", Place::after_rename},
  };
  return all;
}

TEST(KillPlaces, AreAllKnown) {
  std::set<std::string> in_sources;
  for (const char* name : {"store/checkpoint_folder.cpp", "store/file_writer.cpp",
                           "store/rotation.cpp", "core/files.cpp"}) {
    const std::string text = TempFolder::content_of(std::string(LIBRARY_SOURCES) + "/" + name);
    const std::regex call("failpoint\\(\"([^\"]+)\"\\)");
    for (std::sregex_iterator at(text.begin(), text.end(), call), end; at != end; ++at) {
      in_sources.insert((*at)[1]);
    }
  }
  std::set<std::string> known;
  for (const auto& [name, place] : places()) known.insert(name);
  EXPECT_EQ(in_sources, known);
}

struct Run {
  bool was_killed = false;
  int exit_code = 0;
  std::string phase = {};  // the last one it reported, "" if none
  std::int64_t number = -1;
};

// Reads the last line that a saver reported.
void read_phase(int fd, Run& run) {
  std::string output;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; (got = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<std::size_t>(got));
  }
  std::istringstream words(output);
  for (std::string phase; words >> phase >> run.number;) run.phase = phase;
}

Run run_saver(const std::string& folder, const std::string& mode, const std::string& failpoint) {
  std::array<int, 2> pipe_ends;
  if (::pipe(pipe_ends.data()) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    ::close(pipe_ends[0]);
    ::setenv("ACCELERANT_FAILPOINT", failpoint.c_str(), 1);
    ::execl(CHECKPOINT_SAVER, CHECKPOINT_SAVER, folder.c_str(), mode.c_str(), "4", nullptr);
    ::_exit(127);
  }
  const accelerant::Fd reading(pipe_ends[0]);
  ::close(pipe_ends[1]);
  Run run;
  read_phase(reading.get(), run);
  int status = 0;
  ::waitpid(child, &status, 0);
  run.was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

// The number of the checkpoint that must exist now; -1 for none. `before` is the one that existed
// when the run began.
std::int64_t expected_number(const Run& run, const std::string& place, std::int64_t before) {
  if (run.phase.empty()) return before;
  if (run.phase == "saving") return run.number - 1;
  if (run.phase == "begun" && places().at(place) == Place::before_rename) return run.number - 1;
  return run.number;
}

void fail_report(const std::string& text) { ADD_FAILURE() << text; }

void expect_no_leftovers(const std::string& folder) {
  for (const std::string& name : entries_of(folder)) EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

void expect_numbered(const std::string& folder, std::int64_t newest) {
  const auto found = list_checkpoints(folder);
  for (const auto& one : found) EXPECT_EQ(sample::fault_of(one.path, one.number), "");
  const auto count = static_cast<std::int64_t>(found.size());
  EXPECT_GE(count, std::min<std::int64_t>(newest + 1, 2));
  EXPECT_LE(count, 3);
  EXPECT_EQ(next_number(folder), newest + 1);
  if (newest < 0) return;
  EXPECT_EQ(find_newest_valid(folder, fail_report).number, newest);
}

// What to check after a run, depending on its mode.
void expect_after_kill(const std::string& folder, const std::string& mode, std::int64_t newest) {
  if (mode == "rotate") return expect_numbered(folder, newest);
  const std::string path = folder + "/last";
  if (mode == "rename") CheckpointFolder(path).recover();
  EXPECT_EQ(path_exists(path), newest >= 0);
  if (newest < 0) return;
  EXPECT_EQ(sample::fault_of(path, newest), "");
}

void expect_next_save_works(const std::string& folder, const std::string& mode,
                            std::int64_t newest) {
  if (mode == "rotate") {
    clean_leftovers(folder);
    expect_no_leftovers(folder);
    sample::save(checkpoint_path(folder, next_number(folder)), newest + 1);
    prune(folder, 2);
    EXPECT_LE(list_checkpoints(folder).size(), 2u);
    expect_numbered(folder, newest + 1);
  } else {
    sample::save(folder + "/last", newest + 1, Existing::replace);
    EXPECT_EQ(sample::fault_of(folder + "/last", newest + 1), "");
  }
  expect_no_leftovers(folder);
}

// How earlier runs ended: their kills, one after another.
struct Scenario {
  const char* name;
  const char* mode;
  std::vector<std::string> earlier_kills = {};
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

std::string place_of(const std::string& kill) { return kill.substr(0, kill.find(':')); }

std::int64_t prepare(const Scenario& scenario, const std::string& folder) {
  std::int64_t newest = -1;
  for (const std::string& kill : scenario.earlier_kills) {
    const Run run = run_saver(folder, scenario.mode, kill);
    EXPECT_TRUE(run.was_killed) << kill;
    newest = expected_number(run, place_of(kill), newest);
  }
  return newest;
}

// Whether the place was reached that often.
bool kill_at(const Scenario& scenario, const std::string& place, int visit) {
  const std::string kill = place + ":kill@" + std::to_string(visit);
  SCOPED_TRACE(kill);
  const TempFolder folder;
  const std::int64_t before = prepare(scenario, folder.path());
  const Run run = run_saver(folder.path(), scenario.mode, kill);
  if (!run.was_killed) {
    EXPECT_EQ(run.exit_code, 0);
    return false;
  }
  const std::int64_t newest = expected_number(run, place, before);
  expect_after_kill(folder.path(), scenario.mode, newest);
  expect_next_save_works(folder.path(), scenario.mode, newest);
  return true;
}

int kill_at_every_visit(const Scenario& scenario, const std::string& place) {
  int visit = 1;
  while (!testing::Test::HasFailure() && kill_at(scenario, place, visit)) ++visit;
  return visit - 1;
}

// Tries a late visit first; few places are visited that often.
int kill_at_one_visit(const Scenario& scenario, const std::string& place, std::mt19937& random) {
  for (const unsigned most : {24u, 4u, 1u}) {
    if (kill_at(scenario, place, static_cast<int>(1 + random() % most))) return 1;
  }
  return 0;
}

class KillSweep : public testing::TestWithParam<Scenario> {};

TEST_P(KillSweep, LeavesTheRightCheckpoint) {
  const char* extent = std::getenv("ACCELERANT_KILL_SWEEP");
  const bool all = extent != nullptr && std::string(extent) == "all";
  system_calls::waits_for_disk() = false;
  std::mt19937 random(random_seed());
  int kills = 0;
  for (const auto& [place, outcome] : places()) {
    const int count =
        all ? kill_at_every_visit(GetParam(), place) : kill_at_one_visit(GetParam(), place, random);
    std::cout << "  " << place << ": " << count << "\n";
    kills += count;
  }
  std::cout << GetParam().name << ": killed " << kills << " times\n";
  EXPECT_GE(kills, 10);
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, KillSweep,
    testing::Values(
        Scenario{"Rotating", "rotate"}, Scenario{"Replacing", "replace"},
        Scenario{"ReplacingByTwoRenames", "rename"},
        Scenario{
            "RotatingAfterAKillBeforeTheRename", "rotate", {"checkpoint.before_rename:kill@3"}},
        Scenario{"RotatingAfterAKillWhilePruning", "rotate", {"files.remove_entry:kill@13"}},
        Scenario{
            "ReplacingAfterAKillBeforeTheRemoval", "replace", {"checkpoint.before_remove:kill@2"}},
        Scenario{"RenamingAfterAKillBetweenTheRenames", "rename", {"checkpoint.old_aside:kill@2"}},
        Scenario{"RenamingAfterTwoKills",
                 "rename",
                 {"checkpoint.before_remove:kill@2", "files.remove_entry:kill@3"}}),
    [](const auto& scenario) { return std::string(scenario.param.name); });

}  // namespace
