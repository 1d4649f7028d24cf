#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "accelerant/core/error.h"
#include "helpers/selftest/checks.h"

namespace accelerant::selftest {
namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    throw Error(ErrorDetails{.problem = std::string(name) + " is not set",
                             .hint = "start this program with 'accelerant test'"});
  }
  return value;
}

int64_t number_of(const char* name) {
  const std::string text = text_of(name);
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) {
    throw Error(ErrorDetails{.problem = name, .expected = "a number", .got = text});
  }
  return number;
}

void expect_in_range(const char* name, int64_t end) {
  const int64_t value = number_of(name);
  if (value >= 0 && value < end) return;
  throw Error(ErrorDetails{.problem = name,
                           .expected = "0 to " + std::to_string(end - 1),
                           .got = std::to_string(value)});
}

void check_places() {
  expect_in_range("RANK", number_of("WORLD_SIZE"));
  expect_in_range("LOCAL_RANK", number_of("LOCAL_WORLD_SIZE"));
  expect_in_range("GROUP_RANK", number_of("GROUP_WORLD_SIZE"));
  expect_in_range("MASTER_PORT", 65536);
  const int64_t rank =
      number_of("GROUP_RANK") * number_of("LOCAL_WORLD_SIZE") + number_of("LOCAL_RANK");
  if (rank == number_of("RANK")) return;
  throw Error(ErrorDetails{.problem = "RANK",
                           .expected = std::to_string(rank) + " from GROUP_RANK and LOCAL_RANK",
                           .got = text_of("RANK")});
}

// Rank 0 inherits a socket that is bound to the port where all ranks meet.
void check_listening_socket() {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  const auto fd = static_cast<int>(number_of("ACCELERANT_MASTER_LISTEN_FD"));
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error("ACCELERANT_MASTER_LISTEN_FD is not an open socket");
  }
  const auto port = address.ss_family == AF_INET6
                        ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                        : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  if (ntohs(port) == number_of("MASTER_PORT")) return;
  throw Error(ErrorDetails{.problem = "The port of the inherited socket",
                           .expected = text_of("MASTER_PORT"),
                           .got = std::to_string(ntohs(port))});
}

}  // namespace

void check_launch_contract() {
  check_places();
  if (number_of("RANK") == 0) check_listening_socket();
}

}  // namespace accelerant::selftest
