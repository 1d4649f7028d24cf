// What the library refuses, as a result.
#pragma once

#include <accelerant/core/error.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>

namespace replay {

// Calls f; a refusal by the library or by torch becomes {"error": message}. Of a message with two
// lines the first is the original's text, which is what is compared.
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
