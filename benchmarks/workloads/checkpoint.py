"""Saving and loading models and whole trainings (model_io.cpp and checkpoint_loop.cpp, and both in
Python).

Files to load are in the page cache. A save of Accelerant is complete only when it is on the disk,
so it is compared with Python's save plus fsync. The floor of loading is a copy of the same memory.
"""

import functools
import tempfile

from rounds import Case, Contender

PROGRAMS = ("bench-model-io", "bench-checkpoint")
MANY = 1_000_000


def folder(settings):
    """Removed when the interpreter ends."""
    if "folder" not in settings.shared:
        settings.shared["folder"] = tempfile.TemporaryDirectory()
    return settings.shared["folder"].name


def models(settings):
    """The workers of both languages, and functions that give each the same model."""
    ours = settings.worker("model ours", [settings.program("bench-model-io"), "cpu"])
    python = settings.worker("model accelerate", [*settings.script("model_io.py"), "cpu"])
    blocks = 21 if settings.full else 4

    def prepare(worker):
        worker.ask("model", blocks, deadline=settings.deadline)
        return {}

    return ours, python, functools.partial(prepare, ours), functools.partial(prepare, python)


def load_contenders(settings):
    """Each side loads what it has saved; only Accelerant's file has checksums."""
    ours, python, prepare_ours, prepare_python = models(settings)
    path = f"{folder(settings)}/model.safetensors"
    checked = f"{folder(settings)}/checked"

    def prepare_file():
        prepare_python()
        python.ask("save_and_sync", path, deadline=settings.deadline)
        return {}

    def prepare_checked():
        prepare_ours()
        ours.ask("save", checked, deadline=settings.deadline)
        return {}

    def seconds(worker, *words):
        return worker.ask(*words, deadline=settings.deadline)["seconds"]

    return {"accelerate": Contender(lambda: seconds(python, "load", path), prepare_file),
            "ours": Contender(lambda: seconds(ours, "load", checked), prepare_checked),
            "unchecked": Contender(lambda: seconds(ours, "load-unchecked", checked)),
            "floor": Contender(lambda: seconds(ours, "copy_"))}


def write_contenders(settings):
    """Accelerant's file is on the disk, and either complete or absent. Python's file is synced."""
    ours, python, prepare_ours, prepare_python = models(settings)
    deadline = settings.deadline
    return {
        "ours": Contender(lambda: ours.ask("save", f"{folder(settings)}/model", deadline=deadline)["seconds"], prepare_ours),
        "accelerate": Contender(
            lambda: python.ask("save_and_sync", f"{folder(settings)}/written.safetensors", deadline=deadline)["seconds"],
            prepare_python),
    }


def open_contenders(settings):
    ours, python, _, _ = models(settings)
    path = f"{folder(settings)}/many.safetensors"

    def prepare():
        ours.ask("many", path, MANY, deadline=settings.deadline)
        return {}

    return {"ours": Contender(lambda: ours.ask("open", path, deadline=settings.deadline)["seconds"], prepare),
            "accelerate": Contender(lambda: python.ask("open", path, deadline=settings.deadline)["seconds"])}


def save_contenders(settings, ways, size, part):
    """`ways` has one entry per side."""
    workers = {"ours": settings.worker("training saved, ours", [settings.program("bench-checkpoint")]),
               "accelerate": settings.worker("training saved, accelerate", settings.script("checkpoint_loop.py"))}

    def save(side):
        return workers[side].ask("save", ways[side], size, f"{folder(settings)}/{side}", deadline=settings.deadline)[part]

    def prepare(side):
        for _ in range(2):  # warm up; twice, because asynchronous saves have two buffers
            save(side)
        return {}

    return {side: Contender(functools.partial(save, side), functools.partial(prepare, side)) for side in ways}


def train_contenders(settings, ways, size, steps, every):
    """Training with a save before every `every` steps."""
    workers = {"ours": settings.worker("training saved, ours", [settings.program("bench-checkpoint")]),
               "accelerate": settings.worker("training saved, accelerate", settings.script("checkpoint_loop.py"))}

    def measure(side):
        answer = workers[side].ask("train", ways[side], size, f"{folder(settings)}/{side}", steps, every,
                                   deadline=settings.patience)
        return answer["trained"] / steps

    return {side: Contender(functools.partial(measure, side)) for side in ways}


def cases(settings):
    loaded = "1.06 GB" if settings.full else "0.2 GB"
    yield Case("checkpoint/load", f"loading a model of {loaded}", "ms", functools.partial(load_contenders, settings))
    yield Case("checkpoint/write", f"writing a model of {loaded} to the disk", "ms",
               functools.partial(write_contenders, settings))
    for size in ["100MB", "1GB"] if settings.full else ["100MB"]:
        ways = {"ours": "sync", "accelerate": "accelerate-synced"}
        yield Case(f"checkpoint/save/{size}", f"save_state of {size}, until it is on the disk", "ms",
                   functools.partial(save_contenders, settings, ways, size, "complete"))
        ways = {"ours": "async", "accelerate": "dcp-async"}
        yield Case(f"checkpoint/held-up/{size}", f"training held up by an asynchronous save of {size}", "ms",
                   functools.partial(save_contenders, settings, ways, size, "blocked"))
    if settings.full:
        yield Case("checkpoint/open", "opening a file of 1,000,000 tensors", "ms",
                   functools.partial(open_contenders, settings))
        size, steps, every = ("1GB", 400, 200) if settings.device == "cuda" else ("100MB", 40, 20)
        for key, title, ways in [("none", "no saves", {"ours": "none", "accelerate": "none"}),
                                 ("async", f"a save in the background every {every}", {"ours": "async", "accelerate": "dcp-async"})]:
            yield Case(f"checkpoint/train/{key}", f"a step of {size}, {title}", "ms",
                       functools.partial(train_contenders, settings, ways, size, steps, every))
