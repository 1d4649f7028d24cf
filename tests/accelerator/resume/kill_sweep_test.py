"""A training is killed at every place of a save, at every visit, and still ends with the same bits.

By default a few random places are tried; with ACCELERANT_KILL_SWEEP=all, all of them.
"""

import concurrent.futures
import dataclasses
import os
import random
import re
import shutil

import pytest
import replay
from resumable import assert_same, start, undisturbed

SEED = replay.seed_from_environment()
ALL = os.environ.get("ACCELERANT_KILL_SWEEP") == "all"
TINY = {"samples": 16, "epochs": 2, "batch": 4, "save_every": 2}  # 8 batches

PLACES = [
    "training.batch",
    "checkpoint.begun",
    "checkpoint.write",
    "checkpoint.before_sync",
    "checkpoint.file_written",
    "checkpoint.before_manifest",
    "checkpoint.before_folder_sync",
    "checkpoint.before_rename",
    "checkpoint.old_aside",
    "checkpoint.after_rename",
    "checkpoint.committed",
    "checkpoint.before_remove",
    "checkpoint.set_aside",
    "checkpoint.removed",
    "files.remove_entry",
]
ROTATING = [place for place in PLACES if place != "checkpoint.old_aside"]  # nothing is replaced
OF_ALL_RANKS = {"training.batch", "checkpoint.write", "checkpoint.before_sync", "checkpoint.file_written"}
AFTER_A_KILL = ["checkpoint.before_recover", "checkpoint.recovered"]


@dataclasses.dataclass
class Scenario:
    name: str
    processes: int
    settings: dict
    fewest_kills: int  # in the whole sweep
    replaces: bool = False  # always saves to the same folder
    earlier: str = ""  # a kill before the swept one
    places: list = dataclasses.field(default_factory=lambda: PLACES)


SCENARIOS = [
    Scenario("rotating", 1, {"limit": 1}, 100, places=ROTATING),
    Scenario("replacing", 1, {"exchange": 0, "accumulate": 2}, 100, replaces=True),
    Scenario("replacing_after_a_kill", 1, {"exchange": 0}, 2, replaces=True,
             earlier="checkpoint.old_aside:kill@1", places=AFTER_A_KILL),
    Scenario("two_ranks", 2, {"samples": 32, "limit": 1}, 150, places=ROTATING),
    Scenario("two_ranks_in_the_background", 2, {"samples": 32, "limit": 1, "async": 1}, 150, places=ROTATING),
]


def settings_of(scenario, folder):
    settings = {**TINY, **scenario.settings, "project": folder / "project"}
    if scenario.replaces:
        state = folder / "state"
        # A replacement that was interrupted between its two renames leaves the old state here.
        is_there = state.exists() or state.with_name("state.old.tmp").exists()
        settings |= {"folder": state, "resume": state if is_there else "no"}
    return settings


def failpoints_of(scenario, place, visit):
    """One failpoint for each process that can be killed there."""
    kill = f"{place}:kill@{visit}"
    return [kill] if scenario.processes == 1 else [f"{kill}/rank={rank}" for rank in range(scenario.processes)]


def run(scenario, folder, failpoint=None):
    done = start(folder / "log", settings_of(scenario, folder), scenario.processes, failpoint)
    killed = done.returncode == (-9 if scenario.processes == 1 else 137)
    assert killed or done.returncode == 0, f"{failpoint}: {done.stderr}"
    return killed


def killed_at(scenario, folder, failpoint, expected):
    """Whether the place was reached that often. Killed or not, the training ends the same."""
    folder.mkdir()
    if scenario.earlier:
        assert run(scenario, folder, scenario.earlier)
    killed = run(scenario, folder, failpoint)
    if killed:
        assert not run(scenario, folder)
    try:
        assert_same(folder / "log", expected)
    except AssertionError as error:
        raise AssertionError(f"{scenario.name} {failpoint}: {error}") from error
    shutil.rmtree(folder)
    return killed


def sweep(scenario, folder, place, rank, expected):
    """Kills at every visit until there are no more."""
    visit = 1
    while killed_at(scenario, folder / f"{place}-{rank}-{visit}", failpoints_of(scenario, place, visit)[rank], expected):
        visit += 1
    return visit - 1


def known_places():
    source = os.path.join(os.path.dirname(__file__), "../../store/kill_test.cpp")
    return set(re.findall(r'\{"([\w.]+)", Place::', open(source).read()))


def test_places_are_all_known():
    assert known_places() == {*PLACES, *AFTER_A_KILL} - {"training.batch"}


@pytest.mark.skipif(not ALL, reason="takes long")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_visit_of_every_place(tmp_path, scenario):
    expected = undisturbed(tmp_path, settings_of(scenario, tmp_path), scenario.processes)
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        runs = {(place, rank): pool.submit(sweep, scenario, tmp_path, place, rank, expected)
                for place in scenario.places for rank in range(scenario.processes)}
        kills = {key: done.result() for key, done in runs.items()}
    for (place, rank), count in kills.items():
        print(f"  {place}, rank {rank}: {count}")
    print(f"{scenario.name}: killed {sum(kills.values())} times")
    assert sum(kills.values()) >= scenario.fewest_kills


@pytest.mark.skipif(ALL, reason="is part of the whole sweep")
def test_some_visits(tmp_path):
    chooser = random.Random(SEED)
    kills = 0
    for scenario, count in zip(SCENARIOS, (4, 3, 2, 3, 3), strict=True):
        folder = tmp_path / scenario.name
        folder.mkdir()
        expected = undisturbed(folder, settings_of(scenario, folder), scenario.processes)
        for i, place in enumerate(chooser.sample(scenario.places, count)):
            visit = 1 if scenario.earlier else chooser.randint(1, 3)
            failpoint = chooser.choice(failpoints_of(scenario, place, visit)[: None if place in OF_ALL_RANKS else 1])
            killed = killed_at(scenario, folder / str(i), failpoint, expected)
            print(f"  {scenario.name}, {failpoint}: {'killed' if killed else 'not reached'}")
            kills += killed
    # Out of 15. With four saves every place is reached at least three times, unless saves pile up
    # in the background.
    assert kills >= 12
