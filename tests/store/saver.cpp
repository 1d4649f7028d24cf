// Saves one checkpoint after another, as a training would. kill_test.cpp kills this program.
//
//   checkpoint-saver <folder> rotate|replace|rename <saves>
//
// rotate: numbered checkpoints, of which two are kept; replace: always <folder>/last; rename: the
// same, on a disk that cannot exchange two names. Reports its progress on standard output.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "store/rotation.h"
#include "store/sample_checkpoint.h"
#include "store/system_calls.h"

namespace {

using namespace accelerant::checkpoint;

void say(const std::string& text, std::int64_t number) {
  const std::string line = text + " " + std::to_string(number) + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

void save(const std::string& path, std::int64_t number, Existing existing) {
  say("saving", number);
  const CheckpointFolder folder(path, existing);
  folder.begin();
  say("begun", number);
  folder.commit(sample::write_files(folder, number));
  say("committed", number);
}

void rotate(const std::string& folder, int saves) {
  clean_leftovers(folder);
  for (int done = 0; done < saves; ++done) {
    const std::int64_t number = next_number(folder);
    save(checkpoint_path(folder, number), number, Existing::refuse);
    prune(folder, 2);
    say("pruned", number);
  }
}

void replace(const std::string& path, int saves) {
  CheckpointFolder(path).recover();
  std::int64_t number = 0;
  if (accelerant::path_exists(path))
    number = read_manifest(path).content.at("number").get<int>() + 1;
  for (int done = 0; done < saves; ++done, ++number) save(path, number, Existing::replace);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const std::string folder = arguments[1];
  const std::string mode = arguments[2];
  const int saves = std::atoi(arguments[3]);
  system_calls::waits_for_disk() = false;
  system_calls::can_exchange() = mode != "rename";
  if (mode == "rotate") {
    rotate(folder, saves);
  } else {
    replace(accelerant::join_path(folder, "last"), saves);
  }
}
