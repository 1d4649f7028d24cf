#include "accelerant/watch/environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "accelerant/core/error.h"
#include "core/launch_contract.h"
#include "core/stable_hash.h"
#include "watch/node_list.h"

namespace accelerant::dist {
namespace {

// The variables, read strictly.
class Variables {
 public:
  explicit Variables(const Environment::Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    auto value = lookup_(name);
    return value && !value->empty() ? value : std::nullopt;
  }

  bool has(const char* name) const { return text(name).has_value(); }

  // Digits only; anything else, or a number outside the limits, is an Error.
  std::optional<int64_t> number(const char* name, int64_t lowest = 0,
                                int64_t highest = std::numeric_limits<int64_t>::max()) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int64_t number = 0;
    const char* const end = value->data() + value->size();
    const auto read = std::from_chars(value->data(), end, number);
    if (read.ec == std::errc() && read.ptr == end && number >= lowest && number <= highest)
      return number;
    std::string expected = "a whole number, at least " + std::to_string(lowest);
    if (highest != std::numeric_limits<int64_t>::max())
      expected += " and at most " + std::to_string(highest);
    throw Error(ErrorDetails{.problem = std::string("The variable ") + name + " is not valid",
                             .expected = expected,
                             .got = std::string(name) + "=" + *value});
  }

  std::optional<int64_t> first_number(const std::vector<const char*>& names) const {
    for (const char* name : names)
      if (has(name)) return number(name);
    return std::nullopt;
  }

