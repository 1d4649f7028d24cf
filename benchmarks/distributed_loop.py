"""What distributed_loop.cpp measures, in Python: Accelerate, which wraps the model in torch's
DistributedDataParallel. It takes the same arguments and requests."""

import json
import statistics
import sys
import time

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState
from torch.autograd.profiler import profile
from torch.utils.data import DataLoader, TensorDataset
from training_tasks import MlpTask, parameter_count, task_named

MAX_NORM = 1.0
SCHEDULE_STEPS = 1_000_000
WARM_UP_STEPS = 4


def answer(request):
    name, mode, bucket, steps = request.split()
    torch.manual_seed(0)
    AcceleratorState._reset_state(reset_partial_state=True)  # keeps the process group
    handlers = [DistributedDataParallelKwargs(bucket_cap_mb=float(bucket))] if float(bucket) > 0 else []
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    task = task_named(name, cuda=False)
    network = task.make_network()
    optimizer = task.make_optimizer(network.parameters())
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS)
    model, optimizer, scheduler = accelerator.prepare(network, optimizer, cosine)
    data, target = task.make_data(1)

    def step():
        with accelerator.accumulate(model):
            if mode == "sync":
                accelerator.backward(task.loss(model(data), target))
            else:
                with accelerator.no_sync(model):
                    accelerator.backward(task.loss(model(data), target))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    for _ in range(WARM_UP_STEPS - 1):
        step()
    with profile(use_kineto=False) as seen:
        step()
    exchanges = sum(event.name.startswith("gloo:") for event in seen.function_events)
    laps = []
    for _ in range(int(steps)):
        start = time.perf_counter()
        step()
        laps.append(time.perf_counter() - start)
    return {"seconds": statistics.median(laps), "parameters": parameter_count(network), "exchanges": exchanges}


def first_step():
    task = MlpTask(64)
    accelerator = Accelerator(cpu=True)
    network = task.make_network()
    model, optimizer = accelerator.prepare(network, task.make_optimizer(network.parameters()))
    data, target = task.make_data(1)
    accelerator.backward(task.loss(model(data), target))
    optimizer.step()
    print("stepped", flush=True)
    accelerator.end_training()


def loader_cost(ranks, seconds):
    dataset = TensorDataset(torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8),
                            torch.randint(0, 10, (60_000,)))
    Accelerator(cpu=True)  # Accelerate's loaders need its state
    loader = prepare_data_loader(DataLoader(dataset, 64, shuffle=True), num_processes=ranks, process_index=ranks - 1)
    starts, steps = [], []
    begin = time.perf_counter()
    while len(steps) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        count = 0
        for _batch in loader:
            if count == 0:
                starts.append(time.perf_counter() - start)
                start = time.perf_counter()
            count += 1
        steps.append((time.perf_counter() - start) / (count - 1))
    return {"start": statistics.median(starts), "step": statistics.median(steps)}


def main():
    if sys.argv[1:] == ["first-step"]:
        first_step()
    elif sys.argv[1:2] == ["loader"]:
        print(json.dumps(loader_cost(int(sys.argv[2]), float(sys.argv[3]))))
    else:
        for request in sys.stdin:
            print(json.dumps(answer(request)), flush=True)


if __name__ == "__main__":
    main()
