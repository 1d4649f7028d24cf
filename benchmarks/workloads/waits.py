"""How often the host waits for the GPU in a step of a running training, counted by the profiler."""

import functools

from rounds import Case
from workloads import trainings

PROGRAMS = trainings.PROGRAMS
TASKS = [("fp16", "gpt-tiny"), ("bf16", "gpt-tiny"), ("fp32", "cnn")]


def contenders(settings, task, precision):
    return {side: trainings.contender(settings, side, task, precision, "waits", read="waits")
            for side in trainings.sides_of(settings) if side != "compiled"}


def cases(settings):
    if settings.device != "cuda":
        return
    for precision, task in TASKS if settings.full else TASKS[:1]:
        yield Case(f"waits/{precision}/{task}", f"host waits per step, {trainings.NAMES[task]}, {precision}", "waits",
                   functools.partial(contenders, settings, task, precision), rounds=1)
