"""Compile time of a program that includes only torch/torch.h, or Accelerant's headers as well."""

import functools
import os
import pathlib
import shutil
import tempfile
import time

from rounds import Case, Contender
from worker import WorkerFailed, run_once

PROGRAMS = ()  # it needs only the compiler
INCLUDE = pathlib.Path(__file__).parents[2] / "include"
HEADERS = {"compile/accelerant.h": "accelerant/accelerant.h", "compile/amp.h": "accelerant/amp.h"}


def seconds_of(settings, headers):
    import torch  # only for its path

    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise WorkerFailed("there is no C++ compiler")
    folder = pathlib.Path(torch.__file__).parent / "include"
    with tempfile.TemporaryDirectory() as temporary:
        source = pathlib.Path(temporary, "program.cpp")
        source.write_text("".join(f"#include <{header}>\n" for header in headers) + "int main() {}\n", encoding="utf-8")
        start = time.perf_counter()
        run_once([compiler, "-std=c++20", f"-I{INCLUDE}", f"-isystem{folder}",
                  f"-isystem{folder / 'torch/csrc/api/include'}", "-c", str(source), "-o", f"{source}.o"],
                 settings.environment(), settings.patience)
        return time.perf_counter() - start


def contenders(settings, header):
    sides = {"ours": ["torch/torch.h", header], "stock": ["torch/torch.h"]}
    return {side: Contender(functools.partial(seconds_of, settings, headers)) for side, headers in sides.items()}


def cases(settings):
    for key, header in HEADERS.items():
        if settings.full or key == "compile/accelerant.h":
            yield Case(key, f"compile a program with torch/torch.h and {header}", "s",
                       functools.partial(contenders, settings, header))
