#include "launch/launch_plan.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "accelerant/core/error.h"
#include "core/launch_contract.h"
#include "launch/child_process.h"
#include "launch/folders.h"
#include "meet/secret.h"

namespace accelerant::launch {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's and Accelerate's

void need_at_least(int64_t minimum, int64_t value, const char* name) {
  if (value >= minimum) return;
  throw Error(ErrorDetails{.problem = name,
                           .expected = "at least " + std::to_string(minimum),
                           .got = std::to_string(value)});
}

void check_numbers(const LaunchOptions& options) {
  need_at_least(1, options.num_processes, "the number of processes");
  need_at_least(1, options.num_machines, "the number of machines");
  need_at_least(0, options.max_restarts, "max_restarts");
  need_at_least(1, options.gradient_accumulation_steps.value_or(1), "gradient_accumulation_steps");
  need_at_least(1, options.num_cpu_threads_per_process.value_or(1), "num_cpu_threads_per_process");
  // Written so that NaN is refused.
  if (!(options.monitor_interval.count() > 0)) {
    throw Error(ErrorDetails{.problem = "monitor_interval",
                             .expected = "seconds, more than 0",
                             .got = std::to_string(options.monitor_interval.count())});
  }
  if (options.notice_after && !(options.notice_after->count() >= 0)) {
    throw Error(ErrorDetails{.problem = "notice_after",
                             .expected = "seconds, 0 or more",
                             .got = std::to_string(options.notice_after->count())});
  }
  if (!(options.grace.count() >= 0) || !(options.saving_grace.count() >= 0)) {
    throw Error(ErrorDetails{
        .problem = "the grace for ranks to end",
        .expected = "seconds, 0 or more",
        .got = std::to_string(std::min(options.grace.count(), options.saving_grace.count()))});
  }
  const auto& precision = options.mixed_precision;
  if (precision && *precision != "no" && *precision != "fp16" && *precision != "bf16") {
    throw Error(ErrorDetails{
        .problem = "mixed_precision", .expected = "no, fp16 or bf16", .got = *precision});
  }
}

void check_machines(const LaunchOptions& options) {
  const std::string machines = std::to_string(options.num_machines) + " machines";
  if (!options.machine_rank) {
    throw Error(ErrorDetails{.problem = machines + " need to know which of them this one is",
                             .hint = "set machine_rank (--machine-rank), 0 on the main one"});
  }
  if (*options.machine_rank < 0 || *options.machine_rank >= options.num_machines) {
    throw Error(ErrorDetails{.problem = "machine_rank",
                             .expected = "0 to " + std::to_string(options.num_machines - 1),
                             .got = std::to_string(*options.machine_rank)});
  }
  if (options.main_process_ip.empty()) {
    throw Error(ErrorDetails{.problem = machines + " need a place to meet",
                             .hint = "set main_process_ip (--main-process-ip) to an address of "
                                     "machine 0"});
  }
  if (options.main_process_port == 0) {
    throw Error(ErrorDetails{.problem = machines + " need a port that all of them know",
                             .hint = "set main_process_port (--main-process-port); only a single "
                                     "machine can pick a free one"});
  }
  if (options.num_processes % options.num_machines != 0) {
    throw Error(ErrorDetails{.problem = "the number of processes on all machines together",
                             .expected = "a multiple of the " + machines,
                             .got = std::to_string(options.num_processes)});
  }
}

void place_on_machines(const LaunchOptions& options, LaunchPlan& plan) {
  const bool is_alone = options.standalone || options.num_machines == 1;
  if (!is_alone) {
    check_machines(options);
    plan.machine_rank = *options.machine_rank;
    plan.num_machines = options.num_machines;
    plan.master_addr = options.main_process_ip;
    plan.port = options.main_process_port.value_or(kDefaultPort);
  } else {
    if (!options.standalone && options.machine_rank.value_or(0) != 0) {
      throw Error(ErrorDetails{.problem = "machine_rank",
                               .expected = "0, since there is one machine",
                               .got = std::to_string(*options.machine_rank),
                               .hint = "set num_machines (--num-machines) too"});
    }
    const bool has_ip = !options.standalone && !options.main_process_ip.empty();
    plan.master_addr = has_ip ? options.main_process_ip : "127.0.0.1";
    plan.port = options.standalone ? 0 : options.main_process_port.value_or(0);
  }
  plan.local_world_size = options.num_processes / plan.num_machines;
}

// Its absolute path: a rank may change its folder first.
std::string usable_secret_file(const std::string& path) {
  meet::Secret::read(path);  // throws if it cannot be used
  const std::unique_ptr<char, void (*)(void*)> absolute(::realpath(path.c_str(), nullptr), ::free);
  return absolute ? absolute.get() : path;
}

Variables asked_for(const LaunchOptions& options) {
  Variables variables;
  if (options.mixed_precision) variables["ACCELERATE_MIXED_PRECISION"] = *options.mixed_precision;
  if (options.gradient_accumulation_steps) {
    variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] =
        std::to_string(*options.gradient_accumulation_steps);
  }
  if (options.cpu) variables["ACCELERATE_USE_CPU"] = "true";
  if (options.debug) variables["ACCELERATE_DEBUG_MODE"] = "true";
  for (const auto& [name, value] : options.environment) variables[name] = value;
  return variables;
}

}  // namespace

