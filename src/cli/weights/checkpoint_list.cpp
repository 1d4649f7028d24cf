#include "cli/weights/checkpoint_list.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <tuple>
#include <utility>

#include "accelerant/core/error.h"
#include "cli/messages.h"
#include "cli/weights/inspection.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "core/texts.h"
#include "store/checkpoint_folder.h"
#include "store/model_folder.h"
#include "store/rotation.h"
#include "store/verify.h"

namespace accelerant::cli {
namespace {

using nlohmann::json;
using State = ListedCheckpoint::State;

constexpr std::string_view kCheckpointPrefix = "checkpoint_";

// "checkpoint_3", or what an interrupted save, replacement or removal leaves beside it.
std::optional<ListedCheckpoint> known_by_name(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kCheckpointPrefix)) return std::nullopt;
  rest.remove_prefix(kCheckpointPrefix.size());
  ListedCheckpoint found{.name = name};
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), found.number);
  if (error != std::errc() || found.number < 0) return std::nullopt;
  const std::string_view suffix(stop, rest.data() + rest.size());
  if (suffix.empty()) return found;
  const auto target = checkpoint::target_of_leftover(name);
  if (!target || target->size() + suffix.size() != name.size()) return std::nullopt;
  const bool is_aside = suffix.ends_with(".old.tmp") || suffix.ends_with(".removed.tmp");
  found.state = is_aside ? State::left_over : State::unfinished;
  return found;
}

