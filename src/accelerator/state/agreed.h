// Runs code that may fail in one process such that it fails in all.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/dist/collectives.h"

namespace accelerant::detail {

// Calls f in the main process only, and returns its result, a JSON value, in all processes. If f
// throws, all processes get an Error with its message.
template <class F>
nlohmann::json from_main(const dist::World& world, F&& f) {
  if (!world.is_connected()) return f();
  nlohmann::json outcome = nlohmann::json::object();
  std::exception_ptr error;
  if (world.rank() == 0) {
    try {
      outcome["result"] = f();
    } catch (const std::exception& thrown) {
      error = std::current_exception();
      outcome["error"] = thrown.what();
    }
  }
  dist::broadcast_object(world, outcome);
  if (error) std::rethrow_exception(error);
  if (outcome.contains("error")) throw Error(outcome.at("error").get<std::string>());
  return outcome.at("result");
}

// Calls f in every process. If it throws in one, all get an Error.
template <class F>
void in_all(const dist::World& world, F&& f) {
  if (!world.is_connected()) return f();
  std::string mine;
  std::exception_ptr error;
  try {
    f();
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    mine = thrown.what();
  }
  const std::vector<std::string> all = dist::gather_bytes(world, mine);
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) throw Error("rank " + std::to_string(rank) + ": " + all[rank]);
  }
}

}  // namespace accelerant::detail
