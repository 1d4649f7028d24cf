"""A training that is killed at random places and restarted gives the same results, to the last bit,
as an undisturbed one."""

import os
import random
import shutil

import pytest
import replay
from resumable import assert_same, lines_of, name_of_case, start, undisturbed

SEED = replay.seed_from_environment()
ROUNDS = int(os.environ.get("ACCELERANT_RESUME_ROUNDS", "1"))
MOST_STARTS = 200

KILLS = [
    "training.batch",
    "checkpoint.begun",
    "checkpoint.write",
    "checkpoint.file_written",
    "checkpoint.before_manifest",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "checkpoint.set_aside",
]


def run_until_done(folder, settings, processes, chooser):
    """Restarts the training until it ends, killed at places that chooser picks. Returns the number
    of kills and the log."""
    log = folder / "killed"
    project = folder / "project"
    for kills in range(MOST_STARTS):
        failpoint = chooser.choice(KILLS) + f":kill@{chooser.randint(1, 12)}"
        if processes > 1:
            failpoint += f"/rank={chooser.randrange(processes)}"
        done = start(log, {**settings, "project": project}, processes, failpoint)
        if done.returncode == 0:
            return kills, log
        assert done.returncode == (137 if processes > 1 else -9), done.stderr
    pytest.fail("the training never ended")


CASES = [
    # processes, settings
    (1, {}),
    (1, {"save_every": 1}),
    (1, {"save_every": 3, "async": 1}),
    (1, {"save_every": 2, "accumulate": 3}),
    (1, {"save_every": 1, "accumulate": 3, "precision": "fp16"}),
    (1, {"save_every": 2, "precision": "fp16", "async": 1}),
    (1, {"save_every": 5, "precision": "bf16", "workers": 2}),
    (1, {"save_every": 2, "two": 1, "accumulate": 2}),
    (1, {"save_every": 3, "two": 1, "precision": "fp16", "async": 1, "optimizer": "rmsprop"}),
    (1, {"save_every": 2, "optimizer": "sgd", "limit": 1, "workers": 3}),
    (2, {"save_every": 1, "accumulate": 3, "optimizer": "sgd"}),
    (2, {"save_every": 2, "precision": "fp16", "async": 1}),
    (3, {"save_every": 1, "accumulate": 2, "async": 1}),
    (4, {"save_every": 1, "hook": "power_sgd", "limit": 2}),
]


@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("processes, settings", CASES, ids=name_of_case)
def test_killed_training_is_the_same(tmp_path, processes, settings, round_):
    seed = f"{SEED}-{processes}-{settings}-{round_}"
    chooser = random.Random(seed)
    settings = {"samples": 48 if processes == 1 else 40, "epochs": 3, "batch": 4, **settings}
    expected = undisturbed(tmp_path, settings, processes)
    kills, log = run_until_done(tmp_path, settings, processes, chooser)
    print(f"killed {kills} times")
    assert_same(log, expected)


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1), (3, 2), (2, 4)])
def test_another_number_of_processes(tmp_path, before, after):
    """The samples continue where they stopped: none is seen twice in the epoch, none is left
    out."""
    settings = {"samples": 48, "epochs": 2, "batch": 2, "save_every": 1, "project": tmp_path / "project"}
    failed = start(tmp_path / "log", settings, before, "training.batch:kill@5/rank=0" if before > 1 else "training.batch:kill@5")
    assert failed.returncode != 0
    done = start(tmp_path / "log2", settings, after)
    assert done.returncode == 0, done.stderr
    assert f"was saved by {before} process" in done.stderr
    positions = [int(key.split()[2]) for key in lines_of(tmp_path / "log2", after)[0] if key.startswith("a 0 ")]
    start_at = 4 * 2 * before  # four or five batches were saved
    assert positions[0] in (start_at + 2 * after, start_at + 2 * before + 2 * after)
    assert positions[-1] == 48


def test_half_a_window_needs_as_many_processes(tmp_path):
    settings = {"samples": 48, "batch": 2, "save_every": 2, "accumulate": 4, "project": tmp_path / "project"}
    start(tmp_path / "log", settings, 2, "training.batch:kill@3/rank=0")
    refused = start(tmp_path / "log2", settings, 1)
    assert refused.returncode != 0
    assert "in the middle of accumulated gradients" in refused.stderr
    assert "use as many processes" in refused.stderr


def test_every_damaged_file_is_noticed(tmp_path):
    """After a flipped byte in any file, the previous checkpoint is used, and a message says so."""
    settings = {"samples": 24, "epochs": 1, "save_every": 2, "project": tmp_path / "project"}
    assert start(tmp_path / "log", settings).returncode == 0
    checkpoints = tmp_path / "project" / "checkpoints"
    newest = max(checkpoints.iterdir(), key=lambda path: int(path.name.split("_")[1]))
    names = sorted(path.relative_to(newest) for path in newest.rglob("*") if path.is_file())
    assert len(names) >= 7, names
    whole = tmp_path / "whole"
    shutil.copytree(newest, whole)
    for name in names:
        shutil.rmtree(newest)
        shutil.copytree(whole, newest)
        content = bytearray((newest / name).read_bytes())
        content[random.Random(f"{SEED}{name}").randrange(len(content))] ^= 0x10
        (newest / name).write_bytes(content)
        done = start(tmp_path / f"log_{name.name}", {**settings, "epochs": 1, "save_every": 1000})
        assert done.returncode == 0, done.stderr
        assert str(newest) in done.stderr and "Trying the checkpoint before" in done.stderr, (name, done.stderr)
