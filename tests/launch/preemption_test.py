"""Ranks that are asked to save and stop: exit code 75."""

import signal

import pytest
from launching import finish, launch, numbers_in, send, shell, start, wait_for

ALL_SAVED = "[accelerant] stopped on request: all ranks saved their state (exit code 75)"

# Saves when asked, and says so as the library does.
SAVER = """
    trap 'touch $ACCELERANT_SAVING_FILE; {save}; exit 75' TERM USR1
    echo $$ > {folder}/$RANK.pid
    while :; do sleep 0.02; done
"""


def said(result):
    """Only the launcher's lines; shells print a line of their own when a signal ends a child."""
    return [line for line in result.err_lines if line.startswith("[accelerant]")]


def saver(folder, save=":"):
    return shell(SAVER.format(folder=folder, save=save))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_launcher(tmp_path, number):
    launcher = start(["--num-processes", 3, "--max-restarts", 2], saver(tmp_path))
    numbers_in(tmp_path, 3)
    send(launcher, number)
    result = finish(launcher)
    assert (result.code, said(result)) == (75, [ALL_SAVED])


def test_ranks_that_stop_by_themselves_are_not_restarted(tmp_path):
    """One rank got the signal, and the others have agreed to stop too; they need a while to save."""
    result = launch(["--num-processes", 3, "--max-restarts", 2], shell(f"""
        echo $$ >> {tmp_path}/starts
        [ $RANK = 1 ] && {{ echo $$ > {tmp_path}/1.pid; exit 75; }}
        while [ ! -s {tmp_path}/1.pid ]; do sleep 0.01; done
        while [ -e /proc/$(cat {tmp_path}/1.pid) ]; do sleep 0.01; done
        trap 'exit 9' TERM
        exit 75"""))
    assert (result.code, said(result)) == (75, [ALL_SAVED])
    assert len((tmp_path / "starts").read_text().split()) == 3


def test_one_process_is_told_as_well(tmp_path):
    launcher = start([], saver(tmp_path))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGTERM)
    result = finish(launcher)
    assert (result.code, said(result)) == (75, [ALL_SAVED])


def test_a_rank_that_saves_is_not_killed_at_the_end_of_the_grace(tmp_path):
    """Rank 0 ends when rank 1 has begun to save. Saving takes much longer than the grace period."""
    launcher = start(["--num-processes", 2, "--grace", 0.02], saver(tmp_path, f"""
        if [ $RANK = 1 ]; then touch {tmp_path}/saving; for i in $(seq 30); do sleep 0.02; done
        else while [ ! -e {tmp_path}/saving ]; do sleep 0.01; done; fi"""))
    numbers_in(tmp_path, 2)
    send(launcher, signal.SIGUSR1)
    result = finish(launcher)
    assert (result.code, said(result)) == (75, [ALL_SAVED])


def test_saving_has_an_end(tmp_path):
    launcher = start(["--num-processes", 1, "--grace", 0.01, "--saving-grace", 0.5], saver(tmp_path, """
        while :; do sleep 0.05; done"""))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGTERM)
    result = finish(launcher)
    assert result.code == 143
    assert said(result) == ["[accelerant] stopped by SIGTERM; 1 rank did not end in time and had to be killed"]


def test_a_rank_that_does_not_stop_with_the_others_is_stopped(tmp_path):
    result = launch(["--num-processes", 2, "--grace", 0.2], shell("[ $RANK = 0 ] && exit 75; sleep 1000"))
    assert result.code == 143
    assert said(result) == ["[accelerant] rank 0 saved its state (exit code 75), but rank 1 did not end and had to"
                                " be stopped: SIGTERM (exit code 143)"]


def test_a_failure_beside_it_is_a_failure(tmp_path):
    result = launch(["--num-processes", 2, "--max-restarts", 3], shell(f"""
        [ $RANK = 0 ] && {{ echo $$ > {tmp_path}/0.pid; exit 75; }}
        while [ ! -s {tmp_path}/0.pid ]; do sleep 0.01; done
        while [ -e /proc/$(cat {tmp_path}/0.pid) ]; do sleep 0.01; done
        echo "disk full" >&2; exit 3"""))
    assert result.code == 3
    assert said(result) == [
        "[accelerant] rank 1 of 2 failed: exit code 3; this was restart 0 of 3",
        "[accelerant] rank 0 saved its state (exit code 75)",
        "[accelerant] the last lines of its standard error:", "[accelerant]   | disk full"]


def test_ranks_that_had_ended_before_are_named(tmp_path):
    launcher = start(["--num-processes", 2], shell(f"""
        [ $RANK = 1 ] && {{ echo $$ > {tmp_path}/other; exit 0; }}
        while [ ! -s {tmp_path}/other ]; do sleep 0.01; done
        while [ -e /proc/$(cat {tmp_path}/other) ]; do sleep 0.01; done
        {SAVER.format(folder=tmp_path, save=':')}"""))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGUSR1)
    result = finish(launcher)
    assert result.code == 75
    assert said(result) == ["[accelerant] stopped on request: rank 0 saved its state (exit code 75)",
                                "[accelerant] rank 1 had ended with exit code 0 before"]


def test_a_user_signal_alone_stops_nobody(tmp_path):
    """A rank may use this signal for something else."""
    launcher = start(["--num-processes", 2], shell(f"""
        trap 'touch {tmp_path}/$RANK.asked' USR1
        echo $$ > {tmp_path}/$RANK.pid
        while [ ! -e {tmp_path}/end ]; do sleep 0.02; done
        exit 0"""))  # the signal may have ended the last sleep
    numbers_in(tmp_path, 2)
    for _ in range(2):
        send(launcher, signal.SIGUSR1)
        wait_for(lambda: len(list(tmp_path.glob("*.asked"))) == 2, "the signal")
        for file in tmp_path.glob("*.asked"):
            file.unlink()
    (tmp_path / "end").touch()
    result = finish(launcher)
    assert (result.code, said(result)) == (0, [])


def test_nothing_is_left_in_the_log_folder(tmp_path):
    launcher = start(["--num-processes", 1, "--log-dir", tmp_path / "logs", "--run-id", "mine"], saver(tmp_path))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGTERM)
    assert finish(launcher).code == 75
    names = {file.name for file in (tmp_path / "logs/mine/attempt_0/0").iterdir()}
    assert names == {"stdout.log", "stderr.log"}
