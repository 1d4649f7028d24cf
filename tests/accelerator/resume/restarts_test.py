"""The launcher alone brings a training to its end in which a rank is killed again and again."""

import random
import re

import pytest
import replay
from resumable import assert_same, name_of_case, start, undisturbed

SEED = replay.seed_from_environment()


@pytest.mark.parametrize("processes, settings", [
    (1, {"save_every": 1, "accumulate": 2}),
    (2, {"save_every": 1, "precision": "fp16"}),
    (2, {"save_every": 1, "async": 1, "limit": 2}),
], ids=name_of_case)
def test_restarted_until_it_ends(tmp_path, processes, settings):
    """The program asks for nothing: that it is resumed after a restart is the default."""
    print(f"ACCELERANT_SEED={SEED}")
    chooser = random.Random(f"{SEED}-{processes}-{settings}")
    settings = {"samples": 20 * processes, "epochs": 3, "batch": 4, **settings, "project": tmp_path / "project"}
    expected = undisturbed(tmp_path, settings, processes)
    log = tmp_path / "log"
    # 15 batches. Every attempt is killed at its sixth, with five or six of them saved, four at least if they are
    # saved in the background; the last attempt has too few.
    failpoint = f"training.batch:kill@6/rank={chooser.randrange(processes)}"
    done = start(log, {**settings, "resume": "default"}, processes, failpoint,
                 launcher_options=["--max-restarts", "5"])
    assert done.returncode == 0, done.stderr
    restarts = re.findall(r"^\[accelerant\] restart \d of 5", done.stderr, re.MULTILINE)
    assert 2 <= len(restarts) <= 3, done.stderr
    assert_same(log, expected)


def test_restarts_are_used_up(tmp_path):
    """Nothing is ever saved, so every attempt begins anew, and the launcher gives up."""
    settings = {"samples": 20, "epochs": 1, "batch": 4, "resume": "default", "project": tmp_path / "project"}
    done = start(tmp_path / "log", settings, 1, "training.batch:kill@3", launcher_options=["--max-restarts", "1"])
    assert done.returncode == 137, done.stderr
    assert "resuming from" not in done.stderr
    assert (tmp_path / "log.0").read_text().count("a 0 4 = ") == 2
