// What the library refuses, as a result.
#pragma once

#include <accelerant/core/error.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace replay {

// Calls f; a refusal by the library or by torch becomes {"error": message}.
template <class F>
nlohmann::json result_or_error(F&& f) {
  try {
    return f();
  } catch (const accelerant::Error& error) {
    return {{"error", error.what()}};
  } catch (const c10::Error& error) {
    return {{"error", error.what_without_backtrace()}};
  }
}

}  // namespace replay
