"""The command itself: its options, help, and the commands besides launch."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from launching import COMMAND, DEADLINE, clean_environment

SOURCE = pathlib.Path(__file__).parents[2]


def run(*arguments, command=COMMAND, **variables):
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=DEADLINE,
                          env=clean_environment(**variables), stdin=subprocess.DEVNULL)


def test_version():
    version = re.search(r'ACCELERANT_VERSION "(.+)"', (SOURCE / "include/accelerant/version.h").read_text())[1]
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"accelerant {version}\n")


def test_no_command_shows_help():
    result = run()
    assert result.returncode == 1
    assert result.stdout == run("--help").stdout
    for command in "launch", "test", "env":
        assert f"\n  {command} " in result.stdout


def test_unknown_command():
    result = run("fly")
    assert result.returncode == 1
    assert "there is no command 'fly'" in result.stderr


@pytest.mark.parametrize("command", ["launch", "test", "env"])
def test_help_of_commands(command):
    result = run(command, "--help")
    assert result.returncode == 0
    assert f"Usage: accelerant {command} [OPTIONS]" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_help_tells_every_option_once_with_its_default():
    text = run("launch", "--help").stdout
    for option in ("num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port",
                   "mixed-precision", "gradient-accumulation-steps", "cpu", "max-restarts", "log-dir", "tee",
                   "redirect", "monitor-interval", "standalone", "debug", "num-cpu-threads-per-process", "quiet",
                   "grace", "saving-grace", "run-id"):
        assert len(re.findall(rf"^  --{option}\b", text, re.MULTILINE)) == 1, option
        assert "--" + option.replace("-", "_") not in text or "-" not in option
    for block in re.findall(r"^  --\S+ [A-Z]+ .*?(?=^  --|^$)", text, re.MULTILINE | re.DOTALL):
        assert "Default:" in block or "Needed" in block, block


def test_both_spellings():
    for spelling in "--num-processes", "--num_processes":
        for arguments in ([spelling, "2"], [f"{spelling}=2"]):
            result = run("launch", *arguments, "sh", "-c", "echo $WORLD_SIZE")
            assert sorted(result.stdout.splitlines()) == ["[rank 0] 2", "[rank 1] 2"]


def test_no_abbreviations():
    result = run("launch", "--num-proc", "2", "true")
    assert result.returncode == 2
    assert "--num-proc" in result.stderr


@pytest.mark.parametrize("arguments, suggestion", [
    (["launch", "--num-procs", "2", "true"], "--num-procs: did you mean --num-processes?"),
    (["launch", "--num_proc=2", "true"], "--num_proc: did you mean --num-processes?"),
    (["launch", "--mixed", "bf16", "true"], "--mixed: did you mean --mixed-precision?"),
    (["launch", "-cpu", "true"], "-cpu: did you mean --cpu?"),
    (["launch", "--qiuet", "true"], "--qiuet: did you mean --quiet?"),
    (["test", "--num-procs", "2"], "--num-procs: did you mean --num-processes?"),
    (["test", "--cpus"], "--cpus: did you mean --cpu?"),
    (["env", "--hlep"], "--hlep: did you mean --help?"),
    (["launch", "--fsdp", "true"], None),
    (["launch", "--n", "2", "true"], None),
    (["env", "everything"], None)])
def test_unknown_options(arguments, suggestion):
    result = run(*arguments)
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert lines[0].startswith("The following argument")
    assert lines[1:-1] == ([suggestion] if suggestion else [])
    assert lines[-1] == "Run with --help for more information."


@pytest.mark.parametrize("mark", [[], ["--"]])
def test_arguments_of_the_program_are_its_own(mark):
    arguments = ["--cpu", "--num_processes", "7", "--", "-x", "--help", "", "a b"]
    result = run("launch", "--quiet", *mark, "printf", "<%s>", *arguments)
    assert result.stdout == "".join(f"<{argument}>" for argument in arguments)


@pytest.mark.parametrize("mark", [[], ["--"]])
def test_a_program_may_be_named_as_a_command(mark):
    result = run("launch", *mark, "env")
    assert result.returncode == 0
    assert "RANK=0" in result.stdout


def test_a_program_is_needed():
    for arguments in [], ["--cpu"], ["--"]:
        result = run("launch", *arguments)
        assert result.returncode == 2
        assert "A program to launch is required" in result.stderr


@pytest.mark.parametrize("arguments, ranks", [([], 2), (["--num_processes", "3", "--cpu"], 3)])
def test_self_test(arguments, ranks):
    result = run("test", *arguments, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "Test is a success! You are ready for your distributed training!"
    assert len(lines) > ranks


def test_self_test_can_fail(tmp_path):
    """Beside another copy of the command lies a test that fails."""
    command = shutil.copy(COMMAND, tmp_path / "accelerant")
    missing = run("test", command=command)
    assert missing.returncode == 2
    assert "accelerant-selftest is not beside" in missing.stderr
    helper = tmp_path / "accelerant-selftest"
    helper.write_text("#!/bin/sh\necho no luck >&2; exit 3\n")
    helper.chmod(0o755)
    failing = run("test", command=command)
    assert failing.returncode == 3
    assert "success" not in failing.stdout
    assert "no luck" in failing.stderr


def test_helpers_are_found_in_libexec(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "libexec/accelerant").mkdir(parents=True)
    command = shutil.copy(COMMAND, tmp_path / "bin/accelerant")
    helper = tmp_path / "libexec/accelerant/accelerant-selftest"
    helper.write_text("#!/bin/sh\necho here\n")
    helper.chmod(0o755)
    assert "here" in run("test", command=command).stdout


def test_self_test_checks_what_it_is_told():
    helper = pathlib.Path(COMMAND).parent / "accelerant-selftest"
    result = subprocess.run([helper], env={}, capture_output=True, text=True, timeout=DEADLINE)
    assert result.returncode == 1
    assert "is not set" in result.stderr
    wrong = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
             "GROUP_WORLD_SIZE": "1", "MASTER_PORT": "1"}
    result = subprocess.run([helper], env=wrong, capture_output=True, text=True, timeout=DEADLINE)
    assert "RANK: expected 0 by GROUP_RANK" in result.stderr


def test_env():
    import torch
    result = run("env", OMP_NUM_THREADS=1, ACCELERANT_LOG_LEVEL="debug", NCCL_DEBUG="INFO", UNRELATED="secret")
    assert result.returncode == 0, result.stderr
    for part in (r"^- Accelerant version: \d", r"^- Platform: Linux", r"^- Compiler: \S+ \d",
                 rf"^- Processors: {len(os.sched_getaffinity(0))}$", r"^- Memory: [\d.]+ GiB$", r"^- GPUs: ",
                 rf"^- libtorch version: {re.escape(torch.__version__.split('+')[0])}", r"^- libtorch CUDA: ",
                 r"^- libtorch backends:.* gloo", r"^    OMP_NUM_THREADS=1$", r"^    NCCL_DEBUG=INFO$",
                 r"^    ACCELERANT_LOG_LEVEL=debug$"):
        assert re.search(part, result.stdout, re.MULTILINE), (part, result.stdout)
    assert "secret" not in result.stdout


def test_the_command_needs_no_libtorch():
    libraries = subprocess.run(["ldd", COMMAND], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in libraries.splitlines()]  # addresses behind them may read "c10" too
    assert any("libc.so" in name for name in names)
    assert not [name for name in names if "torch" in name or "c10" in name]