std::string name_of_run() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &local);
  return std::string(text.data()) + "-" + std::to_string(::getpid());
}

LaunchPlan make_plan(const LaunchOptions& options) {
  if (options.command.empty()) {
    throw Error(ErrorDetails{.problem = "there is no program to launch",
                             .hint = "name it after the options: accelerant launch ./train"});
  }
  check_numbers(options);
  LaunchPlan plan;
  place_on_machines(options, plan);
  plan.program = find_program(options.command.front());
  if (!options.secret_file.empty()) plan.secret_file = usable_secret_file(options.secret_file);
  if (options.run_id.find('/') != std::string::npos) {
    throw Error(ErrorDetails{
        .problem = "run_id", .expected = "a name without /", .got = "'" + options.run_id + "'"});
  }
  plan.run_id = options.run_id;
  // All machines must have the same; "none" is torchrun's.
  if (plan.run_id.empty()) plan.run_id = plan.num_machines > 1 ? "none" : name_of_run();
  plan.tee = StreamMask(options.tee, "tee", plan.local_world_size);
  plan.redirect = StreamMask(options.redirect, "redirect", plan.local_world_size);
  if (!options.log_dir.empty() && options.tee.empty() && options.redirect.empty()) {
    plan.tee = StreamMask::all();
  }
  return plan;
}

void make_rank_folders(const LaunchPlan& plan, const std::string& folder_of_attempt) {
  for (int64_t local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    make_writable_folders(folder_of_attempt + "/" + std::to_string(plan.rank_of(local_rank)));
  }
}

std::optional<MasterPort> bind_port_of(const LaunchPlan& plan) {
  if (plan.machine_rank != 0) return std::nullopt;
  return bind_master_port(
      {.host = plan.master_addr, .port = plan.port, .several_machines = plan.num_machines > 1});
}

std::vector<RankStart> plan_ranks(const LaunchOptions& options, const LaunchPlan& plan,
                                  std::optional<MasterPort> port, int64_t restart_count,
                                  const std::string& folder_of_attempt) {
  const Variables asked = asked_for(options);
  std::vector<RankStart> starts;
  for (int64_t local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    RankPlace place = {.local_rank = local_rank,
                       .local_world_size = plan.local_world_size,
                       .machine_rank = plan.machine_rank,
                       .num_machines = plan.num_machines,
                       .master_addr = plan.master_addr,
                       .master_port = port ? port->port : plan.port,
                       .restart_count = restart_count,
                       .max_restarts = options.max_restarts,
                       .run_id = plan.run_id,
                       .secret_file = plan.secret_file,
                       .threads = options.num_cpu_threads_per_process};
    place.error_file = folder_of_attempt + "/" + std::to_string(place.rank()) + "/error.json";
    RankStart start = {.rank = place.rank(),
                       .command = {.path = plan.program, .arguments = options.command},
                       .error_file = place.error_file};
    Variables variables = rank_variables(place);
    if (port && local_rank == 0) {
      variables["ACCELERANT_MASTER_LISTEN_FD"] = std::to_string(port->socket.get());
      start.inherited = std::move(port->socket);
    }
    if (!options.quiet) variables[kErrorIsReportedVariable] = "1";
    for (const auto& [name, value] : asked) variables[name] = value;
    start.command.environment = environment_with(variables);
    starts.push_back(std::move(start));
  }
  return starts;
}

}  // namespace accelerant::launch
