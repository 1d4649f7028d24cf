#include <glob.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/launch/debug_launcher.h"
#include "accelerant/version.h"
#include "cli/commands.h"
#include "cli/helper_program.h"
#include "cli/options.h"
#include "core/texts.h"
#include "launch/process_count.h"
#include "launch/rank_variables.h"

namespace accelerant::cli {
namespace {

// Variables with these prefixes change how programs run. The output of this command is published
// with a bug report, so values are shown only where they are settings.
constexpr std::string_view kSettings[] = {"ACCELERANT_", "ACCELERATE_", "TORCH",
                                          "OMP_",        "CUDA_",       "MKL_"};
// Some of these name machines, accounts and addresses.
constexpr std::string_view kMixed[] = {"MASTER_",          "NCCL_", "GLOO_",
                                       "OMPI_COMM_WORLD_", "PMI_",  "SLURM_"};
constexpr std::string_view kNames[] = {
    "RANK",       "WORLD_SIZE", "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "ROLE_RANK",  "LD_LIBRARY_PATH", "LD_PRELOAD"};
// Of the mixed ones, those that are settings although their values are neither numbers nor switches.
constexpr std::string_view kKnown[] = {
    "NCCL_DEBUG",           "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY",
    "NCCL_IB_HCA",          "NCCL_ALGO",         "NCCL_PROTO",         "NCCL_NET",
    "NCCL_P2P_LEVEL",       "NCCL_SHM_LOCALITY", "NCCL_NET_GDR_LEVEL", "GLOO_SOCKET_IFNAME",
    "GLOO_DEVICE_TRANSPORT"};
// Parts of names whose values are never shown.
constexpr std::string_view kSecrets[] = {"TOKEN",      "KEY",        "SECRET", "PASSWORD", "PASSWD",
                                         "PASSPHRASE", "CREDENTIAL", "AUTH",   "COOKIE",   "JWT"};

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

bool begins_with_any(std::string_view name, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// "1", "0,1", "-3", "true", "127.0.0.1": names nobody.
bool is_plain(std::string_view value) {
  constexpr std::string_view kWords[] = {"true", "false",     "yes",       "no",  "on",
                                         "off",  "127.0.0.1", "localhost", "::1", ""};
  if (is_one_of(lower_case(value), kWords)) return true;
  return value.find_first_not_of("0123456789,-") == std::string_view::npos;
}

bool may_be_shown(std::string_view name, std::string_view value) {
  const auto contains = [&](auto part) { return name.find(part) != std::string_view::npos; };
  if (std::ranges::any_of(kSecrets, contains)) return false;
  return !begins_with_any(name, kMixed) || is_one_of(name, kKnown) || is_plain(value);
}

std::vector<std::string> variables_that_matter() {
  std::vector<std::string> lines;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool matters = begins_with_any(name, kSettings) || begins_with_any(name, kMixed) ||
                         is_one_of(name, kNames);
    if (!matters || name.size() == text.size()) continue;
    const std::string_view value = text.substr(name.size() + 1);
    lines.push_back(std::string(name) + "=" +
                    (may_be_shown(name, value) ? std::string(value) : "<hidden>"));
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
