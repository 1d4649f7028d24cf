"""Two runs on one project: at once, and one that was suspended while another took its place. ../accelerator/resume/
one_run_test.py stops a run at each place of a save; here nothing is prepared, and moments are random.

ACCELERANT_ATTACK_RACES=25 for the long form.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
from attack import (COMMAND, SCALE, SEED, SETTINGS, Run, expect_clean, expect_no_damage, expect_same, extent, results_of, run,
                    send, undisturbed)

RACES = extent("RACES", 1)
IN_USE = re.compile(r"The project \S+ is in use: expected one run at a time, got process (\d+) on (\S+), since 20\S+Z")
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What each rank computes if nothing disturbs it, by settings and number of ranks."""
    known = {}

    def of(settings, processes=1):
        key = str((settings, processes))
        if key not in known:
            known[key] = undisturbed(tmp_path_factory.mktemp("expected") / "run", settings, processes)
        return known[key]

    return of


@pytest.mark.parametrize("race", range(RACES))
@pytest.mark.parametrize("is_taken_over", [False, True], ids=["new", "taken_over"])
def test_several_runs_that_start_at_once(tmp_path, expected, race, is_taken_over):
    """One of them trains. The others get an error that names it, or start after its end and have nothing to do."""
    settings = {**SETTINGS, "every": 1}
    project = tmp_path / "project"
    if is_taken_over:
        killed = run(tmp_path, {**settings, "project": project}, failpoint="training.step:kill@3", name="killed")
        assert killed[0] == -signal.SIGKILL, killed
    runs = [Run(tmp_path, {**settings, "project": project, "pace": 60}, name=f"run{number}") for number in range(3)]
    codes = [one.finish() for one in runs]
    errors = [one.errors() for one in runs]
    assert 0 in codes, errors
    for code, text in zip(codes, errors):
        if code == 0:
            assert "was not saved" not in text, text
            continue
        found = IN_USE.search(text)
        assert found, text
        # Who is about to take the lock is named, too, and may be refused itself.
        assert int(found[1]) in [one.process.pid for one in runs], text
        assert found[2] == os.uname().nodename
    print(f"exit codes {codes}")
    trained = [one for one in runs if one.count_steps() > 0]
    assert len(trained) == 1, "two runs trained at once"
    if not is_taken_over:
        expect_same(trained[0].log, expected(settings))
    else:
        (rest,), (whole,) = results_of(trained[0].log, 1), expected(settings)
        assert rest.items() <= whole.items() and rest["model"] == whole["model"]
    expect_clean(project, settings["limit"])


def can_play_a_container():
    done = subprocess.run([*CONTAINER, "true"], capture_output=True)
    return done.returncode == 0


@pytest.mark.parametrize("race", range(RACES))
@pytest.mark.parametrize("settings", [{"every": 1}, {"every": 1, "async": 1, "precision": "fp16"}],
                         ids=["synchronous", "in_the_background"])
def test_suspended_restarted_and_continued(tmp_path, expected, race, settings):
    """On the same machine, the second run is refused. In a container, where it cannot see the first one, it takes over
    after 90 seconds, and when the first one continues, it can no longer change anything."""
    if not can_play_a_container():
        pytest.skip("namespaces cannot be made here")
    settings = {**SETTINGS, **settings}
    results = expected(settings)
    chooser = random.Random(f"{SEED}-{settings}-{race}")
    settings |= {"project": tmp_path / "project"}
    first = Run(tmp_path, {**settings, "pace": 30}, name="first")
    second = None
    try:
        first.wait_for_steps(chooser.randint(1, 6))
        if chooser.random() < 0.6:
            first.wait_for_save(settings["project"])
        time.sleep(chooser.choice([0, chooser.uniform(0, 0.03)]))
        first.suspend()

        code, errors = run(tmp_path, settings, name="same_machine")
        assert code not in (0, 75), errors
        assert IN_USE.search(errors)[1] == str(first.process.pid)
        assert "which is stopped but may continue" in errors, errors

        lock = settings["project"] / "accelerant.lock"
        long_ago = time.time() - 100
        os.utime(lock, (long_ago, long_ago))  # instead of waiting
        # Slow enough to go on until the first one has noticed.
        second = Run(tmp_path, {**settings, "pace": int(150 * SCALE)}, name="second", wrapper=CONTAINER)
        second.wait_for_steps(chooser.randint(1, 3))
        assert not second.has_ended(), second.errors()
        os.kill(first.process.pid, signal.SIGCONT)
        code = first.finish()
        assert not second.has_ended(), "too early for this test"
        assert code not in (0, 75), first.errors()
        assert "belongs to another run now: expected process" in first.errors(), first.errors()
        expect_no_damage(settings["project"])  # while the second one saves and removes
        assert second.finish() == 0, second.errors()
    finally:
        for one in filter(None, [first, second]):
            one.kill_all()
    assert "which has given no sign of life for" in second.errors(), second.errors()
    assert not re.search("was not saved|cannot remove", second.errors()), second.errors()
    (found,) = results_of(second.log, 1)
    assert found.items() <= results[0].items()
    assert (found["model"], found["optimizer"]) == (results[0]["model"], results[0]["optimizer"])
    # Together they made all steps.
    (begun,) = results_of(first.log, 1)
    assert {**begun, **found} == results[0]
    expect_clean(settings["project"], settings["limit"])


def test_a_project_that_was_copied_with_its_lock(tmp_path, expected):
    """The copy of a project that is in use says how to use it."""
    settings = {**SETTINGS, "every": 1}
    first = Run(tmp_path, {**settings, "project": tmp_path / "project", "pace": 60}, name="first")
    first.wait_for_steps(4)
    first.suspend()
    shutil.copytree(tmp_path / "project", tmp_path / "copy")
    code, errors = run(tmp_path, {**settings, "project": tmp_path / "copy"}, name="second")
    assert code not in (0, 75) and f"is a copy, remove {tmp_path / 'copy' / 'accelerant.lock'}" in errors, errors
    send(first.process.pid, signal.SIGCONT)  # not before: its end would free the copy's lock, too
    (tmp_path / "copy" / "accelerant.lock").unlink()
    code, errors = run(tmp_path, {**settings, "project": tmp_path / "copy"}, name="second")
    assert code == 0, errors
    assert first.finish() == 0, first.errors()
    for log in first.log, tmp_path / "second":
        assert results_of(log, 1)[0]["model"] == expected(settings)[0]["model"]
    assert subprocess.run([COMMAND, "verify", tmp_path / "copy"], capture_output=True).returncode == 0


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_commands_beside_a_training(tmp_path, command):
    """Checkpoints that the training removes while they are read are not damaged."""
    project = tmp_path / "project"
    training = Run(tmp_path, {**SETTINGS, "every": 1, "limit": 3, "epochs": 4, "pace": 20, "project": project})
    training.wait_for_steps(4)
    calls, removed = 0, 0
    while not training.has_ended():
        done = subprocess.run([COMMAND, command, project], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        calls += 1
        removed += done.stdout.count("removed  ")
    assert training.finish() == 0, training.errors()
    assert calls > 0, "too late for this test"
    print(f"{calls} calls of accelerant {command}, {removed} checkpoints removed meanwhile")
