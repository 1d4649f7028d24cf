#include "track/trace_merge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "accelerant/core/error.h"
#include "core/atomic_file.h"
#include "core/files.h"
#include "core/regular_file.h"
#include "track/trace_writer.h"

namespace accelerant::track {
namespace {

using nlohmann::json;

constexpr int64_t kFirstOtherPid = 1'000'000;  // behind those of ranks

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorDetails{.problem = "A trace cannot be read",
                           .expected = "a file that accelerator.profile() has written",
                           .got = path + ": " + why});
}

// Calls f with every event; returns the rest of the file. The events are never in memory together.
json read_trace(const std::string& path, const std::function<void(json&)>& f) {
  RegularFile opened = open_regular_file(path);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::fdopen(opened.fd.get(), "rb"), &std::fclose);
  if (!file) refuse(path, "it cannot be opened");
  opened.fd.release();
  bool in_events = false;
  bool has_events = false;
  const auto look = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key) {
      in_events = parsed == "traceEvents";
      has_events = has_events || in_events;
    }
    if (!in_events || depth != 2 || event != json::parse_event_t::object_end) return true;
    f(parsed);
    return false;
  };
  json rest;
  try {
    rest = json::parse(file.get(), look);
  } catch (const json::exception& error) {
    refuse(path, error.what());
  }
  if (!rest.is_object() || !has_events) refuse(path, "there are no traceEvents in it");
  return rest;
}

struct Input {
  std::string path = {};
  std::string label = {};  // put before the names of its processes; empty for our own files
  int64_t base = 0;        // what its times count from, since 1970, in nanoseconds
};

// The moment of an event since 1970, in nanoseconds.
int64_t moment_of(const json& event, int64_t base) {
  return base + static_cast<int64_t>(std::llround(event.at("ts").get<double>() * 1000));
}

bool has_moment(const json& event) {
  return event.contains("ts") && event.at("ts").is_number() && event.value("ph", "") != "M";
}

PhaseTimes times_in(const json& own) {
  PhaseTimes times{.total = own.value("seconds", 0.0)};
  for (std::size_t i = 0; i < kPhases; ++i) {
    const char* name = name_of(static_cast<Phase>(i));
    times.seconds[i] = own.value("phase_seconds", json::object()).value(name, 0.0);
    times.counts[i] = own.value("phase_counts", json::object()).value(name, int64_t{0});
  }
  return times;
}

// "kernels_3.json": "rank 3 kernels".
std::string label_of(const std::string& path) {
  std::string name = name_of(path);
  name.resize(name.size() - std::min(name.size(), std::string(".json").size()));
  const std::size_t digits = name.rfind('_');
  if (digits == std::string::npos) return name;
  return "rank " + name.substr(digits + 1) + " " + name.substr(0, digits);
}

class Output {
 public:
  explicit Output(const std::string& path) : file_(path) {}

  void add(const std::string& event) {
    text_ += (events_++ == 0 ? "\n" : ",\n") + event;
    if (text_.size() > kPiece) flush();
  }

  int64_t finish() {
    text_ += "\n]}\n";
    flush();
    file_.commit();
    return events_;
  }

  void begin(int64_t base) {
    text_ = "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":" + std::to_string(base) +
            ",\n\"traceEvents\":[";
  }

 private:
  void flush() {
    file_.write(std::as_bytes(std::span(text_)));
    text_.clear();
  }

  format::AtomicFile file_;
  std::string text_;
  int64_t events_ = 0;
};

// Processes of files that are not ours, in which GPUs and other things have process ids too.
class OtherProcesses {
 public:
  // The number to use for a process of the file.
  int64_t pid(const Input& input, const json& own) {
    auto& known = pids_[input.path + '\n' + own.dump()];
    if (known.number == 0) {
      known.number = kFirstOtherPid + static_cast<int64_t>(pids_.size());
      known.name = input.label;
      if (own.is_string() && own != "") known.name += " " + own.get<std::string>();
    }
    return known.number;
  }

