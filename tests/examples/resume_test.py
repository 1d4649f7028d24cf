"""The accelerated examples, stopped by Ctrl-C and started again, end as if nothing had happened."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

CHAR_GPT = os.environ["ACCELERANT_CHAR_GPT"]
CLASSIFIER = os.environ["ACCELERANT_CLASSIFIER"]
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")

# On the CPU, where the same program gives the same bits.
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
LIMIT = 500  # seconds


def run(*command):
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def interrupt_after_first_save(project, *command):
    training = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)
    give_up = time.monotonic() + LIMIT
    while not (project / "checkpoints" / "checkpoint_0").exists():
        assert training.poll() is None and time.monotonic() < give_up, training.communicate()
        time.sleep(0.01)
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=LIMIT)
    assert training.returncode == -signal.SIGINT  # it was still training


def resumed_lines(lines, announcement):
    """What a resumed training run prints after the announcement."""
    begin = [line.startswith(announcement) for line in lines].index(True)
    return lines[begin + 1:]


def test_char_gpt(tmp_path):
    project = tmp_path / "gpt"
    arguments = ["41"]  # steps; saved after 20 and after 40
    command = [CHAR_GPT, "--project", str(project), *arguments]
    interrupt_after_first_save(project, *command)
    rest = resumed_lines(run(*command), "resuming after step ")
    # The remaining losses, and the text that the network writes.
    assert len(rest) > 1
    assert rest == run(CHAR_GPT, *arguments)[-len(rest):]


@pytest.mark.skipif(not DATA.exists(), reason="dataset-fashion-mnist is not installed")
def test_classifier(tmp_path):
    project = tmp_path / "classifier"
    arguments = ["4", str(DATA), "1280"]  # epochs of 10 steps
    command = [CLASSIFIER, "--project", str(project), *arguments]
    interrupt_after_first_save(project, *command)
    rest = resumed_lines(run(*command), "resuming after epoch ")
    assert rest and "epoch 4 test accuracy" in rest[-1]
    assert rest == run(CLASSIFIER, *arguments)[-len(rest):]
    # Nothing is left to do, and two of the four checkpoints are kept.
    assert run(*command) == ["resuming after epoch 4"]
    assert sorted(path.name for path in (project / "checkpoints").iterdir()) == [
        "checkpoint_2", "checkpoint_3"]


def test_an_option_without_value_is_one_line():
    result = subprocess.run([CHAR_GPT, "--project"], env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "error: --project needs a value\n"
