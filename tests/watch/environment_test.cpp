#include "accelerant/watch/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/expect_error.h"

namespace {

using accelerant::dist::DistributedType;
using accelerant::dist::Environment;
using accelerant::dist::Launcher;

using Variables = std::map<std::string, std::string>;

Environment detect(const Variables& variables) {
  return Environment::detect([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

// `variables` with some changes. An empty value unsets a variable.
Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

std::string refusal_of(const Variables& variables) {
  return whole_error_of([&] { detect(variables); });
}

// Process 5 of 8, the second of four on the second of two machines.
const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "host0"},
                            {"MASTER_PORT", "1234"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_RUN_ID", "run-7"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_RANK", "1"},
                            {"PMIX_NAMESPACE", "prterun-host-17@1"}};
// Process 5 of 7 on three nodes.
const Variables srun = {{"SLURM_PROCID", "5"},
                        {"SLURM_NTASKS", "7"},
                        {"SLURM_LOCALID", "2"},
                        {"SLURM_NODEID", "1"},
                        {"SLURM_NNODES", "3"},
                        {"SLURM_TASKS_PER_NODE", "3(x2),1"},
                        {"SLURM_JOB_ID", "991"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_JOB_NODELIST", "big[00-09]"},
                        {"SLURM_STEP_NODELIST", "big[03-05]"}};

TEST(EnvironmentTest, WithoutVariablesItIsOneProcess) {
  const auto environment = detect({});
  EXPECT_EQ(environment.num_processes, 1);
  EXPECT_EQ(environment.distributed_type, DistributedType::no);
  EXPECT_EQ(environment.launcher, Launcher::none);
  EXPECT_TRUE(environment.is_main_process());
  EXPECT_TRUE(environment.is_last_process());
  EXPECT_TRUE(environment.on_one_machine());
}

TEST(EnvironmentTest, ReadsAllThatTorchrunSets) {
  const auto environment = detect(torchrun);
  EXPECT_EQ(environment.launcher, Launcher::torch);
  EXPECT_EQ(environment.distributed_type, DistributedType::multi_cpu);
  EXPECT_EQ(environment.process_index, 5);
  EXPECT_EQ(environment.num_processes, 8);
  EXPECT_EQ(environment.local_process_index, 1);
  EXPECT_EQ(environment.local_num_processes, 4);
  EXPECT_EQ(environment.machine_index, 1);
  EXPECT_EQ(environment.num_machines, 2);
  EXPECT_EQ(environment.master_address, "host0");
  EXPECT_EQ(environment.master_port, 1234);
  EXPECT_TRUE(environment.uses_agent_store);
  EXPECT_EQ(environment.restart_count, 2);
  EXPECT_EQ(environment.run_id, "run-7");
  EXPECT_FALSE(environment.listen_fd);
}

TEST(EnvironmentTest, TorchrunWithOneProcessIsOneProcess) {
  const auto environment = detect({{"RANK", "0"},
                                   {"WORLD_SIZE", "1"},
                                   {"LOCAL_RANK", "0"},
                                   {"LOCAL_WORLD_SIZE", "1"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", "29400"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(environment.distributed_type, DistributedType::no);
  EXPECT_FALSE(environment.use_distributed());
  EXPECT_EQ(environment.launcher, Launcher::torch);
}

TEST(EnvironmentTest, OnlyProcess0TakesTheSocketOfTheLauncher) {
  const Variables both = {
      {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"ACCELERANT_MASTER_LISTEN_FD", "7"}};
  EXPECT_EQ(detect(with(both, {{"RANK", "0"}})).listen_fd, 7);
  EXPECT_FALSE(detect(with(both, {{"RANK", "1"}})).listen_fd);
}

TEST(EnvironmentTest, TheSecretOfTheRunIsInAFile) {
  const Variables torch = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
  EXPECT_EQ(detect(torch).secret_file, "");
  EXPECT_EQ(detect(with(torch, {{"ACCELERANT_SECRET_FILE", "/run/secret"}})).secret_file,
            "/run/secret");
  EXPECT_EQ(detect(with(torch, {{"ACCELERANT_SECRET_FILE", ""}})).secret_file, "");
}

TEST(EnvironmentTest, TheAgentStoreMayBeNamedByANumber) {
  EXPECT_TRUE(detect(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "1"}})).uses_agent_store);
  EXPECT_FALSE(
      detect(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).uses_agent_store);
  EXPECT_FALSE(detect(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", ""}})).uses_agent_store);
}

TEST(EnvironmentTest, ReadsOpenMpi) {
  const auto environment = detect(open_mpi);
  EXPECT_EQ(environment.launcher, Launcher::open_mpi);
  EXPECT_EQ(environment.process_index, 1);
  EXPECT_EQ(environment.num_processes, 2);
  EXPECT_EQ(environment.local_process_index, 1);
  EXPECT_EQ(environment.local_num_processes, 2);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
}

TEST(EnvironmentTest, ReadsMpich) {
  const auto environment = detect({{"PMI_RANK", "3"},
                                   {"PMI_SIZE", "4"},
                                   {"MPI_LOCALRANKID", "1"},
                                   {"MPI_LOCALNRANKS", "2"},
                                   {"MASTER_ADDR", "host0"}});
  EXPECT_EQ(environment.launcher, Launcher::mpich);
  EXPECT_EQ(environment.process_index, 3);
  EXPECT_EQ(environment.local_process_index, 1);
  EXPECT_EQ(environment.machine_index, 1);
  EXPECT_EQ(environment.num_machines, 2);
  EXPECT_EQ(environment.master_address, "host0");
}

TEST(EnvironmentTest, ReadsMvapich) {
  const auto environment = detect({{"MV2_COMM_WORLD_RANK", "0"},
                                   {"MV2_COMM_WORLD_SIZE", "2"},
                                   {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                                   {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(environment.launcher, Launcher::mvapich);
  EXPECT_EQ(environment.num_processes, 2);
  EXPECT_EQ(environment.master_port, 29500);  // MVAPICH names no job
}

TEST(EnvironmentTest, PmixTakesTheSizeFromTheUserOrTheStep) {
  const auto by_user = detect(
      {{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(by_user.launcher, Launcher::pmix);
  EXPECT_EQ(by_user.process_index, 1);
  EXPECT_EQ(by_user.num_processes, 2);

  const auto by_step = detect(with(srun, {{"PMIX_RANK", "5"}}));
  EXPECT_EQ(by_step.launcher, Launcher::pmix);
  EXPECT_EQ(by_step.process_index, 5);
  EXPECT_EQ(by_step.num_processes, 7);
  EXPECT_EQ(by_step.local_process_index, 2);
  EXPECT_EQ(by_step.master_address, "big03");

  const auto text = refusal_of({{"PMIX_RANK", "1"}});
  EXPECT_TRUE(contains(text, "PMIX_RANK=1 without WORLD_SIZE"));
}

TEST(EnvironmentTest, ReadsAStepOfSlurm) {
  const auto environment = detect(srun);
  EXPECT_EQ(environment.launcher, Launcher::slurm);
  EXPECT_EQ(environment.process_index, 5);
  EXPECT_EQ(environment.num_processes, 7);
  EXPECT_EQ(environment.local_process_index, 2);
  EXPECT_EQ(environment.local_num_processes, 3);
  EXPECT_EQ(environment.machine_index, 1);
  EXPECT_EQ(environment.num_machines, 3);
  EXPECT_EQ(environment.master_address, "big03");
  EXPECT_GE(environment.master_port, 20000);
  EXPECT_LE(environment.master_port, 29999);
}

TEST(EnvironmentTest, ListsOfTheJobAreNotThoseOfTheStep) {
  // A step of two tasks on one node, in a job of three nodes.
  const auto environment = detect(with(srun, {{"SLURM_PROCID", "1"},
                                              {"SLURM_LOCALID", "1"},
                                              {"SLURM_NODEID", "0"},
                                              {"SLURM_STEP_NUM_TASKS", "2"},
                                              {"SLURM_STEP_NUM_NODES", "1"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "2"}}));
  EXPECT_EQ(environment.num_processes, 2);
  EXPECT_EQ(environment.local_num_processes, 2);
  EXPECT_EQ(environment.num_machines, 1);
  EXPECT_EQ(environment.master_address, "127.0.0.1");

  const auto by_each = detect(with(srun, {{"SLURM_TASKS_PER_NODE", "4(x10)"},
                                          {"SLURM_NTASKS", "6"},
                                          {"SLURM_LOCALID", "1"},
                                          {"SLURM_NTASKS_PER_NODE", "2"}}));
  EXPECT_EQ(by_each.local_num_processes, 2);
}

TEST(EnvironmentTest, SlurmCountsOnlyInsideAStepOfSeveralTasks) {
  EXPECT_EQ(detect(with(srun, {{"SLURM_STEP_ID", ""}})).num_processes, 1);
  EXPECT_EQ(detect(with(srun, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})).num_processes, 1);
}

TEST(EnvironmentTest, JobsHavePortsOfTheirOwn) {
  const int port = detect(srun).master_port;
  EXPECT_EQ(detect(with(srun, {{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "0"}})).master_port, port);
  EXPECT_NE(detect(with(srun, {{"SLURM_STEP_ID", "1"}})).master_port, port);
  EXPECT_NE(detect(with(srun, {{"SLURM_JOB_ID", "992"}})).master_port, port);
  EXPECT_EQ(detect(with(srun, {{"MASTER_PORT", "4000"}})).master_port, 4000);
  EXPECT_NE(detect(open_mpi).master_port,
            detect(with(open_mpi, {{"PMIX_NAMESPACE", "prterun-host-18@1"}})).master_port);
  EXPECT_NE(detect(with(open_mpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", "5"}}))
                .master_port,
            detect(with(open_mpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", "6"}}))
                .master_port);
}

// --- Missing variables ---------------------------------------------------------------------------

TEST(EnvironmentTest, HalfOfASetIsAnError) {
  EXPECT_TRUE(contains(refusal_of({{"RANK", "0"}}), "RANK=0 without WORLD_SIZE"));
  EXPECT_TRUE(contains(refusal_of({{"WORLD_SIZE", "2"}}), "WORLD_SIZE=2 without RANK"));
  EXPECT_TRUE(contains(refusal_of({{"OMPI_COMM_WORLD_RANK", "0"}}),
                       "OMPI_COMM_WORLD_RANK=0 without OMPI_COMM_WORLD_SIZE"));
  EXPECT_TRUE(contains(refusal_of({{"PMI_SIZE", "3"}}), "PMI_SIZE=3 without PMI_RANK"));
  EXPECT_EQ(detect({{"WORLD_SIZE", "1"}}).num_processes, 1);
}

TEST(EnvironmentTest, TheLocalNumbersFollowOnOneMachine) {
  const auto by_address =
      detect({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "localhost"}});
  EXPECT_EQ(by_address.local_process_index, 1);
  EXPECT_EQ(by_address.local_num_processes, 3);
  const auto by_size = detect({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}});
  EXPECT_EQ(by_size.local_process_index, 1);
  EXPECT_EQ(by_size.master_address, "127.0.0.1");

  const auto text = refusal_of({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "host0"}});
  EXPECT_TRUE(contains(text, "LOCAL_RANK"));
  const auto mpich = refusal_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MASTER_ADDR", "host0"}});
  EXPECT_TRUE(contains(mpich, "MPI_LOCALRANKID"));
}

TEST(EnvironmentTest, SeveralMachinesNeedAnAddress) {
  const Variables two_machines =
      with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}});
  const auto text = refusal_of(two_machines);
  EXPECT_TRUE(contains(text, "MASTER_ADDR"));
  EXPECT_TRUE(contains(text, "mpirun -x MASTER_ADDR="));
  // The address comes from the allocation: the step belongs to mpirun's helpers, which run only on
  // the other machines.
  const auto in_allocation = detect(with(two_machines, {{"SLURM_STEP_ID", "0"},
                                                        {"SLURM_PROCID", "0"},
                                                        {"SLURM_NTASKS", "1"},
                                                        {"SLURM_STEP_NODELIST", "big2"},
                                                        {"SLURM_JOB_NODELIST", "big[1-2]"}}));
  EXPECT_EQ(in_allocation.master_address, "big1");
}

// --- Impossible values ---------------------------------------------------------------------------

TEST(EnvironmentTest, NumbersAreReadStrictly) {
  for (const char* bad : {"5x", " 5", "-1", "+5", "0x5", "5.0", "99999999999999999999"})
    EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"RANK", bad}})), std::string("RANK=") + bad));
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"WORLD_SIZE", "0"}})), "WORLD_SIZE=0"));
  EXPECT_TRUE(
      contains(refusal_of(with(torchrun, {{"MASTER_PORT", "65536"}})), "MASTER_PORT=65536"));
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "no"}})),
                       "TORCHELASTIC_RESTART_COUNT=no"));
  EXPECT_TRUE(contains(refusal_of({{"RANK", "0"},
                                   {"WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"ACCELERANT_MASTER_LISTEN_FD", "-1"}}),
                       "ACCELERANT_MASTER_LISTEN_FD=-1"));
  EXPECT_TRUE(contains(refusal_of(with(srun, {{"SLURM_TASKS_PER_NODE", "3(x2"}})), "3(x2"));
}

TEST(EnvironmentTest, NumbersOutOfRangeAreAnError) {
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"RANK", "8"}})),
                       "RANK is out of range: expected 0 to 7, as WORLD_SIZE=8, got RANK=8"));
  // Even if other variables are missing too.
  EXPECT_TRUE(contains(refusal_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
                       "expected 0 to 1, as WORLD_SIZE=2, got RANK=2"));
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"LOCAL_RANK", "4"}})),
                       "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4"));
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
                       "LOCAL_WORLD_SIZE=9 and WORLD_SIZE=8"));
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"GROUP_RANK", "2"}})), "GROUP_RANK"));
  EXPECT_TRUE(contains(refusal_of(with(torchrun, {{"GROUP_WORLD_SIZE", "1"}, {"GROUP_RANK", "0"}})),
                       "LOCAL_WORLD_SIZE=4 and WORLD_SIZE=8"));
}

