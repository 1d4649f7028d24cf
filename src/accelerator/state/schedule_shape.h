// Whether the schedule of a program is the one that a checkpoint was saved with. A checkpoint holds
// the position in a schedule; the curve comes from the program.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace accelerant::detail {

class ScheduleAccess;

// What is saved of a schedule: its own state, and what its curve is known by.
nlohmann::json saved_schedule(const ScheduleAccess& schedule);

// For a schedule that has loaded `saved`: a warning if its curve is another one.
std::optional<std::string> why_other_curve(const ScheduleAccess& schedule,
                                           const nlohmann::json& saved, int64_t saved_processes,
                                           int64_t processes);

}  // namespace accelerant::detail
