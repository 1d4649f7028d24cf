// What may fail in one process, done so that it fails in all.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/dist/collectives.h"

namespace accelerant::detail {

// The result of f, a JSON value, which only the main process calls; all get it, or an Error with
// what it threw.
template <class F>
nlohmann::json from_main(const dist::World& world, F&& f) {
  if (!world.is_connected()) return f();
  nlohmann::json told = nlohmann::json::object();
  std::exception_ptr error;
  if (world.rank() == 0) {
    try {
      told["result"] = f();
    } catch (const std::exception& thrown) {
      error = std::current_exception();
      told["error"] = thrown.what();
    }
  }
  dist::broadcast_object(world, told);
  if (error) std::rethrow_exception(error);
  if (told.contains("error")) throw Error(told.at("error").get<std::string>());
  return told.at("result");
}

// Calls f in every process; if it throws in one, all get an Error.
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