TEST(EnvironmentTest, ContradictionsBetweenLaunchersAreAnError) {
  const Variables by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
  EXPECT_TRUE(contains(refusal_of(with(open_mpi, with(by_hand, {{"WORLD_SIZE", "4"}}))),
                       "WORLD_SIZE=4 and OMPI_COMM_WORLD_SIZE=2"));
  EXPECT_TRUE(contains(refusal_of(with(open_mpi, by_hand)), "RANK=0 and OMPI_COMM_WORLD_RANK=1"));
  EXPECT_TRUE(contains(refusal_of(with(srun, by_hand)), "WORLD_SIZE=2 and SLURM_NTASKS=7"));
  EXPECT_TRUE(contains(refusal_of(with(open_mpi, {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}})),
                       "OMPI_COMM_WORLD_SIZE=2 and PMI_SIZE=3"));
  EXPECT_TRUE(contains(refusal_of(with(open_mpi, {{"WORLD_SIZE", "3"}})),
                       "WORLD_SIZE=3 and OMPI_COMM_WORLD_SIZE=2"));
}

TEST(EnvironmentTest, LaunchersThatAgreeComplementEachOther) {
  // A script that passes srun's values on to programs that read only torch's variables.
  const auto environment =
      detect(with(srun, {{"RANK", "5"}, {"WORLD_SIZE", "7"}, {"MASTER_ADDR", "big03"}}));
  EXPECT_EQ(environment.launcher, Launcher::torch);
  EXPECT_EQ(environment.local_process_index, 2);
  EXPECT_EQ(environment.local_num_processes, 3);
  EXPECT_EQ(environment.machine_index, 1);
}

TEST(EnvironmentTest, ATorchLauncherInsideAnotherWins) {
  for (const Variables& outer : {open_mpi, srun}) {
    const auto environment = detect(with(outer, torchrun));
    EXPECT_EQ(environment.launcher, Launcher::torch);
    EXPECT_EQ(environment.process_index, 5);
    EXPECT_EQ(environment.num_processes, 8);
  }
}

TEST(EnvironmentTest, Pmi2OfSlurmTakesThePlacesFromSlurm) {
  const auto environment = detect(with(srun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}));
  EXPECT_EQ(environment.launcher, Launcher::slurm);
  EXPECT_EQ(environment.process_index, 5);
  EXPECT_EQ(environment.local_process_index, 2);
  EXPECT_EQ(environment.master_address, "big03");
}

TEST(EnvironmentTest, MpirunInsideSlurmWins) {
  const auto environment = detect(with(srun, with(open_mpi, {{"PMIX_RANK", ""}})));
  EXPECT_EQ(environment.launcher, Launcher::open_mpi);
  EXPECT_EQ(environment.num_processes, 2);
}

}  // namespace
