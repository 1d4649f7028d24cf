#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "accelerant/track/timeline.h"

namespace accelerant {
namespace {

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t i = text.size(); i > 3;) text.insert(i -= 3, 1, ',');
  return text;
}

// "850 us", "3.2 ms", "12 ms", "1.5 s".
std::string duration_text(double seconds) {
  struct Unit {
    double factor;
    const char* name;
  };
  static constexpr std::array<Unit, 3> units = {{{1, "s"}, {1e3, "ms"}, {1e6, "us"}}};
  const Unit& unit = seconds >= 1 ? units[0] : seconds >= 1e-3 ? units[1] : units[2];
  const double value = seconds * unit.factor;
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.1f %s" : "%.0f %s", value, unit.name);
  return text;
}

}  // namespace

std::string summary_line(const PhaseTimes& times) {
  const int64_t updates = times.count(Phase::step);
  std::string line =
      updates > 0 ? "time of " + with_commas(updates) + (updates == 1 ? " update: " : " updates: ")
                  : "time of " + duration_text(times.total) + ": ";
  if (times.total <= 0) return line + "nothing was recorded";
  // What is shown adds up to 100 as nearly as whole numbers can.
  double shown = 0;
  for (std::size_t i = 0; i < kPhases; ++i) {
    const double percent = 100 * times.seconds[i] / times.total;
    if (percent < 0.5) continue;
    shown += percent;
    line += std::to_string(std::lround(percent)) + " % " + name_of(static_cast<Phase>(i)) + ", ";
  }
  const double other = 100 - shown;
  if (other >= 0.5 || shown == 0) {
    line += std::to_string(std::lround(other)) + " % other";
  } else {
    line.resize(line.size() - 2);
  }
  if (updates == 0) return line;
  const double evaluation = times.of(Phase::evaluation);
  const double training = std::max(times.total - evaluation, 0.0);
  return line + "; " + duration_text(training / static_cast<double>(updates)) + " per update" +
         (evaluation > 0 ? ", evaluation not counted" : "");
}

}  // namespace accelerant
