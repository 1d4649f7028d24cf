#include "launch/master_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::launch {
namespace {

[[noreturn]] void refuse(int port, int error) {
  const std::string what = "port " + std::to_string(port);
  if (error == EADDRINUSE) {
    throw Error(ErrorDetails{
        .problem = "the ranks cannot meet at " + what + ": it is in use",
        .hint = "stop the program that listens there (find it with ss -ltnp) or name another port; "
                "on a single machine leave the port out, and a free one is taken"});
  }
  throw Error(ErrorDetails{.problem = "the ranks cannot meet at " + what,
                           .got = std::strerror(error),
                           .hint = "name another port"});
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

int bind_to(const Fd& socket, int family, int port) {
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

int port_of(const Fd& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

MasterPort bind_master_port(int port) {
  if (port < 0 || port > 65535) {
    throw Error(ErrorDetails{.problem = "the port at which the ranks meet is not valid",
                             .expected = "0 (a free one) to 65535",
                             .got = std::to_string(port)});
  }
  int error = 0;
  // A machine may have IPv6 switched off.
  for (const int family : {AF_INET6, AF_INET}) {
    MasterPort made{.socket = make_socket(family)};
    if (made.socket.is_open() && bind_to(made.socket, family, port) == 0) {
      made.port = port_of(made.socket);
      return made;
    }
    error = errno;
    if (error == EADDRINUSE || error == EACCES) break;
  }
  refuse(port, error);
}

}  // namespace accelerant::launch
