// The checkpoints of a project, for `accelerant inspect`.
#pragma once

#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::cli {

struct ListedCheckpoint {
  // What can be said without reading the files.
  enum class State {
    complete,    // has a manifest, and all its files have the right sizes
    damaged,     // has a manifest, but `problems`
    incomplete,  // has no manifest
    python,      // has no manifest, but files of Accelerate's save_state
    unfinished,  // checkpoint_<n>.<id>.tmp: a save that is under way or was interrupted
    left_over,   // what an interrupted replacement or removal left
  };

  std::string name = {};  // "checkpoint_3"
  std::int64_t number = 0;
  std::string path = {};
  State state = State::complete;
  std::uint64_t bytes = 0;  // of its files

  // What the manifest tells; none where it does not.
  std::optional<std::int64_t> epoch = {};  // in which the training goes on, from 0
  std::optional<std::int64_t> updates = {};
  std::optional<std::time_t> saved = {};

  std::vector<std::string> problems = {};
};

struct CheckpointList {
  std::string folder = {};                         // that the checkpoints are in
  std::vector<ListedCheckpoint> checkpoints = {};  // by number
  std::vector<std::string> others =
      {};  // in the inspected folder: names of tensor files and models

  bool is_good() const;
};

// The checkpoints in the folder or in its subfolder checkpoints/. None if it has neither: then it
// is something else.
std::optional<CheckpointList> list_project(const std::string& folder);

// The folder itself, if its name is that of a checkpoint, complete or not.
std::optional<ListedCheckpoint> list_one(const std::string& folder);

// As a table on standard output, and problems on standard error; or as JSON.
void print(const CheckpointList& list);
nlohmann::json to_json(const CheckpointList& list);

}  // namespace accelerant::cli