  void note_label(const Input& input, const json& own, const std::string& label) {
    pid(input, own);
    pids_[input.path + '\n' + own.dump()].name = input.label + " " + label;
  }

  void write(Output& output) const {
    for (const auto& [key, process] : pids_) {
      output.add(json{{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", process.number},
                      {"args", {{"name", process.name}}}}
                     .dump());
    }
  }

 private:
  struct Process {
    int64_t number = 0;
    std::string name = {};
  };
  std::map<std::string, Process> pids_;
};

void copy_event(json& event, const Input& input, std::size_t file, int64_t zero,
                OtherProcesses& others, Output& output) {
  if (has_moment(event)) {
    event["ts"] = static_cast<double>(moment_of(event, input.base) - zero) / 1000;
  } else {
    event.erase("ts");
  }
  if (!input.label.empty()) {
    const json own = event.value("pid", json(0));
    const std::string name = event.value("ph", "") == "M" ? event.value("name", "") : "";
    if (name == "process_labels") {
      others.note_label(input, own, event.at("args").value("labels", ""));
    }
    if (name.starts_with("process_")) return;  // they get names that tell the rank
    event["pid"] = others.pid(input, own);
    // Arrows belong together by their numbers, which every file counts on its own.
    if (event.contains("id") && event["id"].is_number_integer()) {
      event["id"] = event["id"].get<int64_t>() + (static_cast<int64_t>(file + 1) << 40);
    }
  }
  output.add(event.dump());
}

}  // namespace

std::vector<std::string> traces_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : entries_of(folder)) {
    const bool is_trace = name.starts_with("profile_") || name.starts_with("kernels_");
    if (is_trace && name.ends_with(".json")) paths.push_back(join_path(folder, name));
  }
  if (paths.empty()) {
    throw Error(ErrorDetails{.problem = "There is nothing to merge",
                             .expected = "profile_<rank>.json, as accelerator.profile() writes it",
                             .got = folder + " without any"});
  }
  return paths;
}

MergedTrace merge_traces(const std::vector<std::string>& paths, const std::string& output_path) {
  MergedTrace merged;
  std::vector<Input> inputs;
  std::set<int64_t> ranks;
  int64_t zero = std::numeric_limits<int64_t>::max();
  for (const std::string& path : paths) {
    int64_t first = std::numeric_limits<int64_t>::max();
    const json rest = read_trace(path, [&](json& event) {
      if (has_moment(event)) first = std::min(first, moment_of(event, 0));
    });
    Input input{.path = path, .base = rest.value("baseTimeNanoseconds", int64_t{0})};
    if (rest.contains("accelerant")) {
      const json& own = rest.at("accelerant");
      merged.ranks.push_back({.rank = own.value("rank", int64_t{0}),
                              .dropped = own.value("dropped_events", int64_t{0}),
                              .times = times_in(own)});
      if (!ranks.insert(merged.ranks.back().rank).second) {
        refuse(path,
               "another file is of rank " + std::to_string(merged.ranks.back().rank) + " too");
      }
    } else {
      input.label = label_of(path);
    }
    if (first != std::numeric_limits<int64_t>::max()) zero = std::min(zero, input.base + first);
    inputs.push_back(std::move(input));
  }
  if (zero == std::numeric_limits<int64_t>::max()) zero = 0;  // no event has a time
  std::ranges::sort(merged.ranks, {}, &RankTimes::rank);

  Output output(output_path);
  output.begin(zero);
  OtherProcesses others;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    read_trace(inputs[i].path,
               [&](json& event) { copy_event(event, inputs[i], i, zero, others, output); });
  }
  others.write(output);
  merged.files = static_cast<int64_t>(inputs.size());
  merged.events = output.finish();
  return merged;
}

}  // namespace accelerant::track
