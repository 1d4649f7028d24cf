#include "core/cpu_affinity.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>

#include "accelerant/core/error.h"

namespace accelerant {
namespace {

[[noreturn]] void refuse_list(std::string_view text) {
  throw Error(ErrorDetails{.problem = "A list of cores cannot be parsed",
                           .expected = "numbers and ranges such as \"0-7,16-23\"",
                           .got = "\"" + std::string(text) + "\""});
}

int number_from(std::string_view text, std::string_view whole) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 ||
      number >= CPU_SETSIZE) {
    refuse_list(whole);
  }
  return number;
}

// From the kernel's topology; 0 if it does not say.
int topology(int cpu, const char* what) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + what);
  int number = 0;
  return file >> number ? number : 0;
}

std::vector<pid_t> threads_of_this_process() {
  std::vector<pid_t> threads;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/task"), &closedir);
  if (!folder) return {0};  // the calling thread
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') threads.push_back(std::atoi(entry->d_name));
  }
  return threads;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> numbers;
  std::string_view rest = text;
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const auto dash = item.find('-');
    const int first = number_from(item.substr(0, dash), text);
    const int last =
        dash == std::string_view::npos ? first : number_from(item.substr(dash + 1), text);
    if (last < first) refuse_list(text);
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<int> part_of(std::vector<Cpu> cpus, int64_t index, int64_t count) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.package, a.core, a.number) < std::tie(b.package, b.core, b.number);
  });
  const auto size = static_cast<int64_t>(cpus.size());
  const int64_t begin = size * index / count;
  const int64_t end = std::max(size * (index + 1) / count, begin + 1);
  std::vector<int> numbers;
  for (int64_t i = begin; i < end; ++i) numbers.push_back(cpus[static_cast<std::size_t>(i)].number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<Cpu> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<Cpu> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &set)) continue;
    cpus.push_back({.number = number,
                    .package = topology(number, "physical_package_id"),
                    .core = topology(number, "core_id")});
  }
  return cpus;
}

void set_cpu_affinity(const std::vector<int>& numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int number : numbers) CPU_SET(number, &set);
  for (const pid_t thread : threads_of_this_process()) {
    if (sched_setaffinity(thread, sizeof set, &set) == 0 || errno == ESRCH) continue;  // or ended
    throw Error(ErrorDetails{.problem = "This process cannot run on the cores assigned to it",
                             .expected = "cores of this machine that the process may use",
                             .got = std::strerror(errno)});
  }
}

}  // namespace accelerant
