// Exchanges of JSON values and of bytes between processes, of any size and different ones on each.
//
//   std::vector<nlohmann::json> all = dist::gather_object(world, {{"rank", world.rank()}, {"loss", 0.5}});
//   nlohmann::json settings = world.rank() == 0 ? read() : nlohmann::json();
//   dist::broadcast_object(world, settings);                     // now the same everywhere
//
// They go over the CPU and never wait for a GPU. Every process must call them in the same order.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// The values of all processes in the order of their ranks, on every process. In one process a list of
// the one value, where Accelerate gives the value itself.
std::vector<nlohmann::json> gather_object(const World& world, const nlohmann::json& value);

// Joins the lists of all processes, as Accelerate's gather_object does.
std::vector<nlohmann::json> gather_object_list(const World& world,
                                               const std::vector<nlohmann::json>& values);

// The same for bytes, which a string may well hold.
std::vector<std::string> gather_bytes(const World& world, const std::string& bytes);

// Gives every process the value of one of them.
void broadcast_object(const World& world, nlohmann::json& value, int64_t from_process = 0);

// Gives every process the list of one of them; what the others had, and how long, does not matter.
void broadcast_object_list(const World& world, std::vector<nlohmann::json>& values,
                           int64_t from_process = 0);

// The same for bytes.
void broadcast_bytes(const World& world, std::string& bytes, int64_t from_process = 0);

}  // namespace accelerant::dist
