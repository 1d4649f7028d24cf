// Turns errors of the library into results.
#pragma once

#include <accelerant/core/error.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>

namespace replay {

// Calls f. An error of the library or of torch becomes {"error": message}. Only the first line of
// the library's message is kept: it is the original's text, which tests compare.
template <class F>
nlohmann::json result_or_error(F&& f) {
  try {
    return f();
  } catch (const accelerant::Error& error) {
    const std::string message = error.what();
    return {{"error", message.substr(0, message.find('\n'))}};
  } catch (const c10::Error& error) {
    return {{"error", error.what_without_backtrace()}};
  }
}

}  // namespace replay
