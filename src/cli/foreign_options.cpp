#include "cli/foreign_options.h"

#include <algorithm>

namespace accelerant::cli {
namespace {

struct Advice {
  std::string_view name;
  std::string_view text;
};

constexpr std::string_view kMeetingPoint =
    "not needed: the processes meet at --main-process-ip and --main-process-port";
constexpr std::string_view kDirectly =
    "not needed: the program is started directly, and may be any executable";
constexpr std::string_view kPython =
    "it is for Python modules; to start one, write: accelerant launch [OPTIONS] python3 -m MODULE";
constexpr std::string_view kLogs = "not offered; see --log-dir, --tee and --redirect";
constexpr std::string_view kAffinity =
    "not offered; to bind processes to processors, launch them through numactl or taskset";
constexpr std::string_view kTpu = "not offered: Accelerant runs on CPUs and NVIDIA GPUs";
constexpr std::string_view kCompile = "not offered: torch.compile exists in Python only";
constexpr std::string_view kSharding =
    "not offered: every process holds the whole model (data parallel)";
constexpr std::string_view kFp8 = "not offered: --mixed-precision is no, fp16 or bf16";

constexpr Advice kOptions[] = {
    // torchrun
    {"nproc-per-node",
     "write --num-processes N, which counts the processes of all machines together"},
    {"nnodes", "write --num-machines N"},
    {"node-rank", "write --machine-rank N"},
    {"master-addr", "write --main-process-ip ADDRESS"},
    {"master-port", "write --main-process-port PORT"},
    {"rdzv-endpoint", "write --main-process-ip ADDRESS --main-process-port PORT"},
    {"rdzv-id", "write --run-id NAME"},
    {"rdzv-backend", kMeetingPoint},
    {"rdzv-conf", kMeetingPoint},
    {"local-addr", kMeetingPoint},
    {"local-rank", "not needed: each process finds LOCAL_RANK in its environment"},
    {"role", "not needed: all processes have the same role"},
    {"no-python", kDirectly},
    {"run-path", kDirectly},
    {"start-method", kDirectly},
    {"m", kPython},
    {"module", kPython},
    {"t", "write --tee MASK"},
    {"r", "write --redirect MASK"},
    {"local-ranks-filter",
     "to see local rank 0 only, write --log-dir FOLDER --redirect 3 --tee 0:3"},
    {"duplicate-stdout-filters", kLogs},
    {"duplicate-stderr-filters", kLogs},
    {"event-log-handler", kLogs},
    {"logs-specs", kLogs},
    {"numa-binding", kAffinity},
    {"shutdown-timeout", "write --grace SECONDS"},
    {"signals-to-handle",
     "not needed: SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 are passed on to the processes"},
    {"virtual-local-rank", "not offered; the program may set CUDA_VISIBLE_DEVICES from LOCAL_RANK"},
    // accelerate launch
    {"config-file",
     "not offered yet; write the settings as options, as in --num-processes 4 --mixed-precision "
     "bf16"},
    {"q", "write --quiet"},
    {"multi-gpu", "not needed: by default there is one process for each GPU"},
    {"gpu-ids",
     "set CUDA_VISIBLE_DEVICES instead, as in: CUDA_VISIBLE_DEVICES=0,1 accelerant "
     "launch ./train"},
    {"same-network", kMeetingPoint},
    {"enable-cpu-affinity", kAffinity},
    {"main-training-function", kDirectly},
    {"gradient-clipping", "call accelerator.clip_grad_norm_() in the program"},
    {"mpirun-hostfile", "start the program with mpirun itself: mpirun --hostfile FILE ./train"},
    {"downcast-bf16", kTpu},
    {"env", kTpu},
    {"vm", kTpu},
    {"ipex", "not offered"},
    // accelerate estimate-memory
    {"library-name", "not needed: the kind of a model is in its config.json"},
    {"trust-remote-code", "not needed: files are read and never executed"},
};

// Whole families of options, by how their names begin.
constexpr Advice kFamilies[] = {
    {"dynamo", kCompile},
    {"use-deepspeed", kSharding},
    {"deepspeed", kSharding},
    {"zero", kSharding},
    {"offload-", kSharding},
    {"use-fsdp", kSharding},
    {"fsdp", kSharding},
    {"use-megatron-lm", kSharding},
    {"megatron-lm", kSharding},
    {"use-parallelism-config", kSharding},
    {"parallelism-config", kSharding},
    {"fp8-", kFp8},
    {"tpu", kTpu},
    {"no-tpu", kTpu},
    {"use-xpu", kTpu},
    {"aws-", "not offered: Accelerant does not start jobs in a cloud"},
};

}  // namespace

std::optional<std::string> advice_on_foreign_option(std::string_view name) {
  std::string written(name);
  std::ranges::replace(written, '_', '-');
  for (const Advice& one : kOptions) {
    if (written == one.name) return std::string(one.text);
  }
  for (const Advice& family : kFamilies) {
    if (written.starts_with(family.name)) return std::string(family.text);
  }
  return std::nullopt;
}

}  // namespace accelerant::cli
