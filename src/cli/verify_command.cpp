#include <cstdio>
#include <functional>
#include <new>
#include <set>
#include <utility>

#include "accelerant/core/failpoint.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/weights/checkpoint_list.h"
#include "cli/weights/inspection.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "format/random_access_file.h"
#include "format/torch_archive.h"
#include "format/zip_reader.h"
#include "store/model_files.h"
#include "store/model_folder.h"
#include "store/verify.h"

namespace accelerant::cli {
namespace {

using checkpoint::Problem;

// The check of a file that throws if something is wrong.
template <class F>
auto throwing(F check) {
  return [check = std::move(check)]() -> std::optional<Problem> {
    check();
    return std::nullopt;
  };
}

// Prints a line for each file, and counts files and problems.
class Verifier {
 public:
  void verify_path(const std::string& path) {
    if (!is_folder(path)) {
      verify_file(path);
    } else if (path_exists(join_path(path, checkpoint::kManifestName))) {
      verify_checkpoint(path);
    } else if (const auto checkpoint = list_one(path)) {
      verify_listed(*checkpoint);
    } else if (auto project = list_project(path)) {
      verify_project(path, *std::move(project));
    } else {
      verify_folder(path);
    }
  }

  std::size_t files() const { return files_; }
  std::size_t damaged() const { return damaged_; }
  std::size_t unread() const { return unread_; }

 private:
  // `check` returns what is wrong or throws it; an empty result means the file is good. Returns
  // false if that is only because the folder `removable` is gone.
  bool report(const std::string& path, const std::function<std::optional<Problem>()>& check,
              const std::string& removable = {}) {
    failpoint("verify.file");
    std::optional<Problem> problem;
    try {
      problem = check();
    } catch (const std::bad_alloc&) {
      problem = {.text = "its description does not fit into the memory", .is_damage = false};
    } catch (const std::exception& error) {
      problem = checkpoint::problem_of(error);
    }
    if (problem && !removable.empty() && !path_exists(removable)) {
      std::printf("%-7s  %s\n", "removed", printable(removable).c_str());
      has_removed_ = true;
      return false;
    }
    ++files_;
    const char* const result = !problem ? "ok" : problem->is_damage ? "DAMAGED" : "UNREAD";
    std::printf("%-7s  %s\n", result, printable(path).c_str());
    std::fflush(stdout);
    if (problem) {
      ++(problem->is_damage ? damaged_ : unread_);
      const std::string& text = problem->text;
      show_error(text.find(path) == std::string::npos ? path + ": " + text : text);
    }
    return true;
  }

  // A training may remove everything that was listed before it is read. Then there is newer work.
  void verify_project(const std::string& path, CheckpointList project) {
    for (int attempts_left = 20;; --attempts_left) {
      has_removed_ = false;
      for (const ListedCheckpoint& one : project.checkpoints) verify_listed(one);
      if (files_ > 0 || !has_removed_ || attempts_left == 0) return;
      project = list_project(path).value_or(CheckpointList());
    }
  }

  void verify_listed(const ListedCheckpoint& listed) {
    switch (listed.state) {
      case ListedCheckpoint::State::complete:
      case ListedCheckpoint::State::damaged:
      case ListedCheckpoint::State::incomplete:  // the manifest is what is damaged
        return verify_checkpoint(listed.path, listed.path);
      case ListedCheckpoint::State::python:
        return verify_folder(listed.path);
      case ListedCheckpoint::State::unfinished:
      case ListedCheckpoint::State::left_over:
        return;  // no training resumes from it; verify_command() refuses if there is nothing else
    }
  }

  // `removable` is the folder if it is one of a project: a training may remove it at any moment, and
  // then none of its files counts.
  void verify_checkpoint(const std::string& folder, const std::string& removable = {}) {
    const std::size_t before = files_;
    checkpoint::Manifest manifest;
    const auto read = throwing([&] { manifest = checkpoint::read_manifest(folder); });
    if (!report(join_path(folder, checkpoint::kManifestName), read, removable)) return;
    for (const auto& [name, record] : manifest.files) {
      const auto compare = [&, &name = name, &record = record] {
        return checkpoint::problem_of_file(folder, name, record, checkpoint::Check::checksums);
      };
      if (!report(join_path(folder, name), compare, removable)) {
        files_ = before;
        return;
      }
    }
  }

