"""Whole training runs with the Accelerator, compared with the originals in the same process.

In float32, with windows that divide the epoch, the original is Hugging Face Accelerate. Where
Accelerate is wrong (the short last window) or does nothing (fp16 on a CPU), plain torch computes
the right answer.
"""

import math

import pytest
import torch
import training_runs
from training_runs import (
    BATCH_SIZE,
    CLIPPING,
    OPTIMIZERS,
    assert_same_run,
    distance,
    load,
    result_of,
    spoil,
    step_with_torch,
    train_with_accelerate,
)

TOPIC = "training"


def make_document(rng, folder, batches_per_epoch: int, **changes) -> dict:
    """A run of at least 60 batches."""
    rows = batches_per_epoch * BATCH_SIZE - rng.randrange(BATCH_SIZE)  # the last batch may be short
    return training_runs.make_document(rng, folder, rows, math.ceil(60 / batches_per_epoch), **changes)


def windows(document: dict, loader):
    """The batches of each update. The last window of an epoch may be short."""
    for _ in range(document["epochs"]):
        batches = list(loader)
        for start in range(0, len(batches), document["accumulation"]):
            yield batches[start : start + document["accumulation"]]


def train_with_torch(document: dict) -> dict:
    network, optimizer, loader, schedule = load(document)
    precision = document.get("precision", "no")
    scaler = torch.amp.GradScaler(
        "cpu",
        enabled=precision == "fp16" or document.get("nonfinite") == "skip",
        init_scale=document.get("init_scale", 65536.0 if precision == "fp16" else 1.0),
        growth_interval=document.get("growth_interval", 2000),
    )
    dtype = {"no": torch.bfloat16, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    items = document.get("items", False)
    losses, rates, skipped = [], [], []
    for window in windows(document, loader):
        total = sum((y != 0).sum().item() for _, y in window) if items else len(window)
        for x, y in window:
            with torch.autocast("cpu", dtype=dtype, enabled=precision != "no"):
                output = network(x)
            if items:
                loss = torch.nn.functional.cross_entropy(
                    output.float(), y, ignore_index=0, reduction="sum"
                )
            else:
                loss = torch.nn.functional.cross_entropy(output.float(), y)
            losses.append(loss.item())
            scaler.scale(loss / max(total, 1)).backward()
        rates.append(schedule.get_last_lr()[0])
        skipped.append(step_with_torch(document, network, optimizer, schedule, scaler))
    return result_of(network, losses, rates, skipped, scaler.get_scale())


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["kind"])
@pytest.mark.parametrize("clipping", CLIPPING, ids=lambda c: "clip_" + c["kind"])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("schedule", [True, False], ids=["cosine", "constant"])
def test_float32_like_accelerate(replay, rng, tmp_path, optimizer, clipping, accumulation, schedule):
    document = make_document(
        rng, tmp_path, 20, optimizer=optimizer, clip=clipping, accumulation=accumulation,
        schedule=schedule, warmup_steps=3 if schedule else 0,
    )
    assert_same_run(replay(document), train_with_accelerate(document), 1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["kind"])
@pytest.mark.parametrize("clipping", CLIPPING, ids=lambda c: "clip_" + c["kind"])
@pytest.mark.parametrize("items", [False, True], ids=["mean", "items"])
def test_short_windows_like_torch(replay, rng, tmp_path, optimizer, clipping, items):
    document = make_document(
        rng, tmp_path, 22, optimizer=optimizer, clip=clipping, accumulation=4, items=items
    )
    got = replay(document)
    assert_same_run(got, train_with_torch(document), 1e-5)
    if not items and clipping["kind"] == "none" and optimizer["kind"] == "sgd":
        # Accelerate divides the two batches of the last window by four.
        assert distance(got, train_with_accelerate(document)) > 1e-3


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("clipping", CLIPPING, ids=lambda c: "clip_" + c["kind"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_mixed_precision_like_torch(replay, rng, tmp_path, precision, clipping, accumulation):
    """16-bit arithmetic varies with the number of threads. Two runs in Python show by how much."""
    document = make_document(
        rng, tmp_path, 22, precision=precision, clip=clipping, accumulation=accumulation,
        # The scale overflows at first, so that steps are skipped, and grows within the run.
        init_scale=2.0**22, growth_interval=5,
        optimizer={"kind": "sgd", "lr": 0.02, "momentum": 0.9},
    )
    threads = torch.get_num_threads()
    expected = train_with_torch(document)
    torch.set_num_threads(1)
    other = train_with_torch(document)
    torch.set_num_threads(threads)
    got = replay(document)
    if precision == "fp16":
        assert any(got["skipped"]) and not all(got["skipped"])
        assert got["scale"] == expected["scale"]
    # Rounding in the last bit of float16 changes a loss by about 1e-3 if runs differ at all;
    # bfloat16 has 3 bits fewer.
    least = {"fp16": 2e-3, "bf16": 1.6e-2}[precision]
    assert_same_run(got, expected, max(2 * distance(expected, other), least))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["kind"])
@pytest.mark.parametrize("clipping", CLIPPING, ids=lambda c: "clip_" + c["kind"])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "own_step"])
def test_skips_nonfinite_gradients_like_a_scaler_of_1(
    replay, rng, tmp_path, optimizer, clipping, accumulation, fused
):
    document = make_document(
        rng, tmp_path, 20, optimizer=optimizer, clip=clipping, accumulation=accumulation, fused=fused,
        nonfinite="skip",
    )
    spoil(document, rng, rows=2)
    expected = train_with_torch(document)
    assert any(expected["skipped"]) and not all(expected["skipped"])
    assert_same_run(replay(document), expected, 1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["kind"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "own_step"])
@pytest.mark.parametrize("nonfinite", ["step", None])
def test_steps_with_nonfinite_gradients_like_torch(replay, rng, tmp_path, optimizer, fused, nonfinite):
    document = make_document(rng, tmp_path, 20, optimizer=optimizer, fused=fused, nonfinite=nonfinite)
    spoil(document, rng, rows=1)
    got = replay(document)
    assert_same_run(got, train_with_torch(document), 1e-5)
    assert math.isnan(float(got["weights"][0][0])) and not any(got["skipped"])
