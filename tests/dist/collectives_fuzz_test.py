"""Compares exchanges between processes with accelerate.utils, and gather_for_metrics with Accelerate's Accelerator.

Both sides run in several processes that get the same random documents: accelerant-replay, and this file
started again with "worker" as its argument.
"""

import json
import os
import socket
import subprocess
import sys

import pytest
from replay import Replay, tensor_to_json

DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", 150))
DEADLINE = 300  # seconds, for all processes of a test

TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "int8"]
REDUCTIONS = ["sum", "mean", "max"]


def launcher_variables(rank, processes, port):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- The original ------------------------------------------------------------------------------------


def from_json(data, torch):
    if isinstance(data, list):
        return [from_json(part, torch) for part in data]
    if "dict" in data:
        return {key: from_json(part, torch) for key, part in data["dict"].items()}
    values = torch.tensor(data["values"], dtype=torch.float64)
    return values.view(data["shape"]).to(getattr(torch, data["dtype"]))


def to_json(data):
    if isinstance(data, list):
        return [to_json(part) for part in data]
    if isinstance(data, dict):
        return {"dict": {key: to_json(part) for key, part in data.items()}}
    return {
        "dtype": str(data.dtype).removeprefix("torch."),
        "shape": list(data.shape),
        "values": tensor_to_json(data),
    }


def metrics(call, torch):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=call["split_batches"])
    )
    numbers = list(range(call["length"]))
    loader = accelerator.prepare(torch.utils.data.DataLoader(numbers, batch_size=call["batch_size"]))
    return [tensor_to_json(accelerator.gather_for_metrics(batch)) for batch in loader]


def run_call(call, torch, operations, state):
    if call["op"] == "metrics":
        return metrics(call, torch)
    own = call["inputs"][state.process_index]
    if call["op"] == "gather_object_list":
        return operations.gather_object(own)
    if call["op"] == "broadcast_object_list":
        return operations.broadcast_object_list(own, from_process=call["from"])
    own = from_json(own, torch)
    if call["op"] == "gather":
        return to_json(operations.gather(own))
    if call["op"] == "reduce":
        return to_json(operations.reduce(own, reduction=call["reduction"]))
    if call["op"] == "broadcast":
        return to_json(operations.broadcast(own, from_process=call["from"]))
    return to_json(
        operations.pad_across_processes(
            own, dim=call["dim"], pad_index=call["pad_index"], pad_first=call["pad_first"]
        )
    )


def worker():
    import torch
    from accelerate.state import PartialState
    from accelerate.utils import operations

    state = PartialState(cpu=True)
    for line in sys.stdin:
        print(json.dumps({"data": run_call(json.loads(line), torch, operations, state)}), flush=True)
    state.destroy_process_group()


# --- Random calls ------------------------------------------------------------------------------------


def random_tensor(rng, dtype, shape):
    count = 1
    for size in shape:
        count *= size
    # Multiples of 1/4 up to 8: exact in every floating-point type, and so are their sums.
    integral = dtype.startswith(("int", "uint"))
    low = 0 if dtype == "uint8" else -8
    values = [rng.randint(low, 8) if integral else rng.randint(-32, 32) / 4 for _ in range(count)]
    return {"dtype": dtype, "shape": shape, "values": values}


def random_structure(rng, depth=0):
    """Nested data whose leaves give a type and a shape."""
    kind = rng.choice(["tensor", "tensor", "list", "dict"]) if depth < 3 else "tensor"
    if kind == "list":
        return [random_structure(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == "dict":
        return {"dict": {key: random_structure(rng, depth + 1) for key in "xyz"[: rng.randrange(4)]}}
    return {
        "dtype": rng.choice(TYPES),
        "shape": [rng.randint(1, 4) for _ in range(rng.randrange(4))],
    }


def fill(rng, structure, change_shape=lambda shape: shape, change_type=lambda dtype: dtype):
    if isinstance(structure, list):
        return [fill(rng, part, change_shape, change_type) for part in structure]
    if "dict" in structure:
        parts = structure["dict"].items()
        return {"dict": {key: fill(rng, part, change_shape, change_type) for key, part in parts}}
    return random_tensor(rng, change_type(structure["dtype"]), change_shape(structure["shape"]))


def random_object(rng):
    return rng.choice([rng.randint(-9, 9), rng.random(), "text" * rng.randrange(200), None, {"a": [1, True]}])


def random_call(rng, processes):
    op = rng.choice(["gather", "reduce", "broadcast", "pad", "gather_object_list", "broadcast_object_list"])
    call = {"op": op}
    if op.endswith("object_list"):
        length = rng.randint(1, 3)
        same = op == "broadcast_object_list"  # the original needs lists of equal length, not empty
        lengths = [length if same else rng.randrange(4) for _ in range(processes)]
        call["inputs"] = [[random_object(rng) for _ in range(count)] for count in lengths]
        call["from"] = rng.randrange(processes)
        return call
    structure = random_structure(rng)
    change_shape, change_type = (lambda shape: shape), (lambda dtype: dtype)
    if op == "reduce":
        call["reduction"] = rng.choice(REDUCTIONS)
        if call["reduction"] == "mean":  # the original cannot do that with integers
            change_type = lambda dtype: "float32" if "int" in dtype else dtype
    if op == "broadcast":
        call["from"] = rng.randrange(processes)
    if op == "pad":
        call.update(dim=rng.randint(-3, 3), pad_index=rng.randrange(8), pad_first=rng.random() < 0.5)

        def change_shape(shape):
            dim = call["dim"]
            if not -len(shape) <= dim < len(shape):
                return shape
            return [rng.randint(1, 5) if i == dim % len(shape) else size for i, size in enumerate(shape)]

    call["inputs"] = [fill(rng, structure, change_shape, change_type) for _ in range(processes)]
    return call


# --- The test ----------------------------------------------------------------------------------------


class Ranks:
    """Processes that all get the same document and each answer with a result."""

    def __init__(self, start, processes):
        port = free_port()
        self.ranks = [start(launcher_variables(rank, processes, port)) for rank in range(processes)]

    def __call__(self, document):
        for rank in self.ranks:
            rank.stdin.write(json.dumps(document) + "\n")
            rank.stdin.flush()
        lines = [rank.stdout.readline() for rank in self.ranks]
        assert all(lines), f"a process died on {json.dumps(document)}"
        return [json.loads(line) for line in lines]

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            assert rank.wait(timeout=60) == 0

    def kill(self):
        for rank in self.ranks:
            rank.terminate()  # not kill: "timeout" passes this on
            rank.wait(timeout=60)


def start_original(variables):
    return subprocess.Popen(
        ["timeout", str(DEADLINE), sys.executable, __file__, "worker"],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def start_replay(variables):
    return Replay("collectives", variables, deadline=DEADLINE).process


@pytest.mark.parametrize("processes", [2, 3])
def test_against_accelerate(rng, processes):
    ours, theirs = Ranks(start_replay, processes), Ranks(start_original, processes)
    try:
        for _ in range(DOCUMENTS):
            call = random_call(rng, processes)
            assert ours(call) == theirs(call), json.dumps(call)
        for _ in range(DOCUMENTS // 10):
            batch_size = rng.randint(1, 4)
            split = rng.random() < 0.5
            call = {
                "op": "metrics",
                "length": rng.randint(processes, 30),
                "batch_size": batch_size * processes if split else batch_size,
                "split_batches": split,
            }
            assert ours(call) == theirs(call), json.dumps(call)
        ours.close()
        theirs.close()
    finally:
        ours.kill()
        theirs.kill()


if __name__ == "__main__" and sys.argv[1:] == ["worker"]:
    worker()
