"""The training workers and their requests."""

from rounds import Contender
from settings import reason_of

PROGRAMS = ("bench-training",)

# By side: the form, and the Python script, or None for the C++ program.
FORMS = {"ours": ("accelerant", None), "captured": ("captured", None), "stock": ("libtorch", None),
         "unwatched": ("unwatched", None), "skipping": ("skipping-accelerant", None),
         "stopping": ("stopping-accelerant", None),
         "accelerate": ("accelerate", "training_loop.py"), "compiled": ("compiled", "training_loop.py")}
NAMES = {"cnn": "CNN", "mlp": "MLP", "gpt-tiny": "GPT tiny, 0.8 M", "gpt-nano": "GPT nano, 10.8 M",
         "gpt-small": "GPT-2 small, 124 M", "empty": "Linear(1, 1)"}


def title_of(task):
    kind, _, batch = task.rpartition("-")
    return f"{NAMES[kind]}, batch of {batch}" if batch.isdigit() else NAMES[task]


def worker_of(settings, side):
    script = FORMS[side][1]
    command = settings.script(script) if script else [settings.program("bench-training")]
    return settings.worker(f"training {side}", command)


def sides_of(settings):
    """The sides that this build and this run offer."""
    offered, _ = reason_of(lambda: worker_of(settings, "ours").ask("forms", deadline=settings.deadline))
    sides = dict(FORMS)
    for name in ("unwatched", "skipping", "stopping"):  # warning_cost.py and nonfinite_cost.py compare with them
        del sides[name]
    if not settings.compiled:
        del sides["compiled"]
    if offered is None or "captured" not in offered["forms"]:
        del sides["captured"]
    return list(sides)


def contender(settings, side, task, precision, *request, read="seconds", form=None):
    """Prepares a training and then repeats a request. `form`: one that is not a side's own."""
    worker = worker_of(settings, side)
    return Contender(
        prepare=lambda: worker.ask("prepare", form or FORMS[side][0], task, precision, deadline=settings.patience),
        measure=lambda: worker.ask(*request, deadline=settings.deadline)[read])
