"""One run at a time saves to a project: a second one is refused, and a run that was suspended while another one took
its project over cannot damage what that one saves."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from resumable import (Running, assert_same, command_of, environment_with, expect_intact, name_of_case, numbers_of,
                       start, undisturbed)

SETTINGS = {"samples": 48, "epochs": 2, "batch": 4, "save_every": 1}
LEASE = 1000


def settings_in(tmp_path, **more):
    return {**SETTINGS, **more, "project": tmp_path / "project"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What each process computes if nothing disturbs it, by the number of processes."""
    found = {}

    def of(processes):
        if processes not in found:
            found[processes] = undisturbed(tmp_path_factory.mktemp("expected"), SETTINGS, processes)
        return found[processes]

    return of


def wait_until(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def is_stopped(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("processes, settings, resume", [
    (1, {"limit": 2}, "auto"), (1, {"limit": 2}, "default"), (1, {"async": 1}, "no"), (2, {"limit": 2}, "auto"),
], ids=name_of_case)
def test_a_second_run_is_refused(tmp_path, expected, processes, settings, resume):
    settings = settings_in(tmp_path, resume="auto", **settings)
    first = Running(tmp_path / "log", settings, processes, "training.batch:sleep=100")
    first.wait_for_batches(3)
    pid = first.pid_of_rank(0)
    began = time.monotonic()
    second = start(tmp_path / "second", {**settings, "resume": resume}, processes)
    assert first.process.poll() is None, "the first run has ended too early for this test"
    assert second.returncode not in (0, 75)
    assert time.monotonic() - began < 20
    message = rf"The project \S+ is in use: expected one run at a time, got process {pid} on \S+, since 20\S+Z; wait"
    assert re.search(message, second.stderr), second.stderr
    assert not list(tmp_path.glob("second.*")) or not any(open(log).read() for log in tmp_path.glob("second.*"))
    code, errors = first.finish()
    assert code == 0, errors
    assert not any("was not saved" in line for line in errors)
    assert_same(tmp_path / "log", expected(processes))
    expect_intact(settings["project"])
    assert [path.name for path in settings["project"].iterdir()] == ["checkpoints"]


def test_the_project_of_a_killed_run_is_taken_over(tmp_path, expected):
    settings = settings_in(tmp_path)
    killed = start(tmp_path / "log", settings, 1, "training.batch:kill@5")
    assert killed.returncode == -9
    assert (settings["project"] / "accelerant.lock").exists()
    began = time.monotonic()
    done = start(tmp_path / "log", settings)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    taken = re.findall(r"is taken over from process \d+ on \S+, since \S+, which has ended", done.stderr)
    assert len(taken) == 1, done.stderr
    assert_same(tmp_path / "log", expected(1))


def test_a_stopped_run_of_this_machine_keeps_its_project(tmp_path):
    settings = settings_in(tmp_path, lease=LEASE)
    first = Running(tmp_path / "log", settings, 1, "training.batch:stop@4")
    wait_until(lambda: is_stopped(first.process.pid), "not stopped")
    time.sleep(2 * LEASE / 1000)
    second = start(tmp_path / "second", settings)
    assert second.returncode not in (0, 75)
    assert "which is stopped but may continue" in second.stderr, second.stderr
    os.kill(first.process.pid, signal.SIGCONT)
    code, errors = first.finish()
    assert code == 0, errors
    expect_intact(settings["project"])


@pytest.mark.parametrize("place, settings", [
    ("training.batch:stop@4", {}), ("checkpoint.begun:stop@4", {}), ("checkpoint.file_written:stop@20", {}),
    ("checkpoint.before_manifest:stop@4", {}), ("checkpoint.before_rename:stop@4", {}),
    ("checkpoint.after_rename:stop@4", {}), ("checkpoint.before_remove:stop@2", {}),
    ("checkpoint.set_aside:stop@2", {}), ("files.remove_entry:stop@8", {}),
    ("training.batch:stop@4", {"async": 1}), ("checkpoint.before_rename:stop@4", {"async": 1}),
], ids=name_of_case)
def test_a_run_that_was_suspended_while_another_machine_took_over(tmp_path, expected, place, settings):
    """Wherever it was stopped. The other run is in the middle of its training when the first continues."""
    settings = settings_in(tmp_path, lease=LEASE, limit=2, **settings)
    first = Running(tmp_path / "first", {**settings, "machine": "one"}, 1, place)
    wait_until(lambda: is_stopped(first.process.pid), "not stopped")
    second = Running(tmp_path / "second", {**settings, "machine": "two"}, 1, "training.batch:sleep=40")
    second.wait_for_batches(5)
    os.kill(first.process.pid, signal.SIGCONT)
    code, errors = first.finish()
    assert code not in (0, 75)
    assert any("belongs to another run now: expected process" in line for line in errors), errors
    assert second.process.poll() is None, "the second run has ended too early for this test"
    code, errors = second.finish()
    assert code == 0, errors
    assert not any("was not saved" in line or "cannot remove" in line for line in errors), errors
    assert any("which has given no sign of life for 1 second" in line for line in errors), errors
    expect_intact(settings["project"])
    last = numbers_of(settings["project"])
    assert len(last) == 2 and last[1] == last[0] + 1
    # What the second run computed is the rest of the training.
    (results,) = [dict(line.rstrip("\n").split(" = ") for line in open(tmp_path / "second.0"))]
    assert results["model"] == expected(1)[0]["model"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_project_that_cannot_be_looked_into_is_not_empty(tmp_path, processes):
    """The training must not begin anew. A link to itself stops root as well."""
    settings = settings_in(tmp_path, save_every=0)
    settings["project"].mkdir()
    (settings["project"] / "checkpoints").symlink_to("checkpoints")
    for resume in ["auto", "default"]:
        refused = start(tmp_path / "log", {**settings, "resume": resume}, processes)
        assert refused.returncode not in (0, 75)
        assert "checkpoints cannot be accessed: Too many levels of symbolic links" in refused.stderr, refused.stderr
        assert not any(open(log).read() for log in tmp_path.glob("log.*"))


@pytest.mark.parametrize("private", ["", "model.safetensors", "manifest.json"], ids=["folder", "weights", "manifest"])
def test_a_project_of_another_user(tmp_path, private):
    """They may not look into it, or may not read a file of the newest checkpoint, and get no older one instead."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    settings = settings_in(tmp_path, save_every=4 if private else 0)
    assert start(tmp_path / "log", settings).returncode == 0
    checkpoints = settings["project"] / "checkpoints"
    newest = checkpoints / f"checkpoint_{max(numbers_of(settings['project']))}"
    if private:
        assert len(numbers_of(settings["project"])) > 1
        os.chmod(newest / private, 0o600)
    else:
        os.chmod(checkpoints, 0o700)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and folder != folder.parent and str(folder).startswith("/tmp/pytest"):
            folder.chmod(0o777)
    try:
        refused = subprocess.run(command_of(tmp_path / "theirs", settings), env=environment_with(None), user=65534,
                                 group=65534, extra_groups=[], capture_output=True, text=True, timeout=120)
    except PermissionError as error:
        pytest.skip(f"another user cannot run the program: {error}")
    if "error while loading shared libraries" in refused.stderr:
        pytest.skip("another user cannot load libtorch")
    assert refused.returncode not in (0, 75)
    assert f"{private or 'checkpoints'} cannot be read: Permission denied" in refused.stderr, refused.stderr
    assert not private or f"not resumed from a checkpoint before {newest}" in refused.stderr, refused.stderr
    assert not any(open(log).read() for log in tmp_path.glob("theirs.*"))
