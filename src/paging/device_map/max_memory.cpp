#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/paging/device_map.h"
#include "compat/device_memory.h"
#include "core/texts.h"
#include "paging/device_map/presence.h"

namespace accelerant {
namespace {

// What programs may still take without swapping.
int64_t free_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (int64_t kilobytes = 0; file >> name >> kilobytes;) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  throw Error(
      "Cannot find out how much memory this machine has (MemAvailable in /proc/meminfo); give the "
      "limits in max_memory");
}

int count_gpus() { return paging::device_count(Placement(0).device()->type()); }

MaxMemory free_memory() {
  MaxMemory free;
  bool shares_host_memory = false;
  for (int index = 0; index < count_gpus(); ++index) {
    const Placement gpu(index);
    const auto memory = compat::device_memory(*gpu.device());
    if (!memory) {
      log(LogLevel::info, "GPU " + gpu.text() + " does not say how much memory it has free");
      continue;
    }
    free.emplace(gpu, memory->free);
    shares_host_memory = shares_host_memory || memory->is_host_memory;
  }
  if (!shares_host_memory) free.emplace("cpu", free_host_memory());
  return free;
}

}  // namespace

MaxMemory get_max_memory(const MaxMemory& max_memory) {
  if (max_memory.empty()) return free_memory();
  const int gpus = count_gpus();
  std::vector<std::string> missing;
  for (const auto& [place, limit] : max_memory) {
    if (const auto index = place.gpu()) {
      if (*index >= gpus) missing.push_back(place.text());
    } else if (!place.is_cpu() && !place.is_disk() && place != Placement(c10::DeviceType::MPS)) {
      throw Error(ErrorDetails{.problem = "Device " + place.text() + " is not recognized",
                               .expected = "an index (of a GPU), 'mps', 'cpu' or 'disk'",
                               .got = "'" + place.text() + "'"});
    }
  }
  if (!missing.empty()) {
    log(LogLevel::warning, "max_memory has limits for " + list_text(missing) +
                               ", but this machine has " +
                               counted(static_cast<std::uint64_t>(gpus), "GPU"));
  }
  return max_memory;
}

}  // namespace accelerant
