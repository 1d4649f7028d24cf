#include "tensor/current_message.h"

#include <c10/util/Exception.h>

namespace accelerant::detail {

std::string current_message() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace accelerant::detail
