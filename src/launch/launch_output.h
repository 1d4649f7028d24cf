// What all ranks of this machine write in one attempt: to the screen and to log files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/launch_plan.h"
#include "launch/rank_group.h"
#include "launch/rank_stream.h"

namespace accelerant::launch {

class LaunchOutput : public OutputReceiver {
 public:
  // `console` is borrowed. Log files go to <folder>/<rank>, which must exist. Throws Error if one
  // cannot be created; if one cannot be written to later, `say` is told once.
  LaunchOutput(Console& console, const LaunchPlan& plan, const std::string& folder,
               std::function<void(const std::string&)> say);

  void receive(size_t index, Stream stream, std::string_view bytes) override;
  bool is_congested(Stream stream) const override { return console_.of(stream).is_congested(); }
  void add_poll_entries(std::vector<pollfd>& entries) const override {
    console_.add_poll_entries(entries);
  }
  void write_pending() override { console_.write_pending(); }

  // The terminal on which this stream is shown, to be told to the rank; -1 if there is none, or if
  // the rank is not the one that may draw a progress bar on it.
  int terminal_of(size_t index, Stream stream) const;

  // After the last byte: shows unfinished lines, and puts last lines in the results.
  void finish(std::vector<RankResult>& ranks);
  bool are_logs_complete() const;

 private:
  struct Streams {
    std::unique_ptr<RankStream> out;
    std::unique_ptr<RankStream> err;
  };
  Console& console_;
  std::function<void(const std::string&)> say_;
  std::vector<Streams> ranks_;
};

}  // namespace accelerant::launch
