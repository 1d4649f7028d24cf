"""Compares training on several processes with torch and Accelerate: comm hooks and local SGD.

Both sides run the same cases on the same number of processes, connected by Gloo, with the same random weights and
data."""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile

import pytest
import torch

from replay import seed_from_environment

RANKS = 2
DEADLINE = 300


def power_sgd(**options):
    return {"hook": "power_sgd", "wrapper": "no", "start_powerSGD_iter": 2, **options}


def make_cases(seed: int) -> dict:
    """Returns the cases by name."""
    numbers = random.Random(seed)

    def case(hook=None, local_sgd=None, bucket_cap_mb=None, steps=7):
        return {
            "widths": [numbers.randint(20, 30), numbers.randint(16, 24), 16, 16, numbers.randint(1, 4)],
            "seed": numbers.randrange(2**31),
            "steps": steps,
            "bucket_cap_mb": bucket_cap_mb,
            "lr": 0.1,
            "hook": hook,
            "local_sgd": local_sgd,
        }

    cases = {"plain": case()}
    for name in ("fp16", "bf16"):
        cases[name] = case({"hook": name, "wrapper": "no"})
        cases[f"{name}, small buckets"] = case({"hook": name, "wrapper": "no"}, bucket_cap_mb=0.002)
        cases[f"power_sgd in {name}"] = case(power_sgd(matrix_approximation_rank=2) | {"wrapper": name})
    cases["fp16 in bf16"] = case({"hook": "fp16", "wrapper": "bf16"})
    cases["power_sgd"] = case(power_sgd())
    cases["power_sgd, small buckets"] = case(power_sgd(), bucket_cap_mb=0.002)
    cases["power_sgd, rank 4"] = case(power_sgd(matrix_approximation_rank=4, min_compression_rate=1))
    cases["power_sgd, stacked"] = case(power_sgd(batch_tensors_with_same_shape=True, min_compression_rate=1.5))
    cases["power_sgd, no memory"] = case(
        power_sgd(use_error_feedback=False, warm_start=False, start_powerSGD_iter=0, random_seed=numbers.randrange(2**32))
    )
    cases["power_sgd, cold start"] = case(power_sgd(warm_start=False))
    cases["power_sgd, epsilon"] = case(power_sgd(orthogonalization_epsilon=1e-3))
    cases["batched_power_sgd"] = case(power_sgd() | {"hook": "batched_power_sgd"})
    cases["batched_power_sgd, small buckets"] = case(
        power_sgd(matrix_approximation_rank=3) | {"hook": "batched_power_sgd"}, bucket_cap_mb=0.002
    )
    cases["local_sgd"] = case(local_sgd=3)
    cases["local_sgd, ending with an average"] = case(local_sgd=2, steps=6)
    return cases


# --- The original, in processes of its own --------------------------------------------------------


def register_hook(model, options: dict):
    from accelerate import DDPCommunicationHookType, DistributedDataParallelKwargs
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = {name: value for name, value in options.items() if name not in ("hook", "wrapper")}
    original = model.register_comm_hook

    def register_waiting(state, hook):
        # On Gloo the callbacks of several buckets may start their exchanges in any order, so wait for each. The wrapper
        # also hides the names of the bf16 hooks: torch refuses them on Gloo by name, although Gloo can reduce bf16.
        def waits(state, bucket):
            future = hook(state, bucket)
            future.wait()
            return future

        original(state=state, hook=waits)

    # _orthogonalize takes batches of matrices; its assertion fails for the batched hook's single ones.
    if powerSGD_hook._orthogonalize.__name__ == "_orthogonalize":
        takes_batches = powerSGD_hook._orthogonalize

        def takes_both(matrices, epsilon=0):
            takes_batches(matrices.unsqueeze(0) if matrices.dim() == 2 else matrices, epsilon)

        powerSGD_hook._orthogonalize = takes_both
    model.register_comm_hook = register_waiting
    DistributedDataParallelKwargs(
        comm_hook=DDPCommunicationHookType(options["hook"]),
        comm_wrapper=DDPCommunicationHookType(options["wrapper"]),
        comm_state_option=state if options["hook"].endswith("power_sgd") else {},
    ).register_comm_hook(model)


def train(accelerator, case: dict) -> dict:
    from accelerate.local_sgd import LocalSGD
    from torch.nn.parallel import DistributedDataParallel

    rank, size = accelerator.process_index, accelerator.num_processes
    layers = []
    for inputs, outputs in zip(case["widths"], case["widths"][1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers[:-1])
    torch.manual_seed(case["seed"])
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) * 0.3)
    cap = {} if case["bucket_cap_mb"] is None else {"bucket_cap_mb": case["bucket_cap_mb"]}
    model = DistributedDataParallel(net, **cap)
    if case["hook"]:
        register_hook(model, case["hook"])
    sgd = torch.optim.SGD(net.parameters(), case["lr"])
    with LocalSGD(accelerator, model, case["local_sgd"] or 1, enabled=case["local_sgd"] is not None) as local_sgd:
        for _ in range(case["steps"]):
            inputs = torch.randn(size, 6, case["widths"][0])[rank]
            targets = torch.randn(size, 6, case["widths"][-1])[rank]
            sgd.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            sgd.step()
            local_sgd.step()
    return {
        "parameters": torch.cat([p.detach().flatten() for p in net.parameters()]).tolist(),
        "gradients": torch.cat([p.grad.flatten() for p in net.parameters()]).tolist(),
    }


def run_original():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    results = [train(accelerator, case) for case in json.load(sys.stdin)["cases"]]
    print(json.dumps(results))
    accelerator.end_training()


# --- Comparing ------------------------------------------------------------------------------------


def run_ranks(command: list, cases: list) -> list:
    """The results of all ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    document = json.dumps({"cases": cases})
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS,
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1,
                         "CUDA_VISIBLE_DEVICES": ""}  # Python's PowerSGD on a CPU needs a machine without GPUs # fmt: skip
            path = os.path.join(folder, str(rank))
            with open(path, "w") as file:
                file.write(document)
            ranks.append(
                subprocess.Popen(command, stdin=open(path), stdout=subprocess.PIPE, text=True,
                                 env=os.environ | {name: str(value) for name, value in variables.items()})
            )  # fmt: skip
        try:
            outputs = [rank.communicate(timeout=DEADLINE)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * RANKS
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.fixture(scope="module")
def results():
    seed = seed_from_environment()
    print(f"seed {seed}")
    cases = make_cases(seed)
    original = run_ranks([sys.executable, __file__], list(cases.values()))
    ours = run_ranks([os.environ["ACCELERANT_REPLAY"], "processes"], list(cases.values()))
    return {name: ([rank[i] for rank in original], [rank[i] for rank in ours]) for i, name in enumerate(cases)}


@pytest.mark.parametrize("name", make_cases(0))
def test_same_as_the_original(results, name):
    original, ours = results[name]
    for side in (original, ours):
        assert all(rank["parameters"] == side[0]["parameters"] for rank in side), "ranks differ"
    for value in ("parameters", "gradients"):
        theirs, own = (torch.tensor(side[0][value], dtype=torch.double) for side in (original, ours))
        assert theirs.isfinite().all()
        difference = (theirs - own).abs().max().item()
        print(f"{name}: {value} differ by {difference:.1e}")
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    run_original()
