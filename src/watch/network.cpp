#include "watch/network.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "meet/interfaces.h"

namespace accelerant::dist {
namespace {

constexpr const char* interface_hint =
    "name the network interface that leads to the other machines: GLOO_SOCKET_IFNAME=eth0";

void check_interface(const std::string& name) {
  if (if_nametoindex(name.c_str()) != 0) return;
  std::set<std::string> names;  // an interface may have several addresses
  for (const auto& entry : meet::addresses_of_this_machine()) names.insert(entry.interface);
  throw Error(ErrorDetails{.problem = "There is no such network interface",
                           .expected = "one of " + list_text({names.begin(), names.end()}),
                           .got = name,
                           .hint = "check GLOO_SOCKET_IFNAME"});
}

// The local address from which `peer` is reached: a connected datagram socket has one, although
// nothing was sent. Empty if there is no route.
std::string address_towards(const addrinfo& peer) {
  const int descriptor = socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return "";
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  const bool found = connect(descriptor, peer.ai_addr, peer.ai_addrlen) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &length) == 0;
  close(descriptor);
  return found ? meet::address_text(reinterpret_cast<const sockaddr*>(&local)) : "";
}

// The address of this machine as others see it.
std::string address_between_machines(const Environment& environment) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  const std::string port = std::to_string(environment.master_port);
  const int failed = getaddrinfo(environment.master_address.c_str(), port.c_str(), &wanted, &first);
  if (failed != 0)
    throw Error(ErrorDetails{.problem = "The address of process 0 cannot be resolved",
                             .expected = "a MASTER_ADDR that this machine knows",
                             .got = environment.master_address + " (" + gai_strerror(failed) + ")",
                             .hint =
                                 "set MASTER_ADDR to an address such as 10.0.0.1, and if necessary "
                                 "GLOO_SOCKET_IFNAME to the interface that leads there"});
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, freeaddrinfo);

  bool reachable = false;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* peer = first; peer != nullptr; peer = peer->ai_next) {
      if (peer->ai_family != family) continue;
      const std::string address = address_towards(*peer);
      if (!address.empty() && !meet::is_loopback(address)) return address;
      reachable = reachable || !address.empty();
    }
  }
  // On the machine itself its own name may lead to a loopback address.
  if (reachable)
    if (const auto address = meet::address_to_others(meet::addresses_of_this_machine()))
      return *address;
  throw Error(ErrorDetails{.problem = "No address of this machine leads to the other machines",
                           .expected = "a route to MASTER_ADDR=" + environment.master_address,
                           .hint = interface_hint});
}

// The smallest quota between the control group of this process and the root.
std::optional<double> cores_of_control_group() {
  std::ifstream groups("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::")) path = line.substr(3);
  std::optional<double> least;
  while (true) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    std::string line;
    if (std::getline(file, line)) {
      const auto cores = cores_of_quota(line);
      if (cores && (!least || *cores < *least)) least = cores;
    }
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

double usable_cores() {
  double cores = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more cores than a cpu_set_t holds; those are not short of them.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  const auto quota = cores_of_control_group();
  return quota ? std::min(cores, *quota) : cores;
}

}  // namespace

GlooEndpoint gloo_endpoint(const Environment& environment, const std::string& interface) {
  const char* const variable = std::getenv("GLOO_SOCKET_IFNAME");
  std::string named = !interface.empty() || variable == nullptr ? interface : variable;
  named.resize(std::min(named.find(','), named.size()));
  if (!named.empty()) {
    check_interface(named);
    return {.is_interface = true, .name = named};
  }
  if (environment.on_one_machine()) return {.name = "127.0.0.1"};
  return {.name = address_between_machines(environment)};
}

int threads_per_process(const Environment& environment) {
  const double cores = usable_cores() / static_cast<double>(environment.local_num_processes);
  return std::max(1, static_cast<int>(cores));
}

std::optional<double> cores_of_quota(std::string_view cpu_max) {
  std::istringstream text{std::string(cpu_max)};
  double quota = 0;
  double period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace accelerant::dist
