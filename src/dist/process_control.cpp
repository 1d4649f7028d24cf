#include "accelerant/dist/process_control.h"

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "dist/agreement.h"
#include "dist/message.h"
#include "dist/transport.h"
#include "watch/failure.h"

namespace accelerant::dist {
namespace {

// What a process says about its turn: nothing if it succeeded, otherwise this and the message.
constexpr char kFailed = '!';

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

void wait_for_everyone(const World& world, const std::string& name) {
  if (world.size() == 1) return;
  require_same_in_debug(world, "wait_for_everyone");
  barrier(world, name);
}

void detail::await_turn(const World& world, const char* name) {
  require_same_in_debug(world, name);
  std::string failed;
  const std::vector<std::string> messages = exchange_messages(world, name, "");
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    if (messages[rank].empty()) continue;
    failed +=
        c10::str(failed.empty() ? "" : "; ", "rank ", rank, " failed: ", messages[rank].substr(1));
  }
  if (failed.empty()) return;
  const std::string abandoned = c10::str(name, " was abandoned");
  throw ExchangeError(c10::str(abandoned, " on rank ", world.rank(), ": ", failed),
                      c10::str(abandoned, ": ", failed), /*is_consequence=*/true);
}

void detail::report_failed_turn(const World& world, const char* name, std::exception_ptr error) {
  try {
    require_same_in_debug(world, name);
    exchange_messages(world, name, kFailed + message_of(error));
  } catch (const std::exception& second) {
    // The program's own exception is the one to propagate.
    log(LogLevel::warning, c10::str("Cannot notify the other processes: ", second.what()));
  }
}

}  // namespace accelerant::dist
