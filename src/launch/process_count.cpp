#include "launch/process_count.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "accelerant/core/error.h"
#include "launch/rank_variables.h"

namespace accelerant::launch {
namespace {

int64_t count_device_files() {
  glob_t found = {};
  const int error = ::glob("/dev/nvidia[0-9]*", 0, nullptr, &found);
  const auto count = error == 0 ? static_cast<int64_t>(found.gl_pathc) : 0;
  ::globfree(&found);
  return count;
}

// As CUDA reads it: the devices before the first invalid one.
int64_t count_visible(std::string_view list) {
  int64_t count = 0;
  while (!list.empty()) {
    const std::string_view device = list.substr(0, list.find(','));
    if (device.empty() || device.front() == '-') break;
    ++count;
    list.remove_prefix(std::min(list.size(), device.size() + 1));
  }
  return count;
}

}  // namespace

int64_t count_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? count_device_files() : count_visible(visible);
}

int64_t count_processes(const std::string& text, int64_t num_machines, bool cpu_only) {
  const int64_t gpus = cpu_only ? 0 : count_gpus();
  if (text.empty()) return num_machines * std::max<int64_t>(1, gpus);
  if (text == "gpu" && gpus == 0) {
    throw Error(
        ErrorDetails{.problem = "one process per GPU was asked for, but there is no GPU here",
                     .hint = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or ask for a "
                             "number of processes, or for cpu"});
  }
  if (text == "gpu" || (text == "auto" && gpus > 0)) return num_machines * gpus;
  if (text == "cpu" || text == "auto") return num_machines * count_processors();
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 1) {
    throw Error(ErrorDetails{.problem = "the number of processes",
                             .expected = "a number of at least 1, auto, gpu or cpu",
                             .got = "'" + text + "'"});
  }
  return number;
}

}  // namespace accelerant::launch
