"""Whole training steps: forward, backward, clipping, optimizer, schedule. Batches are already on
the device."""

import functools

from rounds import Case, Contender
from workloads import floors, trainings

PROGRAMS = trainings.PROGRAMS

# By device: the rows of a quick run and the rows that a full run adds, as (precision, task).
QUICK = {
    "cpu": [("fp32", "gpt-tiny"), ("fp32", "gpt-tiny-1"), ("fp32", "gpt-nano"), ("fp32", "cnn"), ("fp32", "cnn-4"),
            ("fp32", "mlp"), ("bf16", "gpt-tiny"), ("bf16", "gpt-tiny-1"), ("bf16", "cnn"), ("bf16", "cnn-4")],
    "cuda": [("fp16", "gpt-tiny"), ("fp16", "gpt-nano"), ("fp16", "gpt-small"), ("bf16", "gpt-small"),
             ("bf16", "cnn")],
}
FULL = {
    "cpu": [("bf16", "gpt-nano"), ("bf16", "mlp")],  # fp16 is emulated there and takes a second
    "cuda": [("fp16", "gpt-nano-32"), ("fp16", "cnn"), ("fp16", "mlp"),
             ("bf16", "gpt-tiny"), ("bf16", "gpt-nano"), ("bf16", "mlp"), ("tf32", "gpt-nano"), ("tf32", "gpt-small"),
             ("fp32", "gpt-tiny"), ("fp32", "gpt-nano"), ("fp32", "gpt-small"), ("fp32", "cnn"), ("fp32", "mlp")],
}


def contenders(settings, task, precision):
    sides = {side: trainings.contender(settings, side, task, precision, "measure", settings.seconds)
             for side in trainings.sides_of(settings)}
    sides["floor"] = Contender(lambda: floors.step_seconds(settings, task, precision))
    return sides


def cases(settings):
    for precision, task in QUICK[settings.device] + (FULL[settings.device] if settings.full else []):
        yield Case(f"step/{precision}/{task}", f"step, {trainings.title_of(task)}, {precision}", "ms",
                   functools.partial(contenders, settings, task, precision))
