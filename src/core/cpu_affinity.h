// Which cores this process runs on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace accelerant {

// Parses "0-3,8" to {0, 1, 2, 3, 8}, sorted and without duplicates. Throws Error for anything else.
std::vector<int> parse_cpu_list(std::string_view text);

struct Cpu {
  int number = 0;
  int package = 0;  // the socket
  int core = 0;     // within the package; threads of one core share it
};

// Part `index` of `count` roughly equal parts. Threads of a core stay together where possible, and
// neighbouring parts are in the same package. With fewer CPUs than parts, parts share CPUs.
std::vector<int> part_of(std::vector<Cpu> cpus, int64_t index, int64_t count);

// The CPUs that the calling thread may run on now.
std::vector<Cpu> usable_cpus();

// Restricts all threads of the process, and the threads they start, to these CPUs. Throws Error if
// the system refuses.
void set_cpu_affinity(const std::vector<int>& numbers);

}  // namespace accelerant