  // A model, or a folder with files of tensors.
  void verify_folder(const std::string& folder) {
    const std::size_t before = files_;
    const auto listed = verify_listed_files(folder);
    for (const std::string& name : names_in(folder)) {
      const auto found = checkpoint::find_model_file(folder, name);
      if (!found || listed.contains(name)) continue;  // stale, or compared already
      const std::string& path = *found;
      if (!is_folder(path) && (is_tensor_file_name(name) || is_index(name))) {
        verify_file(path);
      }
    }
    if (files_ == before) {
      throw UsageError{folder + " contains neither checkpoints nor a model"};
    }
  }

  // With those of a model that is complete but not in place yet.
  static std::set<std::string> names_in(const std::string& folder) {
    const std::vector<std::string> entries = entries_of(folder);
    std::set<std::string> names(entries.begin(), entries.end());
    if (const auto waiting = checkpoint::waiting_files(folder)) {
      names.insert(waiting->begin(), waiting->end());
    }
    return names;
  }

  // Compares the files of a model with its list of checksums, if it has one; returns the list.
  checkpoint::ModelChecksums verify_listed_files(const std::string& folder) {
    const auto list = checkpoint::find_model_file(folder, checkpoint::kModelChecksumsName);
    if (!list) return {};
    checkpoint::ModelChecksums sums;
    report(*list, throwing([&] {
      sums = checkpoint::read_model_checksums(*list).value_or(checkpoint::ModelChecksums());
    }));
    for (const auto& [name, expected] : sums) {
      const std::string path =
          checkpoint::find_model_file(folder, name).value_or(join_path(folder, name));
      report(path, [&, &expected = expected]() -> std::optional<Problem> {
        auto damage = checkpoint::damage_of(path, expected, *list, checking_threads());
        return damage ? std::optional(Problem{.text = std::move(*damage)}) : std::nullopt;
      });
    }
    return sums;
  }

  static bool is_index(const std::string& name) { return name.ends_with(".index.json"); }

  void verify_file(const std::string& path) {
    report(path, throwing([&] {
             checkpoint::check_listed_file(path, checking_threads());
             const bool is_safetensors = path.ends_with(".safetensors");
             if (is_index(path)) {
               checkpoint::open_model(path);  // compares the index with every file it names
             } else if (!is_safetensors &&
                        format::kind_of_archive(path) == format::ArchiveKind::python_state) {
               // The bytes only: a file with classes that are unknown here may be undamaged.
               format::RandomAccessFile file(path);
               format::ZipReader(file.map(), path).verify_all();
             } else {
               checkpoint::open_weight_file(path)->check();
             }
           }));
  }

  std::size_t files_ = 0;
  std::size_t damaged_ = 0;
  std::size_t unread_ = 0;    // may be good
  bool has_removed_ = false;  // the training, while they were read
};

}  // namespace

int verify_command(int argc, char** argv) {
  const auto app = make_parser("verify", "[OPTIONS] PATH",
                               "Checks checkpoints, a model or a file for damage. Checkpoints are "
                               "checked byte by byte, against the checksums saved with them.");
  std::string path;
  app->add_option("path", path,
                  "A project, a folder of checkpoints, a checkpoint, a model folder or a file")
      ->required();
  app->footer("Exit codes: 0 no damage, 1 damaged or unreadable, 2 wrong usage.");
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  require_path(path);
  Verifier verifier;
  verifier.verify_path(path);
  const bool is_good = verifier.damaged() == 0 && verifier.unread() == 0;
  if (verifier.files() == 0 && is_good) {
    throw UsageError{path + " contains no complete checkpoint"};
  }
  std::printf("%s, %zu damaged", plural(verifier.files(), "file").c_str(), verifier.damaged());
  if (verifier.unread() > 0) std::printf(", %zu that could not be read", verifier.unread());
  std::printf("\n");
  return is_good ? 0 : kFailure;
}

}  // namespace accelerant::cli
