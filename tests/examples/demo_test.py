"""The demo as a user meets it: what it prints, its exit codes, and Ctrl-C."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

DEMO = os.environ["ACCELERANT_DEMO"]
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
needs_data = pytest.mark.skipif(not DATA.exists(), reason="dataset-fashion-mnist is not installed")


def run(*arguments):
    return subprocess.run([DEMO, *arguments], capture_output=True, text=True, timeout=300)


@needs_data
def test_summary():
    result = run("--limit", "2048", "--epochs", "1", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    for part in (r"test accuracy +\d+\.\d+ %", r"skipped steps +\d+ of 8", r"final scale +\d+",
                 r"fp16 vs fp32 +\d+\.\d+x"):
        assert re.search(part, result.stdout), result.stdout
    # In a pipe the progress is plain lines.
    assert "\r" not in result.stderr and "\x1b" not in result.stderr
    assert "loss" in result.stderr and "scale" in result.stderr


@needs_data
def test_same_seed_same_result():
    accuracy = [re.search(r"test accuracy.*", run("--limit", "512", "--epochs", "1", "--device", "cpu",
                                                  "--precision", "bf16").stdout)[0] for _ in range(2)]
    assert accuracy[0] == accuracy[1]


@needs_data
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupt_ends_it_at_once(number):
    demo = subprocess.Popen([DEMO, "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)
    assert "Fashion-MNIST" in demo.stdout.readline()  # training starts
    time.sleep(0.5)
    start = time.monotonic()
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 128 + number
    assert errors.endswith("interrupted\n")
    assert time.monotonic() - start < 10  # one batch, with much room for a busy machine


@pytest.mark.parametrize("arguments, message", [
    (["--data", "/nonexistent"], "apt-get install dataset-fashion-mnist"),
    (["--precision", "fp8"], "fp8"),
    (["--epochs", "0"], "--epochs"),
    (["--no-such-option"], "--no-such-option"),
])
def test_bad_input_is_one_line(arguments, message):
    result = run(*arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_help():
    result = run("--help")
    assert result.returncode == 0
    for option in ("--precision", "--epochs", "--data", "--device", "--batch-size", "--seed"):
        assert option in result.stdout
