"""Disks that get full at any byte, and have room again. ../accelerator/resume/disk_full_test.py shows what the messages
say; ../store/disk_test.cpp makes each system call fail.

ACCELERANT_ATTACK_DISKS=25 for the long form.
"""

import random
import re
import signal
import subprocess

import pytest
from attack import (SCALE, SEED, SETTINGS, Run, checkpoints_of, expect_clean, expect_no_damage, expect_same, extent, run,
                    undisturbed, wait_until)

DISKS = extent("DISKS", 1)
NARROW = {**SETTINGS, "width": 64, "limit": 4, "on_error": "go_on"}  # checkpoints of 125 kB

# A disk of its own, of SIZE at FOLDER, which has room for more once FOLDER.room exists. At the end, what is on it is
# copied to FOLDER.copy.
ON_A_SMALL_DISK = """
    size=$1 folder=$2; shift 2
    mount -t tmpfs -o size=$size none $folder || exit 99
    ("$@"; echo $? > $folder.code) &
    while [ ! -s $folder.code ]; do
        if [ -e $folder.room ]; then mount -o remount,size=64m $folder; rm $folder.room; touch $folder.has_room; fi
        sleep 0.01
    done
    cp -r $folder/. $folder.copy; exit $(cat $folder.code)
"""


def on_a_small_disk(size, folder):
    return ["unshare", "--mount", "/bin/sh", "-c", ON_A_SMALL_DISK, "sh", size, folder]


def with_small_files(size):
    """Writes that do not fit fail instead of killing the process."""
    return ["/bin/sh", "-c", f"trap '' XFSZ; ulimit -f {size // 512}; exec \"$@\"", "sh"]


def can_mount():
    return subprocess.run(["unshare", "--mount", "/bin/sh", "-c", "mount -t tmpfs none /mnt"],
                          capture_output=True).returncode == 0


def failures(training):
    return training.errors().count("goes on after: The checkpoint")


@pytest.mark.parametrize("processes, settings", [(1, {}), (1, {"async": 1, "precision": "fp16"}), (2, {"async": 1})],
                         ids=["one_rank", "in_the_background", "two_ranks"])
@pytest.mark.parametrize("disk", range(DISKS))
def test_a_full_disk_that_has_room_again(tmp_path, disk, processes, settings):
    """It holds fewer checkpoints than total_limit, so that none is ever removed to make room."""
    if not can_mount():
        pytest.skip("disks cannot be mounted here")
    chooser = random.Random(f"{SEED}-{disk}-{processes}-{settings}")
    project = tmp_path / "project"
    project.mkdir()
    settings = {**NARROW, "samples": 64 * processes, **settings}
    expected = undisturbed(tmp_path / "undisturbed", settings, processes)
    pages = chooser.randrange(48, 100)  # one to three checkpoints
    # Slow enough for saves to be left when there is room again.
    training = Run(tmp_path, {**settings, "project": project, "pace": int(100 * SCALE)}, processes,
                   wrapper=on_a_small_disk(f"{4 * pages}k", project))
    wait_until(lambda: training.has_ended() or failures(training) >= 3 * processes, "failed saves")
    (tmp_path / "project.room").touch()
    assert training.finish() == 0, training.errors()
    assert (tmp_path / "project.has_room").exists(), "too late for this test"
    errors = training.errors()
    assert "No space left on device" in errors
    assert re.search(r"It needs \d+(\.\d)? kB(, and the disk of \S+ has \d.*)?\. ", errors), errors
    expect_same(training.log, expected)
    copy = tmp_path / "project.copy"
    expect_clean(copy, settings["limit"])
    # The last ones are there, as in a training that never met a full disk.
    assert len(checkpoints_of(copy)) == settings["limit"]
    counted = failures(training) // processes
    print(f"{4 * pages} kB: {counted} saves failed, then checkpoints {list(checkpoints_of(copy))} were saved")


@pytest.mark.parametrize("processes, settings", [(1, {}), (2, {"async": 1})], ids=["one_rank", "two_ranks"])
@pytest.mark.parametrize("disk", range(DISKS))
def test_files_that_may_not_grow(tmp_path, disk, processes, settings):
    """Needs no disk of its own. Wherever a write fails, the training ends with the error, and what was saved before is
    still what it resumes from."""
    chooser = random.Random(f"{SEED}-{disk}-{processes}-{settings}")
    settings = {**NARROW, "samples": 64 * processes, "on_error": "end", **settings}
    expected = undisturbed(tmp_path / "undisturbed", settings, processes)
    settings |= {"project": tmp_path / "project"}
    kill = "training.step:kill@9" + ("/rank=0" if processes > 1 else "")
    assert run(tmp_path, settings, processes, failpoint=kill)[0] in (-signal.SIGKILL, 128 + signal.SIGKILL)
    before = list(checkpoints_of(settings["project"]))
    assert before
    limit = chooser.randrange(4 << 10, 80 << 10)  # optimizer.safetensors has 70 kB, the log less than 4
    code, errors = run(tmp_path, settings, processes, wrapper=with_small_files(limit))
    if code != 0:
        assert code not in (75, -signal.SIGXFSZ, 128 + signal.SIGXFSZ), errors
        assert "File too large" in errors, errors
    after = list(checkpoints_of(settings["project"]))
    assert after[:len(before)] == before or code == 0
    expect_no_damage(settings["project"])
    code, errors = run(tmp_path, settings, processes)
    assert code == 0, errors
    expect_same(tmp_path / "log", expected)
    expect_clean(settings["project"], settings["limit"])
