"""Children that a training forks in each step, and that unwind: each ends at once with its own exit code, and the
training goes on as if it had never been. ../accelerator/forked_children_test.cpp has all ways in which a child ends and
all threads that a process may have.
"""

import pathlib
import re

import pytest
from attack import SCALE, SETTINGS, expect_clean, expect_same, run, undisturbed

CHILD = re.compile(r"^child = (.*) (\d+);$", re.MULTILINE)


@pytest.mark.parametrize("processes, settings", [
    (1, {"async": 1, "precision": "fp16"}),
    (2, {"async": 1, "samples": 64}),
], ids=["one_process", "two_ranks"])
def test_children_that_unwind(tmp_path, processes, settings):
    settings = {**SETTINGS, "every": 1, "epochs": 1, "width": 256, **settings}
    expected = undisturbed(tmp_path / "undisturbed", settings, processes)
    project = tmp_path / "project"
    code, errors = run(tmp_path, {**settings, "project": project, "children": 1}, processes)
    assert code == 0, errors
    expect_same(tmp_path / "log", expected)
    expect_clean(project, settings["limit"])
    steps = settings["samples"] * settings["epochs"] // settings["batch"] // processes
    for rank in range(processes):
        ends = CHILD.findall(pathlib.Path(f"{tmp_path / 'log'}.{rank}").read_text())
        assert [end for end, _ in ends] == ["exit 41", "exit 42"] * steps
        slowest = max(int(milliseconds) for _, milliseconds in ends)
        print(f"rank {rank}: {len(ends)} children, the slowest took {slowest} ms")
        assert slowest < 10_000 * SCALE
