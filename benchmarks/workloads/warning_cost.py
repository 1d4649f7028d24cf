"""What the warnings about likely mistakes cost in a step: the same training with and without them."""

import functools

from rounds import Case
from workloads import trainings

PROGRAMS = trainings.PROGRAMS
TASKS = {"cpu": [("fp32", "gpt-tiny-1"), ("bf16", "cnn-4")],
         "cuda": [("fp16", "gpt-tiny"), ("bf16", "gpt-tiny"), ("fp16", "mlp"), ("fp32", "cnn")]}
ROUNDS = 15  # the difference is small


def contenders(settings, task, precision):
    return {side: trainings.contender(settings, side, task, precision, "measure", settings.seconds)
            for side in ("ours", "unwatched")}


def cases(settings):
    for precision, task in TASKS[settings.device]:
        title = f"step with and without warnings, {trainings.title_of(task)}, {precision}"
        yield Case(f"warnings/{precision}/{task}", title, "ms",
                   functools.partial(contenders, settings, task, precision), rounds=ROUNDS)
