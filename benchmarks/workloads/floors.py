"""The physical floor of a piece of work, from the best this machine can do (floor.py)."""

TAIL_BYTES = 32  # per parameter: gradients read twice, the rest of AdamW read and written once
TAIL_SET = 16  # bytes touched per parameter
UPDATE_BYTES = 28  # without the first read of the gradients, which backward could do on the way


def worker(settings):
    return settings.worker("floor", settings.script("floor.py"))


def memory_seconds(settings, total, working_set):
    return worker(settings).ask("memory", int(total), int(working_set), settings.seconds,
                                deadline=settings.deadline)["seconds"]


def tail_seconds(settings, parameters):
    """Time to move as many bytes as the tail of a step must, over as much memory."""
    return memory_seconds(settings, TAIL_BYTES * parameters, TAIL_SET * parameters)


def step_seconds(settings, task, precision):
    """The products of a step at the rate of a large one, and then the update, which cannot begin
    before the last gradient has been computed."""
    asked = worker(settings)
    if ("flops", task) not in settings.shared:
        settings.shared["flops", task] = asked.ask("flops", task, deadline=settings.patience)
    work = settings.shared["flops", task]
    rate = asked.ask("matmul", precision, settings.seconds, deadline=settings.deadline)["flops"]
    update = memory_seconds(settings, UPDATE_BYTES * work["parameters"], TAIL_SET * work["parameters"])
    return work["flops"] / rate + update
