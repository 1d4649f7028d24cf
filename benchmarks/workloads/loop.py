"""What surrounds the computation: the overhead of a nearly empty step, and steps with their
loader."""

import functools

from rounds import Case, Contender
from workloads import trainings

PROGRAMS = trainings.PROGRAMS


def overhead_contenders(settings, precision):
    return {side: trainings.contender(settings, side, "empty", precision, "measure", settings.seconds)
            for side in trainings.sides_of(settings) if side != "compiled"}


def loader_contenders(settings, task, precision):
    def measure(side):
        worker = trainings.worker_of(settings, side)
        return worker.ask("loop", trainings.FORMS[side][0], task, precision, settings.seconds,
                          deadline=settings.patience)["seconds"]

    return {side: Contender(functools.partial(measure, side)) for side in trainings.sides_of(settings)
            if side in ("ours", "stock", "accelerate")}


def cases(settings):
    precisions = ["fp32", "bf16", "fp16"] if settings.full else ["fp32"]
    for precision in precisions:
        yield Case(f"loop/empty/{precision}", f"overhead, step of Linear(1, 1), {precision}", "µs",
                   functools.partial(overhead_contenders, settings, precision))
    for precision in ["fp32", "bf16"] if settings.full else ["fp32"]:
        yield Case(f"loop/cnn/{precision}", f"step with loader, CNN, {precision}", "ms",
                   functools.partial(loader_contenders, settings, "cnn", precision))
