#include "accelerator/state/schedule_shape.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "accelerator/prepared/scheduler_state.h"

namespace accelerant::detail {
namespace {

using nlohmann::json;

constexpr const char* kTotal = "total_steps";
constexpr const char* kRates = "_last_lr";

std::vector<double> rates_in(const json& state) {
  const auto found = state.find(kRates);
  if (found == state.end() || !found->is_array()) return {};
  return found->get<std::vector<double>>();
}

bool are_close(const std::vector<double>& a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-6 * std::max(std::abs(a[i]), std::abs(b[i]))) return false;
  }
  return true;
}

}  // namespace

json saved_schedule(const ScheduleAccess& schedule) {
  json state = schedule.state_dict();
  if (const auto total = schedule.total_steps()) state[kTotal] = *total;
  return state;
}

std::optional<std::string> why_other_curve(const ScheduleAccess& schedule, const json& saved,
                                           int64_t saved_processes, int64_t processes) {
  const json now = schedule.state_dict();
  const auto total = schedule.total_steps();
  const auto saved_total = saved.find(kTotal);
  std::string text;
  if (total && saved_total != saved.end() && *saved_total != *total) {
    text = c10::str("The learning-rate schedule was saved with total_steps = ", saved_total->dump(),
                    " and is now made with total_steps = ", *total, ". ",
                    saved.at("last_epoch").dump(), " of them are done");
  } else {
    const std::vector<double> before = rates_in(saved);
    const std::vector<double> after = rates_in(now);
    if (before.size() != after.size() || are_close(before, after)) return std::nullopt;
    text = c10::str("The learning-rate schedule is not the one that was saved: at step ",
                    saved.at("last_epoch").dump(), " its rates are ", now.at(kRates).dump(),
                    ", and they were ", saved.at(kRates).dump());
  }
  text += ", so the learning rate will follow another curve than the saved run. ";
  if (saved_processes != processes) {
    text += c10::str("The number of processes was ", saved_processes, " and is now ", processes,
                     ", which changes the updates in an epoch. ");
  }
  return text +
         "Give the schedule the options of the saved run. A schedule that counts samples "
         "(.schedule_unit = accelerant::ScheduleUnit::sample) does not depend on the processes";
}

}  // namespace accelerant::detail
