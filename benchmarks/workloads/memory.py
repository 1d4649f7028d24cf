"""The most memory of the GPU that a step uses, weights and optimizer included."""

import functools

from rounds import Case, Contender
from workloads import trainings


def contenders(settings, task, precision):
    sides = {}
    for side in trainings.sides_of(settings):
        asked = trainings.contender(settings, side, task, precision, "memory", read="bytes",
                                   purpose=f"memory of {task} {precision}")
        sides[side] = Contender(prepare=asked.prepare, measure=lambda asked=asked: asked.measure() / 1e6)
    return sides


def cases(settings):
    if settings.device != "cuda":
        return
    tasks = [("fp16", "gpt-small"), ("fp16", "gpt-nano"), ("fp32", "gpt-small")] if settings.full else [("fp16", "gpt-nano")]
    for precision, task in tasks:
        yield Case(f"memory/{precision}/{task}", f"peak memory, {trainings.NAMES[task]}, {precision}", "MB",
                   functools.partial(contenders, settings, task, precision), rounds=1)
