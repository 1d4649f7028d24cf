#include <glob.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/launch/debug_launcher.h"
#include "accelerant/version.h"
#include "cli/commands.h"
#include "cli/helper_program.h"
#include "cli/options.h"
#include "launch/process_count.h"
#include "launch/rank_variables.h"

namespace accelerant::cli {
namespace {

// Variables with these prefixes change how programs run.
constexpr const char* kPrefixes[] = {"ACCELERANT_", "ACCELERATE_", "MASTER_", "NCCL_",
                                     "TORCH",       "GLOO_",       "OMP_",    "OMPI_COMM_WORLD_",
                                     "PMI_",        "SLURM_",      "CUDA_",   "MKL_"};
constexpr const char* kNames[] = {"RANK",       "WORLD_SIZE", "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
                                  "GROUP_RANK", "ROLE_RANK",  "LD_LIBRARY_PATH", "LD_PRELOAD"};

std::string platform() {
  utsname names = {};
  ::uname(&names);
  std::string text = std::string(names.sysname) + " " + names.release + " " + names.machine;
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "PRETTY_NAME=";
    if (!line.starts_with(kKey)) continue;
    std::string name = line.substr(kKey.size());
    std::erase(name, '"');
    text += ", " + name;
  }
  return text;
}

std::string memory() {
  struct sysinfo information = {};
  ::sysinfo(&information);
  const double gib = static_cast<double>(information.totalram) *
                     static_cast<double>(information.mem_unit) / (1024.0 * 1024.0 * 1024.0);
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", gib);
  return text;
}

// The names of GPUs, from the driver, without loading CUDA.
std::string gpu_names() {
  glob_t found = {};
  std::string names;
  if (::glob("/proc/driver/nvidia/gpus/*/information", 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      std::ifstream file(found.gl_pathv[i]);
      for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("Model:")) continue;
        names += (names.empty() ? "" : ", ") + line.substr(line.find_first_not_of(" \t", 6));
      }
    }
  }
  ::globfree(&found);
  return names.empty() ? "none" : names;
}

std::vector<std::string> variables_that_matter() {
  std::vector<std::string> lines;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const auto begins = [&](const char* prefix) { return name.starts_with(prefix); };
    if (std::ranges::any_of(kPrefixes, begins) ||
        std::ranges::find(kNames, name) != std::end(kNames)) {
      lines.emplace_back(text);
    }
  }
  std::ranges::sort(lines);
  return lines;
}

void show_torch() {
  const auto helper = find_helper("accelerant-describe");
  if (!helper) {
    std::puts("- libtorch: unknown; accelerant-describe, which is part of Accelerant, is missing");
    return;
  }
  if (const auto problem = loading_problem(*helper)) {
    std::printf("- libtorch: does not load: %s\n", problem->c_str());
    return;
  }
  const auto run = launch::run_ranks({.command = {*helper}, .num_processes = 1});
  if (run.succeeded()) {
    std::fputs(run.ranks[0].out.c_str(), stdout);
  } else {
    std::printf("- libtorch: does not load\n%s", run.report.c_str());
  }
}

}  // namespace

int env_command(int argc, char** argv) {
  const auto app = make_parser("env", "[OPTIONS]",
                               "Shows what a bug report should contain: versions, hardware and the "
                               "variables that change how programs run.");
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  std::puts("Copy the text below into your bug report:\n");
  std::printf("- Accelerant version: %s\n", ACCELERANT_VERSION);
  std::printf("- Platform: %s\n", platform().c_str());
  std::printf("- Compiler: %s %s\n",
#if defined(__clang__)
              "clang",
#else
              "g++",
#endif
              __VERSION__);
  std::printf("- Processors: %lld\n", static_cast<long long>(launch::count_processors()));
  std::printf("- Memory: %s\n", memory().c_str());
  std::printf("- GPUs: %s (%lld visible)\n", gpu_names().c_str(),
              static_cast<long long>(launch::count_gpus()));
  std::fflush(stdout);
  show_torch();
  const auto variables = variables_that_matter();
  std::printf("- Variables:%s\n", variables.empty() ? " none" : "");
  for (const std::string& line : variables) std::printf("    %s\n", line.c_str());
  return 0;
}

}  // namespace accelerant::cli
