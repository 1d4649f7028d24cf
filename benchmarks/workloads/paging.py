"""What an operator costs more if its parameter can come and go but is there (paging.cpp)."""

import functools

import google_benchmark
from rounds import Case, Contender

PROGRAMS = ("bench-paging",)

# (key, benchmark, title)
OPERATORS = [("add", "Add", "operator on a parameter of an offloaded model that is there: sum of 8 numbers"),
             ("matrix", "MatrixProduct", "the same: product of 4x8 and 8x8"),
             ("in_place", "InPlace", "the same: change of 8 numbers in place"),
             ("view", "View", "the same: transposed view")]


def contenders(settings, benchmark):
    command = [settings.program("bench-paging")]
    return {side: Contender(functools.partial(google_benchmark.run, settings, command, f"{benchmark}/{argument}",
                                              "operators_per_iteration"))
            for side, argument in (("ours", 1), ("stock", 0))}


def cases(settings):
    for key, benchmark, title in OPERATORS:
        yield Case(f"paging/{key}", title, "µs", functools.partial(contenders, settings, benchmark))
