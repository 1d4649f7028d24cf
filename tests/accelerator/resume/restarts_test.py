"""The launcher alone brings a training to its end although a rank is killed again and again."""

import random
import re

import pytest
import replay
from resumable import assert_same, name_of_case, numbers_of, start, undisturbed

SEED = replay.seed_from_environment()


@pytest.mark.parametrize("processes, settings", [
    (1, {"save_every": 1, "accumulate": 2}),
    (2, {"save_every": 1, "precision": "fp16"}),
    (2, {"save_every": 1, "async": 1, "limit": 2}),
], ids=name_of_case)
def test_restarted_until_it_ends(tmp_path, processes, settings):
    """The program requests nothing: resuming after a restart is the default."""
    chooser = random.Random(f"{SEED}-{processes}-{settings}")
    settings = {"samples": 20 * processes, "epochs": 3, "batch": 4, **settings, "project": tmp_path / "project"}
    expected = undisturbed(tmp_path, settings, processes)
    log = tmp_path / "log"
    # 15 batches. Every attempt is killed at its sixth batch, with five or six of them saved, or at
    # least four if they are saved in the background. The last attempt has too few batches left.
    failpoint = f"training.batch:kill@6/rank={chooser.randrange(processes)}"
    done = start(log, {**settings, "resume": "default"}, processes, failpoint,
                 launcher_options=["--max-restarts", "5"])
    assert done.returncode == 0, done.stderr
    restarts = re.findall(r"^\[accelerant\] restart \d of 5", done.stderr, re.MULTILINE)
    assert 2 <= len(restarts) <= 3, done.stderr
    assert_same(log, expected)


def test_restarts_are_used_up(tmp_path):
    """Nothing is ever saved, so every attempt starts from scratch, and the launcher gives up."""
    settings = {"samples": 20, "epochs": 1, "batch": 4, "resume": "default", "project": tmp_path / "project"}
    done = start(tmp_path / "log", settings, 1, "training.batch:kill@3", launcher_options=["--max-restarts", "1"])
    assert done.returncode == 137, done.stderr
    assert "resuming from" not in done.stderr
    assert (tmp_path / "log.0").read_text().count("a 0 4 = ") == 2


def test_what_an_earlier_launch_left_is_not_resumed(tmp_path):
    """The new launch was meant to start from scratch, and had saved nothing before its restart."""
    settings = {"samples": 20, "epochs": 2, "batch": 4, "resume": "default", "project": tmp_path / "project"}
    earlier = start(tmp_path / "earlier", settings, launcher_options=["--max-restarts", "1"])
    assert earlier.returncode == 0, earlier.stderr
    assert numbers_of(settings["project"]) == [0, 1]
    # Each attempt is killed at its third batch, so the second has nothing to resume from.
    done = start(tmp_path / "log", settings, 1, "training.batch:kill@3", launcher_options=["--max-restarts", "1"])
    assert done.returncode == 137, done.stderr
    assert "resuming from" not in done.stderr
    assert (tmp_path / "log.0").read_text().count("a 0 4 = ") == 2


def test_after_a_restart_newer_states_count_more_than_the_path(tmp_path):
    settings = {"samples": 20, "epochs": 4, "batch": 4, "project": tmp_path / "project"}
    expected = undisturbed(tmp_path, settings, 1)
    log = tmp_path / "log"
    first = start(log, {**settings, "resume": "no"}, 1, "training.batch:kill@6")
    assert first.returncode == -9, first.stderr
    beginning = settings["project"] / "checkpoints/checkpoint_0"
    # Every attempt gets one epoch further.
    done = start(log, {**settings, "resume": beginning}, 1, "training.batch:kill@7",
                 launcher_options=["--max-restarts", "3"])
    assert done.returncode == 0, done.stderr
    resumed = re.findall(r"resuming from \S*/(checkpoint_\d)", done.stderr)  # the launcher repeats the last lines
    assert list(dict.fromkeys(resumed)) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    assert_same(log, expected)


def test_an_exception_that_nobody_catches_does_not_lose_a_save(tmp_path):
    """The exception is thrown right after save_state, and the save is slow."""
    settings = {"samples": 20, "epochs": 1, "batch": 4, "save_every": 2, "async": 1, "project": tmp_path / "project"}
    slow = "training.batch:throw@2,checkpoint.before_rename:sleep=300"
    failed = start(tmp_path / "log", settings, 1, slow)
    assert failed.returncode == -6, failed.stderr
    assert "the checkpoint in progress is saved first" in failed.stderr
    assert "training.batch" in failed.stderr
    assert numbers_of(settings["project"]) == [0]
    done = start(tmp_path / "log", settings)
    assert "resuming from" in done.stderr
    assert_same(tmp_path / "log", undisturbed(tmp_path, settings, 1))
