"""A rank of the Python side of training_parity_test.py. It reads documents, one per line, trains as they say together
with the other ranks, and answers each with a line."""

import contextlib
import json
import sys
import warnings

import torch
from accelerate import PartialState
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from training_runs import load, result_of, step_with_torch, train_with_accelerate


def send_in_bf16(state, bucket):
    """torch refuses its own hook on Gloo by name, although it works there."""
    return bf16_compress_hook(state, bucket)


def train_with_torch(document: dict) -> dict:
    """Trains with torch alone, for what Accelerate does not do on a CPU (fp16, a hook for bf16) or hides (the options
    of a join). Ranks take whole batches in turn. The number of batches must be a multiple of the number of ranks,
    unless uneven inputs are joined."""
    state = PartialState(cpu=True)
    network, optimizer, loader, schedule = load(document)
    model = DistributedDataParallel(network)
    if document.get("comm_hook") == "bf16":
        model.register_comm_hook(None, send_in_bf16)
    precision = document.get("precision", "no")
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16", init_scale=document.get("init_scale", 65536.0),
                                  growth_interval=document.get("growth_interval", 2000))
    losses, rates, skipped = [], [], []
    join = document.get("join")
    most = None if join is None else join["batches"][state.process_index]
    for _ in range(document["epochs"]):
        with contextlib.nullcontext() if join is None else model.join(
            divide_by_initial_world_size=join["divide_by_initial_world_size"]
        ):
            for x, y in list(loader)[state.process_index :: state.num_processes][:most]:
                with torch.autocast("cpu", dtype=torch.float16, enabled=precision == "fp16"):
                    output = model(x)
                loss = torch.nn.functional.cross_entropy(output.float(), y)
                losses.append(loss.item())
                scaler.scale(loss).backward()
                rates.append(schedule.get_last_lr()[0])
                skipped.append(step_with_torch(document, network, optimizer, schedule, scaler))
    return result_of(network, losses, rates, skipped, scaler.get_scale())


def main():
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    for line in sys.stdin:
        document = json.loads(line)
        train = train_with_torch if document.get("original") == "torch" else train_with_accelerate
        print(json.dumps(train(document)), flush=True)
    PartialState().destroy_process_group()


if __name__ == "__main__":
    main()
