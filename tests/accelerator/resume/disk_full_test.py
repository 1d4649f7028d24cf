"""A failed save is an error in every process but does no harm: the training continues, and earlier
checkpoints stay."""

import re
import subprocess

import pytest
from resumable import (assert_same, command_of, environment_with, expect_intact, name_of_case, numbers_of, start,
                       undisturbed)

SETTINGS = {"samples": 48, "epochs": 2, "batch": 4, "on_error": "go_on"}

# The files of some ranks may not grow beyond 4 KiB, less than the random generators of a rank need;
# this shell counts blocks of 512 bytes. A write that does not fit fails instead of killing the
# process.
LIMITED = """
    case " {ranks} " in *" ${{RANK:-0}} "*) trap '' XFSZ; ulimit -f 8;; esac
    exec "$@"
"""


def limited(ranks):
    return ["/bin/sh", "-c", LIMITED.format(ranks=" ".join(map(str, ranks))), "sh"]


def failures_of(stderr, rank):
    return [line for line in stderr.splitlines() if f"rank {rank} goes on: The checkpoint" in line]


@pytest.mark.parametrize("processes, failing, settings", [
    (1, [0], {}),
    (1, [0], {"async": 1}),
    (2, [1], {}),
    (2, [0, 1], {"async": 1, "accumulate": 2}),
], ids=name_of_case)
def test_files_that_cannot_grow(tmp_path, processes, failing, settings):
    settings = {**SETTINGS, "save_every": 2, **settings, "project": tmp_path / "project"}
    log = tmp_path / "log"
    expected = undisturbed(tmp_path, settings, processes)
    # Three saves so far. The third has waited for the first, also in the background. At least two
    # more follow.
    start(log, settings, processes, "training.batch:kill@7/rank=0" if processes > 1 else "training.batch:kill@7")
    before = numbers_of(settings["project"])
    assert before and before[0] == 0
    hindered = start(log, settings, processes, wrapper=limited(failing))
    assert hindered.returncode == 0, hindered.stderr
    assert f"resuming from {settings['project']}" in hindered.stderr
    # The losses are those of a training whose saves succeed.
    assert_same(log, expected)
    assert numbers_of(settings["project"]) == before
    expect_intact(settings["project"])
    counts = [len(failures_of(hindered.stderr, rank)) for rank in range(processes)]
    assert counts == [counts[0]] * processes and counts[0] >= 2, hindered.stderr
    assert "File too large" in hindered.stderr
    # With space again, it resumes from the earlier one.
    again = start(log, settings, processes)
    assert again.returncode == 0 and "goes on" not in again.stderr, again.stderr
    assert numbers_of(settings["project"])[-1] > before[-1]
    assert_same(log, expected)


def test_an_error_that_is_not_caught_ends_the_training(tmp_path):
    settings = {**SETTINGS, "save_every": 2, "on_error": "end", "project": tmp_path / "project"}
    failed = start(tmp_path / "log", settings, 2, wrapper=limited([1]))
    assert failed.returncode not in (0, 75)
    assert "rank 1: " in failed.stderr and "File too large" in failed.stderr, failed.stderr
    assert list((tmp_path / "project" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_folder_that_cannot_be_made(tmp_path, processes):
    """The project is inside a file, which stops root as well. The training does not begin."""
    (tmp_path / "file").write_text("mine")
    refused = start(tmp_path / "log", {**SETTINGS, "project": tmp_path / "file" / "project"}, processes)
    assert refused.returncode not in (0, 75)
    assert "project.dir cannot be used to save" in refused.stderr and "which is not a folder" in refused.stderr
    assert (tmp_path / "file").read_text() == "mine"


def in_mount(kind, folder, copy, command):
    """Runs the command with a private disk at `folder`, and copies its content at the end."""
    script = f"""
        mount {kind} || exit 99
        "$@"; code=$?
        cp -r {folder}/. {copy}; exit $code
    """
    return ["unshare", "--mount", "/bin/sh", "-c", script, "sh", *command]


def run_in_mount(kind, folder, copy, log, settings, processes, wrapper=()):
    copy.mkdir()
    command = in_mount(kind, folder, copy, [*wrapper, *command_of(log, settings, processes)])
    done = subprocess.run(command, env=environment_with(None), capture_output=True, text=True, timeout=120)
    if "unshare" in done.stderr or done.returncode == 99:
        pytest.skip(f"disks cannot be mounted here: {done.stderr.strip()}")
    return done


@pytest.mark.parametrize("processes, settings", [(1, {}), (2, {"async": 1})], ids=name_of_case)
def test_a_disk_that_gets_full(tmp_path, processes, settings):
    project, copy, log = tmp_path / "project", tmp_path / "copy", tmp_path / "log"
    project.mkdir()
    settings = {**SETTINGS, "save_every": 1, **settings, "project": project}
    expected = undisturbed(tmp_path, settings, processes)
    done = run_in_mount(f"-t tmpfs -o size=256k none {project}", project, copy, log, settings, processes)
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stderr
    for rank in range(processes):
        assert len(failures_of(done.stderr, rank)) >= 3, done.stderr
    assert_same(log, expected)
    assert numbers_of(copy)[:2] == [0, 1]
    expect_intact(copy)
    # The error says what is needed, and what can go.
    assert re.search(r"It needs \d+(\.\d)? kB(, and the disk of \S+ has \d.*)?\. ", done.stderr), done.stderr
    last = numbers_of(copy)[-1]
    assert re.search(rf"Earlier checkpoints are kept, {last + 1} of them, .* remove \S+/checkpoint_0, and set "
                     rf"project.total_limit to {last} or less", done.stderr), done.stderr


def test_a_disk_that_was_full_is_of_use_again(tmp_path):
    """With the advice of the error followed, all saves work."""
    project, copy, log = tmp_path / "project", tmp_path / "copy", tmp_path / "log"
    project.mkdir()
    settings = {**SETTINGS, "save_every": 1, "project": project}
    command = command_of(log, settings)
    again = " ".join(str(part) for part in [*command, "--limit=$fit"])
    script = f"""
        "$@" || exit 1
        fit=$(($(ls {project}/checkpoints | wc -l) - 1))
        rm -r {project}/checkpoints/checkpoint_0
        {again.replace(str(log), str(log) + "_again")} --resume=no
    """
    done = run_in_mount(f"-t tmpfs -o size=256k none {project}", project, copy, log, settings, 1,
                        ["/bin/sh", "-c", script, "sh"])
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.split("its project has checkpoints", 1) if "its project has" in done.stderr else (
        done.stderr.rsplit("Earlier checkpoints are kept", 1))
    assert "No space left on device" in first and "No space left on device" not in second, done.stderr
    expect_intact(copy)
    assert numbers_of(copy)[-1] > 20


def test_a_disk_that_is_read_only(tmp_path):
    """The training resumes from it and continues."""
    project, copy, log = tmp_path / "project", tmp_path / "copy", tmp_path / "log"
    settings = {**SETTINGS, "save_every": 2, "project": project}
    expected = undisturbed(tmp_path, settings, 1)
    start(log, settings, 1, "training.batch:kill@5")
    mounts = f"--bind {project} {project} && mount -o remount,bind,ro {project}"
    done = run_in_mount(mounts, project, copy, log, settings, 1)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr and "Read-only file system" in done.stderr, done.stderr
    assert_same(log, expected)
    assert numbers_of(project) == [0, 1]