std::optional<std::int64_t> number_in(const json& content, const char* key) {
  const auto found = content.find(key);
  if (found == content.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

std::optional<std::time_t> time_in(const json& content, const char* key) {
  const auto found = content.find(key);
  if (found == content.end() || !found->is_string()) return std::nullopt;
  std::tm utc = {};
  const char* end = ::strptime(found->get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return end == nullptr ? std::nullopt : std::optional(::timegm(&utc));
}

// With the folders in it.
std::uint64_t bytes_in(const std::string& folder) {
  std::uint64_t bytes = 0;
  for (const std::string& name : entries_of(folder)) {
    const std::string path = join_path(folder, name);
    if (const auto size = size_of_file(path)) {
      bytes += *size;
    } else if (is_folder(path) && !is_link(path)) {
      bytes += bytes_in(path);
    }
  }
  return bytes;
}

bool is_saved_by_python(const std::string& folder) {
  return std::ranges::any_of(entries_of(folder), [](const std::string& name) {
    return name == "optimizer.bin" || name == "scheduler.bin" || name.starts_with("random_states_");
  });
}

void read(ListedCheckpoint& checkpoint) {
  checkpoint.bytes = bytes_in(checkpoint.path);
  if (checkpoint.state != State::complete) return;
  if (!size_of_file(join_path(checkpoint.path, checkpoint::kManifestName))) {
    checkpoint.state = is_saved_by_python(checkpoint.path) ? State::python : State::incomplete;
    return;
  }
  checkpoint::Verification found = checkpoint::verify(checkpoint.path, checkpoint::Check::sizes);
  const json& content = found.manifest.content;
  checkpoint.epoch = number_in(content, "epoch");
  checkpoint.updates = number_in(content, "updates");
  checkpoint.saved = time_in(content, "created");
  checkpoint.problems = std::move(found.problems);
  if (!checkpoint.problems.empty()) checkpoint.state = State::damaged;
}

// A training that runs may remove a checkpoint at any moment.
bool is_gone_when_read(ListedCheckpoint& checkpoint) {
  try {
    read(checkpoint);
    return !checkpoint.problems.empty() && !path_exists(checkpoint.path);
  } catch (const Error&) {
    if (path_exists(checkpoint.path)) throw;
    return true;
  }
}

std::vector<ListedCheckpoint> checkpoints_in(const std::string& folder) {
  std::vector<ListedCheckpoint> found;
  for (const std::string& name : entries_of(folder)) {
    auto checkpoint = known_by_name(name);
    if (!checkpoint) continue;
    checkpoint->path = join_path(folder, name);
    if (is_folder(checkpoint->path)) found.push_back(std::move(*checkpoint));
  }
  std::ranges::sort(found, {},
                    [](const ListedCheckpoint& one) { return std::tie(one.number, one.name); });
  return found;
}

bool holds_a_model(const std::string& folder) {
  return std::ranges::any_of(entries_of(folder), checkpoint::is_model_file);
}

const char* name_of_state(State state) {
  switch (state) {
    case State::complete:
      return "complete";
    case State::damaged:
      return "damaged";
    case State::incomplete:
      return "incomplete";
    case State::python:
      return "python";
    case State::unfinished:
      return "unfinished";
    case State::left_over:
      return "left_over";
  }
  return "";
}

const char* meaning_of(State state) {
  switch (state) {
    case State::incomplete:
      return "incomplete (no manifest.json)";
    case State::python:
      return "saved by Python (no checksums)";
    case State::unfinished:
      return "unfinished (a save under way or interrupted)";
    case State::left_over:
      return "left over (removed by the next run)";
    default:
      return name_of_state(state);
  }
}

std::string age_text(std::time_t saved) {
  const std::time_t seconds = std::max<std::time_t>(std::time(nullptr) - saved, 0);
  if (seconds < 120) return std::to_string(seconds) + " s ago";
  if (seconds < 2 * 3600) return std::to_string(seconds / 60) + " min ago";
  if (seconds < 2 * 86400) return std::to_string(seconds / 3600) + " h ago";
  return std::to_string(seconds / 86400) + " days ago";
}

std::string time_text(std::time_t time, const char* format) {
  std::tm utc = {};
  ::gmtime_r(&time, &utc);
  char text[32];
  std::strftime(text, sizeof text, format, &utc);
  return text;
}

std::string number_text(const std::optional<std::int64_t>& number) {
  if (!number) return "-";
  return *number < 0 ? std::to_string(*number) : count_text(static_cast<std::uint64_t>(*number));
}

}  // namespace

bool CheckpointList::is_good() const {
  return std::ranges::all_of(checkpoints,
                             [](const ListedCheckpoint& one) { return one.problems.empty(); });
}

std::optional<ListedCheckpoint> list_one(const std::string& folder) {
  auto found = known_by_name(name_of(folder));
  if (!found) return std::nullopt;
  found->path = folder.substr(0, folder.find_last_not_of('/') + 1);
  read(*found);
  return found;
}

std::optional<CheckpointList> list_project(const std::string& folder) {
  CheckpointList list{.folder = folder, .checkpoints = checkpoints_in(folder)};
  if (list.checkpoints.empty()) {
    list.folder = checkpoint::checkpoints_folder(folder);
    if (!is_folder(list.folder)) return std::nullopt;
    list.checkpoints = checkpoints_in(list.folder);
    // A model beside an empty folder of that name is more than nothing.
    if (list.checkpoints.empty() && holds_a_model(folder)) return std::nullopt;
  }
  std::erase_if(list.checkpoints, is_gone_when_read);
  for (const std::string& name : entries_of(folder)) {
    const std::string path = join_path(folder, name);
    const bool is_file = is_tensor_file_name(name) && size_of_file(path);
    const bool is_model = !known_by_name(name) && is_folder(path) && holds_a_model(path);
    if (is_file || is_model) list.others.push_back(name);
  }
  return list;
}

void print(const CheckpointList& list) {
  const auto& all = list.checkpoints;
  std::printf("%s: %s\n", printable(list.folder).c_str(),
              all.empty() ? "no checkpoints yet" : plural(all.size(), "checkpoint").c_str());
  if (!all.empty()) {
    Table table("lrrrll");
    table.add({"NAME", "EPOCH", "UPDATES", "SIZE", "SAVED", "STATE"});
    for (const ListedCheckpoint& one : all) {
      table.add({printable(one.name), number_text(one.epoch), number_text(one.updates),
                 size_text(one.bytes), one.saved ? age_text(*one.saved) : "-",
                 meaning_of(one.state)});
    }
    table.print("  ");
    const auto is_complete = [](const auto& one) { return one.state == State::complete; };
    const auto newest = std::find_if(all.rbegin(), all.rend(), is_complete);
    if (newest != all.rend()) {
      std::printf("\nTo see what is in one: accelerant inspect %s\n",
                  printable(newest->path).c_str());
    }
  }
  if (!list.others.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : list.others) names.push_back(printable(name));
    std::printf("Also in this folder: %s\n", list_text(names, 10).c_str());
  }
  for (const ListedCheckpoint& one : all) {
    for (const std::string& problem : one.problems) show_error(one.path + ": " + problem);
  }
}

json to_json(const CheckpointList& list) {
  json shown = {{"kind", "checkpoints"},
                {"folder", list.folder},
                {"checkpoints", json::array()},
                {"others", list.others}};
  for (const ListedCheckpoint& one : list.checkpoints) {
    shown["checkpoints"].push_back(
        {{"name", one.name},
         {"number", one.number},
         {"path", one.path},
         {"state", name_of_state(one.state)},
         {"bytes", one.bytes},
         {"epoch", one.epoch ? json(*one.epoch) : json()},
         {"updates", one.updates ? json(*one.updates) : json()},
         {"saved", one.saved ? json(time_text(*one.saved, "%Y-%m-%dT%H:%M:%SZ")) : json()},
         {"problems", one.problems}});
  }
  return shown;
}

}  // namespace accelerant::cli
