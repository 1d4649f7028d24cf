// Which cores this process runs on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace accelerant {

// "0-3,8" as {0, 1, 2, 3, 8}, sorted and without repetitions. An Error if it is no such list.
std::vector<int> parse_cpu_list(std::string_view text);

struct Cpu {
  int number = 0;
  int package = 0;  // the socket
  int core = 0;     // in the package; threads of one core have the same
};

// Part `index` of `count` about equal parts, in which the threads of a core stay together as far as
// possible, and neighbouring parts are in one package. With fewer cpus than parts, parts share.
std::vector<int> part_of(std::vector<Cpu> cpus, int64_t index, int64_t count);

// Those that the calling thread may run on now.
std::vector<Cpu> usable_cpus();

// All threads of the process run on these from now on, and those that they start. An Error if the
// system refuses.
void set_cpu_affinity(const std::vector<int>& numbers);

}  // namespace accelerant
