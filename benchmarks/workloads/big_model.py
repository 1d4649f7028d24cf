"""Forward passes of a model whose weights are in host memory or in mapped files (big_model.cpp, and Accelerate in
big_model.py).

On a GPU the floor is a plain copy, from pinned host memory, of as many bytes as a forward fetches. On a CPU
it is the forward of the resident model, and files are used in place. Files are in the page cache.
"""

import functools
import tempfile

from rounds import Case, Contender

PROGRAMS = ("bench-big-model",)


def folder(settings):
    """Removed when the interpreter ends."""
    if "big model" not in settings.shared:
        settings.shared["big model"] = tempfile.TemporaryDirectory()
    return settings.shared["big model"].name


def contender(settings, side, form, size, work, tokens, budget):
    is_theirs = side in ("accelerate", "pinned")
    command = settings.script("big_model.py") if is_theirs else [settings.program("bench-big-model")]
    worker = settings.worker(f"big model {side}", [*command, settings.device])
    request = ("transfer" if form == "transfer" else work, tokens, settings.seconds)
    placed = "host" if form == "transfer" else form

    def prepare():
        worker.ask("prepare", placed, size, budget, f"{folder(settings)}/{side}", deadline=settings.patience)
        return {}

    return Contender(prepare=prepare, measure=lambda: worker.ask(*request, deadline=settings.patience)["seconds"])


def contenders(settings, forms, *work):
    settings.close()  # the memory of the models before
    return {side: contender(settings, side, form, *work) for side, form in forms.items()}


def cases(settings):
    watched = {"ours": "watched", "floor": "resident"}
    if settings.device == "cpu":
        rows = [("mapped/linear", "24 layers of 16 MiB from mapped files, batch 256", ("linear", "forward", 256, 96),
                 {"ours": "disk", "copied": "copied", "floor": "resident", "accelerate": "disk"}),
                ("resident/gpt2", "GPT-2 small, everything fits, 256 tokens", ("gpt2", "forward", 256, 0), watched),
                ("resident/step", "step of GPT-2 small, everything fits, 256 tokens", ("gpt2", "step", 256, 0), watched)]
    else:
        rows = [("host/8b", "Llama 8B shapes from host memory, 4 GB budget, 16 tokens", ("8b", "forward", 16, 4096),
                 {"ours": "host", "floor": "transfer", "accelerate": "host", "pinned": "pinned"}),
                ("mapped/8b", "Llama 8B shapes from mapped files, 4 GB budget, 16 tokens", ("8b", "forward", 16, 4096),
                 {"ours": "disk", "floor": "transfer"}),
                ("resident/gpt2", "GPT-2 small, bf16, everything fits, 1024 tokens", ("gpt2", "forward", 1024, 0), watched),
                ("resident/step", "step of GPT-2 small, bf16, everything fits, 8192 tokens", ("gpt2", "step", 8192, 0), watched)]
    for key, title, work, forms in rows:
        yield Case(f"big_model/{key}", title, "ms", functools.partial(contenders, settings, forms, *work))
