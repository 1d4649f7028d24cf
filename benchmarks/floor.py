"""Measures the best this machine can do: passes over memory and products of large matrices.

It answers requests, one per line, with a line of JSON:

  memory BYTES WORKING_SET SECONDS seconds to read and write BYTES bytes in total, in place, over a
                                   working set of WORKING_SET bytes; a copy would also read what it
                                   overwrites
  matmul PRECISION SECONDS         operations per second of a large product (fp32, tf32, bf16, fp16)
  flops TASK                       operations in the products and convolutions of a step, forward
                                   and backward; for causal attention, only the half that is needed
"""

import json
import sys

import torch
from stopwatch import seconds_per_step
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training_tasks import parameter_count, task_named

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPEATS = 10


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def repeated(work):
    """Repeats the work as one step, in a CUDA graph if there is a GPU, so that the calls cost
    nothing."""
    def several():
        for _ in range(REPEATS):
            work()

    if not CUDA:
        return several
    several()
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        several()
    return graph.replay


def memory(total, working_set, seconds):
    total, working_set = int(total), int(working_set)
    values = torch.ones(max(working_set // 4, 1), device=DEVICE)
    moved = 8 * values.numel() * REPEATS
    measured = seconds_per_step(float(seconds), repeated(lambda: values.mul_(1.0)), synchronize)
    return {"seconds": measured * total / moved}


def matmul(precision, seconds):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    size = 8192 if CUDA else 1536
    left, right = (torch.randn(size, size, device=DEVICE).to(TYPES[precision]) for _ in range(2))
    target = torch.empty_like(left)
    work = repeated(lambda: torch.mm(left, right, out=target))
    return {"flops": 2 * size**3 * REPEATS / seconds_per_step(float(seconds), work, synchronize)}


def flops(task):
    with torch.device("meta"):
        made = task_named(task, CUDA)
        network = made.make_network()
        data, target = made.make_data(1)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            made.loss(network(data), target).backward()
    attention = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    return {"flops": counter.get_total_flops() - attention / 2, "parameters": parameter_count(network)}


def main():
    for request in sys.stdin:
        what, *words = request.split()
        print(json.dumps({"memory": memory, "matmul": matmul, "flops": flops}[what](*words)), flush=True)


if __name__ == "__main__":
    main()
