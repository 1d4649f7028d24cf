"""The demo as a user sees it: what it prints, its exit codes, and Ctrl-C."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

DEMO = os.environ["ACCELERANT_DEMO"]
SOURCES = pathlib.Path(__file__).parents[2] / "examples" / "demo"
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
needs_data = pytest.mark.skipif(not DATA.exists(), reason="dataset-fashion-mnist is not installed")

# A short form of every run: 80 updates of a small network. The kill comes after 53 of them.
SHORT = ["--device", "cpu", "--limit", "5120", "--epochs", "1", "--batch-size", "64", "--width", "256"]


# On a busy machine, threads that wait for each other make such small steps many times slower.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*arguments, **variables):
    return subprocess.run([DEMO, *arguments], capture_output=True, text=True, timeout=300,
                          env={**ENVIRONMENT, **variables})


def table_of(output):
    """The rows under the header: name, samples/s, speed relative to the first, accuracy, equal."""
    lines = output.splitlines()
    header = next(i for i, line in enumerate(lines) if "samples/s" in line and "x plain" in line)
    rows = []
    for line in lines[header + 1:]:
        match = re.fullmatch(r"\d\. (.+?) +([\d,]+) +(\d+\.\d\d) +(\d+\.\d\d)  (-|yes|NO)", line)
        if not match:
            return rows
        rows.append(match.groups())


@needs_data
def test_every_run_of_the_demo(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    result = run(*SHORT, "--precision", "bf16", TMPDIR=str(work))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # no progress bar without a terminal
    lines = result.stdout.splitlines()
    assert len(lines) <= 40 and all(len(line) < 80 for line in lines), result.stdout

    rows = table_of(result.stdout)
    assert [row[0] for row in rows] == [
        "Plain libtorch, float32", "Accelerant, float32", "Accelerant, bfloat16",
        "Accelerant, bfloat16, two processes", "The same, one process killed"]
    assert rows[0][2] == "1.00"
    assert all(float(row[3]) > 40 for row in rows)  # better than guessing, even after so short a run
    assert abs(float(rows[0][3]) - float(rows[1][3])) < 10

    # One process was killed, and the result is the same to the last bit.
    output = " ".join(result.stdout.split())
    assert re.search(r"kill -9 \d+ # rank 1, after update \d+ of 80", output)
    assert "restart 1 of 1: rank 1 of 2 failed: SIGKILL" in output
    assert "the losses of all 80 updates are equal, bit for bit; the final weights are equal" in output
    assert [row[4] for row in rows] == ["-", "-", "-", "-", "yes"]
    assert rows[3][3] == rows[4][3]
    lines, removed, added = line_difference(tmp_path / "diff")
    assert f"{removed} of {lines} lines removed, {added} added" in output
    assert not list(work.iterdir())  # it cleans up


def line_difference(folder):
    """What diff says about the two loops, without blank lines, comments and indentation."""
    folder.mkdir()
    for half in ("plain", "accelerant"):
        text = (SOURCES / f"{half}_loop.cpp").read_text()
        code = [line.strip() for line in text.splitlines()]
        code = [line for line in code if line and not line.startswith("//")]
        (folder / half).write_text("".join(line + "\n" for line in code))
    diff = subprocess.run(["diff", "-d", folder / "plain", folder / "accelerant"], capture_output=True, text=True)
    lines = (folder / "plain").read_text().count("\n")
    signs = [line[:1] for line in diff.stdout.splitlines()]
    return lines, signs.count("<"), signs.count(">")


@needs_data
def test_precision_is_one_that_the_machine_is_fast_in():
    """Without --precision the demo uses 16 bits only if the CPU has instructions for them."""
    demo = subprocess.Popen([DEMO, *SHORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=ENVIRONMENT)
    line = next(line for line in demo.stdout if line.startswith("   precision"))
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=60)
    flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    if not flags & {"amx_bf16", "avx512_bf16", "bf16"}:
        assert "float32: this CPU has no instructions for bfloat16" in line
    else:
        assert "bfloat16: this CPU has" in line or "float32: this CPU has" in line


@needs_data
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("title", ["1. Plain libtorch", "two processes"])
def test_interrupt_ends_it_cleanly(tmp_path, number, title):
    demo = subprocess.Popen([DEMO, *SHORT, "--precision", "fp32"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, "TMPDIR": str(tmp_path)})
    next(line for line in demo.stdout if title in line)
    time.sleep(0.5)
    start = time.monotonic()
    demo.send_signal(number)
    demo.send_signal(number)  # as `timeout` does
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number
    assert errors.endswith("accelerant-demo: interrupted\n")
    assert time.monotonic() - start < 15  # generous, for a busy machine
    assert not list(tmp_path.iterdir())
    time.sleep(0.2)
    assert not processes_with(str(tmp_path))  # nothing that it started still runs


def processes_with(text):
    """The ids of processes that have the text in their environment or command line."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                if process.name != str(os.getpid()) and text.encode() in (process / name).read_bytes():
                    found.append(process.name)
            except OSError:
                pass  # it has ended, or belongs to somebody else
    return found


@pytest.mark.parametrize("arguments, message", [
    (["--precision", "fp8"], "fp8"),
    (["--epochs", "0"], "--epochs"),
    (["--no-such-option"], "--no-such-option"),
])
def test_wrong_options_are_one_line(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr and "see --help" in result.stderr
    assert result.stderr.count("\n") == 1


def test_missing_data_says_what_to_install():
    result = run("--data", "/nonexistent")
    assert result.returncode == 1
    assert "apt-get install dataset-fashion-mnist" in result.stderr
    assert result.stderr.count("\n") == 1


def test_under_a_launcher_it_refuses():
    result = run(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                 MASTER_PORT="29500")
    assert result.returncode == 2
    assert "without a launcher" in result.stderr


def test_help():
    result = run("--help")
    assert result.returncode == 0
    for option in ("--precision", "--device", "--epochs", "--batch-size", "--width", "--limit", "--seed",
                   "--data"):
        assert option in result.stdout
    assert "--train" not in result.stdout  # only the demo itself uses it
