"""A training whose optimizer is offloaded, or whose parameters come and go, is killed in the middle of its saves, and goes on
with or without offload, to the same bits as one that was never offloaded."""

import itertools

import pytest
from resumable import assert_same, name_of_case, start, undisturbed

TINY = {"samples": 32, "epochs": 2, "batch": 4, "save_every": 3, "limit": 1}
PLACES = ["checkpoint.begun", "checkpoint.write", "checkpoint.before_manifest", "checkpoint.before_rename",
          "checkpoint.committed", "checkpoint.before_remove", "training.batch"]
WAYS = [{"offload": "apart"}, {"offload": "no"}, {"offload": "host"}]
PAGED = [{"offload": "paged"}, {"offload": "no"}]


def killed_at(place, visit, processes):
    kill = f"{place}:kill@{visit}"
    return f"{kill}/rank=0" if processes > 1 else kill


@pytest.mark.parametrize("processes, settings", [
    (1, {"precision": "fp16", "accumulate": 2}),
    (1, {"precision": "bf16", "async": 1, "optimizer": "sgd"}),
    (1, {"clip": 0, "accumulate": 2, "early": 1}),
    (1, {"accumulate": 2, "paged": 1}),
    (2, {"accumulate": 2}),
], ids=name_of_case)
def test_killed_while_saving(tmp_path, processes, settings):
    paged = settings.get("paged")
    settings = {key: value for key, value in settings.items() if key != "paged"}
    plain = {key: value for key, value in settings.items() if key != "early"}
    expected = undisturbed(tmp_path, {**TINY, **plain}, processes)
    ways = PAGED if paged else WAYS[:1] if "early" in settings else WAYS
    pairs = list(itertools.product(ways, ways))
    kills = 0
    for number, place in enumerate(PLACES):
        folder = tmp_path / place
        folder.mkdir()
        before, after = pairs[number % len(pairs)]
        base = {**TINY, **settings, "project": folder / "project"}
        failpoint = killed_at(place, 2, processes)
        first = start(folder / "log", {**base, **before}, processes, failpoint)
        kills += first.returncode in (-9, 137)
        assert first.returncode in (-9, 137, 0), first.stderr
        second = start(folder / "log", {**base, **after}, processes)
        assert second.returncode == 0, second.stderr
        assert_same(folder / "log", expected)
    assert kills >= len(PLACES) - 2  # a save in the background may not reach a place twice
