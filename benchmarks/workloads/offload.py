"""Training with the optimizer's state in host memory (offload_loop.cpp), under a limit to the GPU's memory into which
the state does not fit. The floor is the longest of what a step must do: compute, transfer, update on the host. Without
offload and limit, the same training shows what the offload costs.

On a CPU, host and device have the same memory: the rows show that nothing is lost there.
"""

import functools

from rounds import Case, Contender

PROGRAMS = ("bench-offload",)
SIZES = {"cpu": ("tiny", 0), "cuda": ("1b", 10)}  # and the limit in GB
NAMES = {"tiny": "GPT tiny", "1b": "GPT, 1.3 B"}
FORMS = {"ours": "offloaded", "in_backward": "early", "resident": "resident"}


def worker_of(settings, side):
    return settings.worker(f"offload {side}", [settings.program("bench-offload")])


def contender(settings, side, form, *request, read="seconds"):
    worker = worker_of(settings, side)
    size, limit = SIZES[settings.device]

    def prepare():
        worker.close()  # the memory of the training before, on the host too
        return worker.ask("prepare", form, size, 0 if side == "resident" else limit, deadline=settings.patience)

    return Contender(prepare=prepare, measure=lambda: worker.ask(*request, deadline=settings.patience)[read])


def steps(settings, prefix, sides):
    found = {side: contender(settings, side, prefix + FORMS[side], "measure", settings.seconds) for side in sides}
    if not prefix:
        found["floor"] = contender(settings, "floor", "offloaded", "bound", settings.seconds)
    return found


def memory(settings):
    def in_mb(side, form):
        asked = contender(settings, side, form, "memory", read="bytes")
        return Contender(prepare=asked.prepare, measure=lambda: asked.measure() / 1e6)

    return {"ours": in_mb("ours", "deep"), "resident": in_mb("resident", "resident")}


def cases(settings):
    size, limit = SIZES[settings.device]
    under = f", {limit} GB" if limit else ""
    yield Case(f"offload/{size}", f"step with offloaded optimizer, {NAMES[size]}{under}", "ms",
               functools.partial(steps, settings, "", FORMS))
    if settings.full:
        yield Case(f"offload/clipped/{size}", f"clipped step with offloaded optimizer, {NAMES[size]}{under}", "ms",
                   functools.partial(steps, settings, "clipped-", ["ours", "resident"]))
    if settings.full and settings.device == "cuda":
        yield Case(f"offload/memory/{size}", f"peak memory, optimizer and activations offloaded, {NAMES[size]}{under}",
                   "MB", functools.partial(memory, settings), rounds=1)
