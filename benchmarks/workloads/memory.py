"""The peak GPU memory of a step, including weights and optimizer."""

import functools

from rounds import Case, Contender
from workloads import trainings

PROGRAMS = trainings.PROGRAMS


def contender(settings, side, task, precision):
    asked = trainings.contender(settings, side, task, precision, "memory", read="bytes")

    def prepare():
        trainings.worker_of(settings, side).close()  # the previous training's memory would count
        return asked.prepare()

    return Contender(prepare=prepare, measure=lambda: asked.measure() / 1e6)


def contenders(settings, task, precision):
    return {side: contender(settings, side, task, precision) for side in trainings.sides_of(settings)}


def cases(settings):
    if settings.device != "cuda":
        return
    tasks = [("fp16", "gpt-small"), ("fp16", "gpt-nano"), ("fp32", "gpt-small")] if settings.full else [("fp16", "gpt-nano")]
    for precision, task in tasks:
        yield Case(f"memory/{precision}/{task}", f"peak memory, {trainings.NAMES[task]}, {precision}", "MB",
                   functools.partial(contenders, settings, task, precision), rounds=1)
