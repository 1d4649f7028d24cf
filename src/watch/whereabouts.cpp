#include "watch/whereabouts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace accelerant::dist {
namespace {

std::string name_of_machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat pids = {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &pids) != 0) return "";
  return boot + "/" + std::to_string(pids.st_ino);
}

bool has_tracer(int64_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  constexpr std::string_view kKey = "TracerPid:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kKey)) return line.find_first_of("123456789") != std::string::npos;
  }
  return false;
}

const std::string& this_machine() {
  static const auto* const name = new std::string(name_of_machine());
  return *name;
}

}  // namespace

Whereabouts own_whereabouts() {
  const int64_t pid = ::getpid();
  return {.machine = this_machine(), .pid = pid, .is_traced = has_tracer(pid)};
}

bool is_traced(const Whereabouts& process) {
  const bool is_here = !process.machine.empty() && process.machine == this_machine();
  return is_here ? has_tracer(process.pid) : process.is_traced;
}

}  // namespace accelerant::dist
