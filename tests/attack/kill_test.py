"""A training that is killed with SIGKILL, resumed and killed again computes the same bits as an undisturbed one. No
committed checkpoint is ever damaged, no process is left, and nothing that is left stops the next run.

ACCELERANT_ATTACK_KILLS=1000 for the long form.
"""

import collections
import concurrent.futures
import dataclasses
import os
import random
import shutil
import signal
import time

import pytest
from attack import (SEED, SETTINGS, Run, checkpoints_of, expect_clean, expect_no_damage, expect_same, extent, run,
                    undisturbed)

KILLS = extent("KILLS", 10)
JOBS = extent("JOBS", 2)
MOST_KILLS_OF_A_TRAINING = 6


@dataclasses.dataclass
class Scenario:
    name: str
    processes: int
    settings: dict
    share: int  # of the kills, in sixteenths


SCENARIOS = [
    Scenario("synchronous", 1, {}, 3),
    Scenario("in_the_background_fp16", 1, {"async": 1, "precision": "fp16"}, 4),
    Scenario("every_step", 1, {"every": 1, "limit": 1, "accumulate": 2}, 2),
    Scenario("two_ranks", 2, {"samples": 128}, 3),
    Scenario("two_ranks_in_the_background_fp16", 2, {"samples": 128, "async": 1, "precision": "fp16"}, 4),
]

FAILPOINTS = ["training.step", "backward", "checkpoint.begun", "checkpoint.write", "checkpoint.before_sync",
              "checkpoint.file_written", "checkpoint.before_manifest", "checkpoint.before_folder_sync",
              "checkpoint.before_rename", "checkpoint.after_rename", "checkpoint.committed",
              "checkpoint.before_remove", "checkpoint.set_aside", "checkpoint.removed", "files.remove_entry",
              "lock.candidate", "lock.taken", "lock.successor", "lock.before_replace"]
MOMENTS = ["at any moment", "at the start", "in a save", "in a save", "at a failpoint"]
VICTIMS = ["all", "a rank", "launcher"]


def kill_at_a_failpoint(folder, scenario, settings, chooser):
    failpoint = f"{chooser.choice(FAILPOINTS)}:kill@{chooser.choice([1, 1, 1, 2, 3, 5])}"
    if scenario.processes > 1:
        failpoint += f"/rank={chooser.randrange(scenario.processes)}"
    code, errors = run(folder, settings, scenario.processes, failpoint=failpoint)
    assert code in (0, -signal.SIGKILL if scenario.processes == 1 else 128 + signal.SIGKILL), errors
    if code == 0:
        return None  # the place was not reached
    return "all" if scenario.processes == 1 else "a rank"


def wait_for(training, moment, settings, chooser):
    if moment == "at the start":
        time.sleep(chooser.uniform(0, 0.6))
        return
    training.wait_for_steps(1)
    if moment == "in a save":
        training.wait_for_save(settings["project"])
        time.sleep(chooser.choice([0, chooser.uniform(0, 0.02)]))
    else:
        time.sleep(chooser.uniform(0, 0.3))


def kill_from_outside(folder, scenario, settings, moment, chooser):
    """Which process was killed; None if the training was faster."""
    victim = "all" if scenario.processes == 1 else chooser.choice(VICTIMS)
    rank = chooser.randrange(scenario.processes)
    training = Run(folder, settings, scenario.processes)
    try:
        wait_for(training, moment, settings, chooser)
        pids = {"all": training.pids, "launcher": lambda: [training.process.pid],
                "a rank": lambda: [pid for at, pid in training.ranks().items() if at == rank]}[victim]()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    finally:
        code = training.finish()
    if victim != "all":  # else nobody is left who could remove it
        assert not list(training.temporary.rglob("secret_*")), "a secret is left"
    if code == 0 or not pids:
        return None
    assert code == (128 + signal.SIGKILL if victim == "a rank" else -signal.SIGKILL), training.errors()
    return victim


def train_under_attack(folder, scenario, expected, chooser):
    """Returns how often it was killed, by moment and victim, and how often it resumed."""
    settings = {**SETTINGS, **scenario.settings, "project": folder / "project"}
    kills, resumes = collections.Counter(), 0
    for _ in range(chooser.randint(1, MOST_KILLS_OF_A_TRAINING)):
        moment = chooser.choice(MOMENTS)
        resumes += bool(checkpoints_of(settings["project"]))
        if moment == "at a failpoint":
            victim = kill_at_a_failpoint(folder, scenario, settings, chooser)
        else:
            victim = kill_from_outside(folder, scenario, settings, moment, chooser)
        kills[moment, victim] += victim is not None
        expect_no_damage(settings["project"])
    resumes += bool(checkpoints_of(settings["project"]))
    code, errors = run(folder, settings, scenario.processes)
    assert code == 0, errors
    expect_same(folder / "log", expected)
    expect_clean(settings["project"], settings["limit"])
    return +kills, resumes


def attack_once(parent, scenario, expected, number):
    folder = parent / str(number)
    folder.mkdir()
    try:
        found = train_under_attack(folder, scenario, expected, random.Random(f"{SEED}-{scenario.name}-{number}"))
    except BaseException as error:
        raise AssertionError(f"{scenario.name}, training {number} of ACCELERANT_SEED={SEED}: {error}") from error
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_killed_again_and_again(tmp_path, scenario):
    expected = undisturbed(tmp_path / "undisturbed", {**SETTINGS, **scenario.settings}, scenario.processes)
    wanted = -(-KILLS * scenario.share // 16)  # rounded up, so that all together are at least KILLS
    kills, resumes, trainings = collections.Counter(), 0, 0
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        while kills.total() < wanted:
            batch = min(JOBS * 4, -(-(wanted - kills.total()) // 3))
            numbers = range(trainings, trainings + batch)
            trainings += batch
            for found, resumed in pool.map(lambda number: attack_once(tmp_path, scenario, expected, number), numbers):
                kills += found
                resumes += resumed
    for (moment, victim), count in sorted(kills.items()):
        print(f"  {moment}, {victim}: {count}")
    print(f"{scenario.name}: {trainings} trainings, killed {kills.total()} times, resumed {resumes} times")