 private:
  const Environment::Lookup& lookup_;
};

// The names that one launcher uses; null if it has no such variable.
struct Names {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names torch_names{Launcher::torch, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                            "LOCAL_WORLD_SIZE"};
constexpr Names mpi_names[] = {
    {Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::mpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::mvapich, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
};

// What one launcher's variables say.
struct Told {
  Names names{};
  int64_t rank = 0;
  int64_t size = 1;
  std::optional<int64_t> local_rank = {};
  std::optional<int64_t> local_size = {};
  std::optional<int64_t> machine = {};
  std::optional<int64_t> machines = {};
};

std::string shown(const char* name, int64_t value) {
  return std::string(name) + "=" + std::to_string(value);
}

// RANK and WORLD_SIZE, or another launcher's equivalents, with the local ones. Nothing if one of the
// two is missing.
std::optional<Told> read_set(const Variables& variables, const Names& names) {
  if (!variables.has(names.rank) || !variables.has(names.size)) return std::nullopt;
  return Told{.names = names,
              .rank = *variables.number(names.rank),
              .size = *variables.number(names.size, 1),
              .local_rank = variables.number(names.local_rank),
              .local_size = variables.number(names.local_size, 1)};
}

std::optional<Told> read_torch(const Variables& variables) {
  auto told = read_set(variables, torch_names);
  if (told) {
    told->machine = variables.number("GROUP_RANK");
    told->machines = variables.number("GROUP_WORLD_SIZE", 1);
  }
  return told;
}

// Outside a job step (in the shell of salloc or sbatch) the variables describe the allocation, not
// this process. A step of one task is a single process.
std::optional<Told> read_slurm(const Variables& variables) {
  if (!variables.has("SLURM_STEP_ID") || !variables.has("SLURM_PROCID")) return std::nullopt;
  const bool of_step = variables.has("SLURM_STEP_NUM_TASKS");
  const char* const size_name = of_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const auto size = variables.number(size_name, 1);
  if (!size || *size == 1) return std::nullopt;

  Told told{.names = {Launcher::slurm, "SLURM_PROCID", size_name, "SLURM_LOCALID",
                      "SLURM_STEP_TASKS_PER_NODE"},
            .rank = *variables.number("SLURM_PROCID"),
            .size = *size,
            .local_rank = variables.number("SLURM_LOCALID"),
            .machine = variables.number("SLURM_NODEID"),
            .machines = variables.first_number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"})};
  // Each of these may describe the job instead of the step. The sum tells which.
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto list = variables.text(name);
    if (!list) continue;
    const auto counts = expand_task_counts(*list);
    if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) != told.size) continue;
    const auto machine = counts.size() == 1 ? 0 : told.machine.value_or(-1);
    if (machine < 0 || machine >= static_cast<int64_t>(counts.size())) continue;
    told.local_size = counts[static_cast<size_t>(machine)];
    told.names.local_size = name;
    told.machines = static_cast<int64_t>(counts.size());
    return told;
  }
  const auto each = variables.number("SLURM_NTASKS_PER_NODE", 1);
  if (each && told.machines && *each * *told.machines == told.size) {
    told.local_size = each;
    told.names.local_size = "SLURM_NTASKS_PER_NODE";
  }
  return told;
}

// PMIx tells only the rank. The size comes from the step that srun created, or from the user.
std::optional<Told> read_pmix(const Variables& variables) {
  const auto rank = variables.number("PMIX_RANK");
  if (!rank) return std::nullopt;
  auto told = read_slurm(variables);
  if (!told) {
    const auto size = variables.number("WORLD_SIZE", 1);
    if (!size) return std::nullopt;
    told = Told{.names = torch_names,
                .size = *size,
                .local_rank = variables.number("LOCAL_RANK"),
                .local_size = variables.number("LOCAL_WORLD_SIZE", 1)};
  }
  told->names.launcher = Launcher::pmix;
  told->names.rank = "PMIX_RANK";
  told->rank = *rank;
  return told;
}

// One variable of a pair is useless without the other, if nothing else tells the rank.
void refuse_incomplete(const Variables& variables, const char* rank, const char* size) {
  if (variables.has(rank) == variables.has(size)) return;
  // One process can only be rank 0.
  if (variables.has(size) && variables.number(size, 1) == 1) return;
  const char* const present = variables.has(rank) ? rank : size;
  const char* const missing = variables.has(rank) ? size : rank;
  throw Error(ErrorDetails{
      .problem = "The launcher's variables are incomplete",
      .expected = std::string(rank) + " and " + size,
      .got = std::string(present) + "=" + *variables.text(present) + " without " + missing,
      .hint = "start the program with accelerant launch, torchrun --no-python, mpirun or srun, or "
              "unset the variable to run one process"});
}

[[noreturn]] void refuse_contradiction(const std::string& one, const std::string& other) {
  throw Error(ErrorDetails{.problem = "The launcher's variables contradict each other",
                           .got = one + " and " + other,
                           .hint = "unset the one that does not belong to this run"});
}

void compare(const char* one_name, int64_t one, const char* other_name, int64_t other) {
  if (one != other) refuse_contradiction(shown(one_name, one), shown(other_name, other));
}

// Which variables count.
std::optional<Told> choose(const Variables& variables) {
  const auto slurm = read_slurm(variables);
  std::vector<Told> others;  // in the order in which they count
  for (const Names& names : mpi_names)
    if (auto told = read_set(variables, names)) others.push_back(std::move(*told));
  // Any mpirun may start its helpers with srun, whose variables the processes inherit: Slurm's
  // variables mean nothing then.
  if (others.empty()) {
    if (auto pmix = read_pmix(variables))
      others.push_back(std::move(*pmix));
    else if (slurm)
      others.push_back(*slurm);
  }
  // Under srun itself, with its PMI-2, MPI's variables do not tell the local ranks; Slurm's do.
  if (!others.empty() && slurm && !others[0].local_rank && others[0].rank == slurm->rank &&
      others[0].size == slurm->size) {
    others[0] = *slurm;
  }
  for (size_t i = 1; i < others.size(); ++i) {
    compare(others[0].names.size, others[0].size, others[i].names.size, others[i].size);
    compare(others[0].names.rank, others[0].rank, others[i].names.rank, others[i].rank);
  }

  const auto torch = read_torch(variables);
  if (torch && others.empty()) return torch;
  if (torch) {
    // A torch launcher that was itself started by the other numbers processes of its own.
    if (variables.has("TORCHELASTIC_RUN_ID") && variables.has("LOCAL_RANK")) return torch;
    compare("WORLD_SIZE", torch->size, others[0].names.size, others[0].size);
    compare("RANK", torch->rank, others[0].names.rank, others[0].rank);
    Told both = *torch;
    if (!both.local_rank) both.local_rank = others[0].local_rank;
    if (!both.local_size) both.local_size = others[0].local_size;
    if (!both.machine) both.machine = others[0].machine;
    if (!both.machines) both.machines = others[0].machines;
    return both;
  }
  if (others.empty()) {
    refuse_incomplete(variables, "RANK", "WORLD_SIZE");
    for (const Names& names : mpi_names) refuse_incomplete(variables, names.rank, names.size);
    refuse_incomplete(variables, "PMIX_RANK", "WORLD_SIZE");
    return std::nullopt;
  }
  // A single one of torch's variables next to a complete set must at least agree with it.
  const Told& told = others[0];
  if (const auto size = variables.number("WORLD_SIZE", 1))
    compare("WORLD_SIZE", *size, told.names.size, told.size);
  if (const auto rank = variables.number("RANK"))
    compare("RANK", *rank, told.names.rank, told.rank);
  return told;
}

bool is_this_machine(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

[[noreturn]] void refuse_missing_local(const Told& told, const char* missing) {
  throw Error(ErrorDetails{
      .problem = "The launcher does not say which process of its machine this is",
      .expected = std::string(missing) + " beside " + shown(told.names.rank, told.rank) + " and " +
                  shown(told.names.size, told.size),
      .hint = "set LOCAL_RANK to the number of this process on its machine, counted from 0, and "
              "LOCAL_WORLD_SIZE to how many processes run there"});
}

void check_rank(const Told& told) {
  if (told.rank < told.size) return;
  throw Error(ErrorDetails{
      .problem = std::string(told.names.rank) + " is out of range",
      .expected =
          "0 to " + std::to_string(told.size - 1) + ", as " + shown(told.names.size, told.size),
      .got = shown(told.names.rank, told.rank),
      .hint = "ranks count from 0; start the program with accelerant launch, which sets both"});
}

// The four numbers about this machine, as far as they follow from each other.
void fill_local(Environment& environment, const Told& told,
                const std::optional<std::string>& master) {
  const bool one_machine =
      told.size == 1 || told.machines == 1 || told.local_size == told.size ||
      (!told.local_size && !told.machines && master && is_this_machine(*master));
  if (one_machine) {
    environment.local_process_index = told.local_rank.value_or(told.rank);
    environment.local_num_processes = told.local_size.value_or(told.size);
  } else {
    auto local_size = told.local_size;
    if (!local_size && told.machines && told.size % *told.machines == 0)
      local_size = told.size / *told.machines;
    if (!told.local_rank) refuse_missing_local(told, told.names.local_rank);
    if (!local_size) refuse_missing_local(told, told.names.local_size);
    environment.local_process_index = *told.local_rank;
    environment.local_num_processes = *local_size;
  }

  const auto impossible = [](const char* one, int64_t one_value, const char* other,
                             int64_t other_value) {
    refuse_contradiction(shown(one, one_value), shown(other, other_value));
  };
  const int64_t local_size = environment.local_num_processes;
  if (told.machines == 1 && local_size != told.size)
    impossible(told.names.local_size, local_size, told.names.size, told.size);
  if (local_size > told.size)
    impossible(told.names.local_size, local_size, told.names.size, told.size);
  if (environment.local_process_index >= local_size)
    impossible(told.names.local_rank, environment.local_process_index, told.names.local_size,
               local_size);
  if (told.machine && told.machines && *told.machine >= *told.machines)
    throw Error(ErrorDetails{.problem = "The number of this machine is out of range",
                             .expected = "less than " + std::to_string(*told.machines),
                             .got = std::to_string(*told.machine),
                             .hint = "check GROUP_RANK and GROUP_WORLD_SIZE, or SLURM_NODEID and "
                                     "SLURM_NNODES"});
  if (one_machine) return;  // 0 of 1, the defaults
  environment.machine_index =
      told.machine.value_or((told.rank - environment.local_process_index) / local_size);
  environment.num_machines = told.machines.value_or((told.size + local_size - 1) / local_size);
}

std::string address_of_master(const Environment& environment, const Variables& variables) {
  if (environment.on_one_machine()) return "127.0.0.1";
  // A step may run on a part of the allocation. The step that mpirun starts leaves out the machine
  // that mpirun itself is on, which runs processes too.
  const bool step =
      environment.launcher == Launcher::slurm || environment.launcher == Launcher::pmix;
  auto nodes = step ? variables.text("SLURM_STEP_NODELIST") : std::nullopt;
  if (!nodes) nodes = variables.text("SLURM_JOB_NODELIST");
  if (!nodes) nodes = variables.text("SLURM_NODELIST");
  if (nodes) return expand_node_list(*nodes).front();
  throw Error(ErrorDetails{
      .problem = "The processes on " + std::to_string(environment.num_machines) +
                 " machines do not know where to meet",
      .expected = "MASTER_ADDR, a name or address of the machine of process 0",
      .hint = "set it for all processes, for example mpirun -x MASTER_ADDR=host0 (Open MPI) or "
              "mpirun -genv MASTER_ADDR host0 (MPICH)"});
}

int port_of_master(const Environment& environment, const Variables& variables) {
  constexpr int torch_port = 29500;
  if (environment.launcher == Launcher::torch || environment.launcher == Launcher::none)
    return torch_port;
  std::string job;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (job.empty()) job = variables.text(name).value_or("");
  if (job.empty() && variables.has("SLURM_JOB_ID"))
    job = *variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID").value_or("");
  if (job.empty()) return torch_port;
  return static_cast<int>(20000 + stable_hash(job) % 10000);
}

}  // namespace

Environment Environment::detect() {
  return detect([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

Environment Environment::detect(const Lookup& lookup) {
  const Variables variables(lookup);
  Environment environment;
  const auto told = choose(variables);
  if (!told) return environment;
  check_rank(*told);

  const auto master = variables.text("MASTER_ADDR");
  environment.launcher = told->names.launcher;
  environment.process_index = told->rank;
  environment.num_processes = told->size;
  fill_local(environment, *told, master);
  if (told->size > 1) environment.distributed_type = DistributedType::multi_cpu;

  environment.master_address = master ? *master : address_of_master(environment, variables);
  const auto port = variables.number("MASTER_PORT", 1, 65535);
  environment.master_port = port ? static_cast<int>(*port) : port_of_master(environment, variables);
  if (environment.launcher == Launcher::torch) {
    const auto agent = variables.text("TORCHELASTIC_USE_AGENT_STORE");
    environment.uses_agent_store = agent == "True" || agent == "1";
    environment.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
    environment.run_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
  }
  environment.secret_file = variables.text(kSecretFileVariable).value_or("");
  if (environment.is_main_process()) {
    const auto descriptor =
        variables.number("ACCELERANT_MASTER_LISTEN_FD", 0, std::numeric_limits<int>::max());
    if (descriptor) environment.listen_fd = static_cast<int>(*descriptor);
  }
  return environment;
}

}  // namespace accelerant::dist
