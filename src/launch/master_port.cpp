#include "launch/master_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "accelerant/core/error.h"

namespace accelerant::launch {
namespace {

[[noreturn]] void refuse(const meet::Place& place, int error, const std::string& problem) {
  const std::string port = "port " + std::to_string(place.port);
  if (error == EADDRINUSE) {
    throw Error(ErrorDetails{
        .problem = "the ranks cannot meet at " + port + ": it is in use",
        .hint = "stop the program that listens there (find it with ss -ltnp) or name another port; "
                "on a single machine leave the port out, and a free one is taken"});
  }
  if (error == EADDRNOTAVAIL) {
    throw Error(ErrorDetails{.problem = "the ranks cannot meet at " + place.host,
                             .got = problem,
                             .hint = "set main_process_ip (--main-process-ip) to an address of "
                                     "machine 0, where rank 0 runs; there 0.0.0.0 stands for all "
                                     "of its addresses"});
  }
  throw Error(ErrorDetails{
      .problem = "the ranks cannot meet at " + port, .got = problem, .hint = "name another port"});
}

Fd make_socket(int family) {
  Fd made(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  const int no = 0;
  if (!made.is_open()) return made;
  ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (family == AF_INET6) {
    ::setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);  // IPv4 as well
  }
  return made;
}

int bind_to_all(const Fd& socket, int family, int port) {
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_ANY);
  four.sin_port = htons(static_cast<uint16_t>(port));
  const bool is_six = family == AF_INET6;
  return ::bind(socket.get(),
                is_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four),
                is_six ? sizeof six : sizeof four);
}

// A socket that holds the port at all addresses while we bind it to ours: a program in place of our
// library may want to listen at all of them. This socket never listens.
MasterPort hold_port(const meet::Place& place) {
  int error = 0;
  // A machine may have IPv6 switched off.
  for (const int family : {AF_INET6, AF_INET}) {
    MasterPort made{.socket = make_socket(family)};
    if (made.socket.is_open() && bind_to_all(made.socket, family, place.port) == 0) {
      made.port = meet::port_of(made.socket.get());
      return made;
    }
    error = errno;
    if (error == EADDRINUSE || error == EACCES) break;
  }
  refuse(place, error, std::strerror(error));
}

}  // namespace

MasterPort bind_master_port(const meet::Place& place) {
  if (place.port < 0 || place.port > 65535) {
    throw Error(ErrorDetails{.problem = "the port at which the ranks meet is not valid",
                             .expected = "0 (a free one) to 65535",
                             .got = std::to_string(place.port)});
  }
  const MasterPort held = hold_port(place);
  meet::Place here = place;
  here.port = held.port;
  meet::Bound bound = meet::bind_at(here);
  if (!bound.socket.is_open()) refuse(here, bound.error, bound.reason);
  return {.socket = std::move(bound.socket), .port = held.port};
}

}  // namespace accelerant::launch
