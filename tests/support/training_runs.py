"""Training runs for the topic `training`: describes them in a document and trains them in Python, in one process or
several."""

import itertools
import math

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DDPCommunicationHookType
from transformers import get_cosine_schedule_with_warmup

LAYERS = [6, 16, 5]
BATCH_SIZE = 8
OPTIMIZERS = [
    {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1},
]
CLIPPING = [{"kind": "none"}, {"kind": "norm", "value": 0.3}, {"kind": "value", "value": 0.02}]


def make_network(batch_norm: bool = False) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(LAYERS[0], LAYERS[1]),
        torch.nn.Tanh(),
        torch.nn.BatchNorm1d(LAYERS[1]) if batch_norm else torch.nn.LayerNorm(LAYERS[1]),
        torch.nn.Linear(LAYERS[1], LAYERS[2]),
    )


def make_document(rng, folder, rows: int, epochs: int, **changes) -> dict:
    """Writes weights and data, and describes a run that uses them."""
    torch.manual_seed(rng.randrange(2**31))
    network = make_network()
    weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    data = torch.randn(rows, LAYERS[0] + 1)
    data[:, -1] = torch.randint(LAYERS[2], (rows,))
    (folder / "weights").write_bytes(weights.numpy().tobytes())
    (folder / "data").write_bytes(data.numpy().tobytes())
    document = {
        "weights": str(folder / "weights"),
        "data": str(folder / "data"),
        "layers": LAYERS,
        "batch_size": BATCH_SIZE,
        "epochs": epochs,
        "accumulation": 1,
        "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        "warmup_steps": 3,
        "schedule": True,
        "clip": {"kind": "none"},
    }
    return document | changes


def spoil(document: dict, rng, rows: int):
    """Puts inf and nan into the inputs of some rows. Their gradients are nan, but not always their losses."""
    data = floats_in(document["data"]).view(-1, LAYERS[0] + 1)
    for row in rng.sample(range(len(data)), rows):
        data[row, rng.randrange(LAYERS[0])] = rng.choice([math.inf, -math.inf, math.nan])
    with open(document["data"], "wb") as file:
        file.write(data.numpy().tobytes())


def floats_in(path: str) -> torch.Tensor:
    with open(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.float32)


def load(document: dict):
    network = make_network(document.get("batch_norm", False))
    torch.nn.utils.vector_to_parameters(floats_in(document["weights"]), network.parameters())
    data = floats_in(document["data"]).view(-1, LAYERS[0] + 1)
    options = document["optimizer"]
    if options["kind"] == "sgd":
        optimizer = torch.optim.SGD(network.parameters(), lr=options["lr"], momentum=options["momentum"])
    else:
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=options["lr"], weight_decay=options["weight_decay"]
        )
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data[:, :-1], data[:, -1].long()), batch_size=BATCH_SIZE
    )
    updates = document["epochs"] * math.ceil(len(loader) / document["accumulation"])
    total = document.get("total_steps", updates)
    schedule = get_cosine_schedule_with_warmup(
        optimizer, document["warmup_steps"], total if document["schedule"] else 2**40
    )
    return network, optimizer, loader, schedule


def clip(document: dict, parameters):
    kind = document["clip"]["kind"]
    if kind == "norm":
        return torch.nn.utils.clip_grad_norm_(parameters, document["clip"]["value"])
    if kind == "value":
        torch.nn.utils.clip_grad_value_(parameters, document["clip"]["value"])


def step_with_torch(document: dict, network, optimizer, schedule, scaler) -> bool:
    """Clips, steps and updates as a program with torch.amp does. Returns whether the step was skipped."""
    scaler.unscale_(optimizer)
    clip(document, network.parameters())
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped = scaler.get_scale() < before
    if document.get("nonfinite") == "skip":
        scaler.update(1.0)  # stays
    if not skipped:
        schedule.step()
    optimizer.zero_grad()
    return skipped


def result_of(network, losses, rates, skipped, scale=1.0) -> dict:
    return {
        "losses": losses,
        "lr": rates,
        "skipped": skipped,
        "weights": [parameter.detach().flatten().tolist() for parameter in network.parameters()],
        "buffers": [buffer.flatten().tolist() for buffer in network.buffers()],
        "scale": scale,
    }


def train_with_accelerate(document: dict) -> dict:
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)  # the process group stays
    hook = document.get("comm_hook", "no")
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=document["accumulation"],
        dataloader_config=DataLoaderConfiguration(split_batches=document.get("split_batches", False)),
        # Accelerate ignores a hook that is given as a string.
        kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType(hook))],
    )
    network, optimizer, loader, schedule = accelerator.prepare(*load(document))
    losses, rates, skipped = [], [], []
    for _ in range(document["epochs"]):
        for x, y in loader:
            with accelerator.accumulate(network):
                loss = torch.nn.functional.cross_entropy(network(x), y)
                losses.append(loss.item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:  # without it Accelerate clips unfinished gradients
                    clip(document, network.parameters())
                    rates.append(schedule.get_last_lr()[0])
                    skipped.append(False)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return result_of(network, losses, rates, skipped)


def difference(left, right) -> float:
    left, right = float(left), float(right)
    if left == right or (math.isnan(left) and math.isnan(right)):
        return 0.0
    result = abs(left - right)
    return math.inf if math.isnan(result) else result


def distance(a: dict, b: dict) -> float:
    """The largest difference between losses, weights or buffers."""
    tensors = [zip(left, right) for name in ("weights", "buffers") for left, right in zip(a[name], b[name])]
    pairs = itertools.chain(zip(a["losses"], b["losses"]), *tensors)
    return max(difference(left, right) for left, right in pairs)


def assert_same_run(got: dict, expected: dict, tolerance: float):
    assert "error" not in got, got
    assert len(got["losses"]) == len(expected["losses"])
    for name in ("weights", "buffers"):
        assert [len(values) for values in got[name]] == [len(values) for values in expected[name]]
    assert got["skipped"] == expected["skipped"]
    assert got["lr"] == pytest.approx(expected["lr"], rel=1e-9, abs=1e-12)
    assert distance(got, expected) <= tolerance
