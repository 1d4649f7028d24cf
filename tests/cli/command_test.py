"""The command itself: its options, its help, and the subcommands other than launch."""

import fcntl
import os
import pathlib
import re
import shutil
import struct
import subprocess
import termios

import pytest
from launching import COMMAND, DEADLINE, clean_environment

SOURCE = pathlib.Path(__file__).parents[2]


def run(*arguments, command=COMMAND, **variables):
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=DEADLINE,
                          env=clean_environment(**{"COLUMNS": "", **variables}), stdin=subprocess.DEVNULL)


def test_version():
    version = re.search(r'ACCELERANT_VERSION "(.+)"', (SOURCE / "include/accelerant/version.h").read_text())[1]
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"accelerant {version}\n")


COMMANDS = ["launch", "test", "env", "inspect", "verify", "merge-weights", "convert", "merge-traces"]


def test_no_command_shows_help():
    help_text = run("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in help_text
    result = run()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"{help_text}\naccelerant: error: missing COMMAND\n"


@pytest.mark.parametrize("arguments, message", [
    (["fly"], "unknown command 'fly'"),
    (["lauch"], "unknown command 'lauch'; did you mean launch?"),
    (["merge_weights"], "unknown command 'merge_weights'; did you mean merge-weights?"),
    (["help", "insepct"], "unknown command 'insepct'; did you mean inspect?"),
    (["./train", "--epochs", "3"], "unknown command './train'; to start a program, write: accelerant launch ./train"),
    (["--verison"], "unknown option '--verison'; did you mean --version?"),
    (["--cpu", "./train"],
     "unknown option '--cpu'; options follow the command, as in: accelerant launch --cpu ...")])
def test_unknown_commands(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"accelerant: error: {message}\nTry 'accelerant --help'.\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_commands(command):
    result = run(command, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: accelerant {command} [OPTIONS]")
    assert "REQUIRED" not in result.stdout and "TEXT" not in result.stdout
    assert result.stdout == run("help", command).stdout == run(command, "-h").stdout


def widest(text):
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_help_fits_the_terminal(command):
    assert widest(run(*command, "--help").stdout) <= 80
    for columns, most in ("120", 100), ("60", 60), ("1", 40), ("wide", 80), ("0", 80):
        text = run(*command, "--help", COLUMNS=columns).stdout
        words = [word for word in text.split() if len(word) > most - 8]  # cannot be broken
        assert all(len(line) <= most or line.startswith("Usage:") or any(word in line for word in words)
                   for line in text.splitlines()), (columns, text)
        assert "".join(text.split()) == "".join(run(*command, "--help").stdout.split())
    assert 80 < widest(run("launch", "--help", COLUMNS="120").stdout) <= 100


def test_help_knows_the_width_of_a_terminal():
    leader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 66, 0, 0))
    environment = {name: value for name, value in clean_environment().items() if name != "COLUMNS"}
    with subprocess.Popen([COMMAND, "verify", "--help"], stdout=terminal, env=environment) as process:
        assert process.wait(DEADLINE) == 0
    os.close(terminal)
    text = os.read(leader, 65536).decode().replace("\r\n", "\n")
    os.close(leader)
    assert text == run("verify", "--help", COLUMNS="66").stdout
    assert text != run("verify", "--help", COLUMNS="80").stdout


def test_arguments_in_help_are_those_of_the_usage():
    text = run("convert", "--help").stdout
    assert "Usage: accelerant convert [OPTIONS] INPUT OUTPUT\n" in text
    assert re.search(r"^Arguments:\n  INPUT   +A file.*\n(.*\n)*  OUTPUT  +The folder", text, re.MULTILINE), text


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


@pytest.mark.parametrize("arguments, message", [
    (["launch", "--num-procs", "2", "true"], "unknown option '--num-procs'; did you mean --num-processes?"),
    (["launch", "--num_proc=2", "true"], "unknown option '--num_proc'; did you mean --num-processes?"),
    (["launch", "--mixed", "bf16", "true"], "unknown option '--mixed'; did you mean --mixed-precision?"),
    (["launch", "-cpu", "true"], "unknown option '-cpu'; did you mean --cpu?"),
    (["launch", "--qiuet", "true"], "unknown option '--qiuet'; did you mean --quiet?"),
    (["launch", "--n", "2", "true"], "unknown option '--n'"),
    (["launch", "--num-machines", "two", "true", "--x"], "--num-machines: expected a whole number, got 'two'"),
    (["launch", "--grace=soon", "true"], "--grace: expected a number, got 'soon'"),
    (["launch", "--run-id"], "--run-id needs a value: --run-id NAME"),
    (["launch", "--cpu=maybe", "true"], "--cpu takes no value"),
    (["test", "--num-procs", "2"], "unknown option '--num-procs'; did you mean --num-processes?"),
    (["test", "--cpus"], "unknown option '--cpus'; did you mean --cpu?"),
    (["env", "--hlep"], "unknown option '--hlep'; did you mean --help?"),
    (["env", "everything"], "unexpected argument 'everything'"),
    (["inspect", "--jsn"], "unknown option '--jsn'; did you mean --json?"),
    (["inspect"], "missing PATH; usage: accelerant inspect [OPTIONS] PATH"),
    (["inspect", "a", "b"], "unexpected argument 'b'"),
    (["convert"], "missing INPUT and OUTPUT; usage: accelerant convert [OPTIONS] INPUT OUTPUT"),
    (["convert", "a", "b", "--dtype", "f8"], "--dtype: expected f32, f16 or bf16, got 'f8'"),
    (["convert", "a", "b", "--format", "onnx"], "--format: expected safetensors or bin, got 'onnx'")])
def test_wrong_arguments(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"accelerant: error: {message}\nTry 'accelerant {arguments[0]} --help'.\n"


@pytest.mark.parametrize("option, advice", [
    ("--nproc-per-node", "write --num-processes N"), ("--nproc_per_node=4", "write --num-processes N"),
    ("--nnodes", "write --num-machines N"), ("--node-rank", "write --machine-rank N"),
    ("--master_addr", "write --main-process-ip"), ("--rdzv-backend", "not needed"), ("--multi_gpu", "not needed"),
    ("--gpu_ids", "CUDA_VISIBLE_DEVICES=0,1"), ("--config_file", "not offered yet"), ("-m", "python3 -m MODULE"),
    ("--module", "python3 -m MODULE"), ("--use_fsdp", "not offered"), ("--dynamo_backend", "not offered")])
def test_options_of_other_launchers(option, advice):
    result = run("launch", option, "2", "true")
    assert (result.returncode, result.stdout) == (2, "")
    first, last = result.stderr.splitlines()
    assert first.startswith(f"accelerant: error: unknown option '{option.split('=')[0]}'; ")
    assert advice in first
    assert last == "Try 'accelerant launch --help'."


def test_every_option_of_other_launchers_is_known_or_explained():
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser
    names = {name for parser in (launch_command_parser(), get_args_parser()) for action in parser._actions
             for name in action.option_strings}
    assert {"--nnodes", "--gpu_ids"} <= names
    known = set(re.findall(r"^  (?:-h, )?(--?[a-z-]+)", run("launch", "--help").stdout, re.MULTILINE))
    known |= {"-h", "--redirects"}
    for name in sorted(names):
        if name.replace("_", "-") in known:
            continue
        message = run("launch", name, "1", "true").stderr.splitlines()[0]
        assert f"unknown option '{name}'; " in message and "did you mean" not in message, message


def test_options_behind_the_program():
    result = run("launch", "echo", "--num-processes", "2")
    assert (result.returncode, result.stdout) == (0, "--num-processes 2\n")
    assert "accelerant launch --num-processes ... echo" in result.stderr
    for arguments in (["--", "echo", "--num-processes=2"], ["echo", "--cpu"], ["echo", "--", "--grace", "3"],
                      ["--quiet", "echo", "--num-processes", "2"]):
        assert run("launch", *arguments).stderr == ""


def test_a_folder_instead_of_a_program(tmp_path):
    result = run("launch", tmp_path)
    assert result.returncode == 126
    assert "it is a folder" in result.stderr and "chmod" not in result.stderr


def test_the_last_of_several_values_counts():
    assert run("launch", "--num-processes", "3", "--num_processes", "1", "printenv", "WORLD_SIZE").stdout == "1\n"


@pytest.mark.parametrize("options, message", [
    (["--num-machines", "2"], "--machine-rank"),
    (["--num-machines", "2", "--machine-rank", "0"], "--main-process-ip"),
    (["--machine-rank", "1"], "--num-machines"),
    (["--mixed-precision", "fp8"], "--mixed-precision: expected no, fp16 or bf16, got fp8"),
    (["--monitor-interval", "0"], "--monitor-interval")])
def test_messages_name_options_as_they_are_written(options, message):
    result = run("launch", *options, "true")
    assert result.returncode == 2
    assert result.stderr.startswith("accelerant: error: ") and message in result.stderr
    assert not re.search(r"\b[a-z]+_[a-z]+", result.stderr), result.stderr
    assert f"{message} ({message})" not in result.stderr


def test_an_unknown_log_level_is_reported_once():
    result = run("env", ACCELERANT_LOG_LEVEL="loud")
    assert result.returncode == 0
    assert result.stderr == ("[accelerant] warning: ACCELERANT_LOG_LEVEL: expected debug, info, warning, error or off, "
                             "got 'loud'; using warning\n")
    for level in "debug", "Warning", "off", "":
        assert run("env", ACCELERANT_LOG_LEVEL=level).stderr == ""
    result = run("test", "--num-processes", "2", "--cpu", ACCELERANT_LOG_LEVEL="loud")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("got 'loud'") == 1, result.stderr


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
        assert "missing PROGRAM; usage: accelerant launch [OPTIONS] [--] PROGRAM [ARGUMENTS]" in result.stderr


@pytest.mark.parametrize("arguments, ranks", [([], 2), (["--num_processes", "3", "--cpu"], 3)])
def test_self_test(arguments, ranks):
    result = run("test", *arguments, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "Test is a success! You are ready for your distributed training!"
    assert len(lines) > ranks


def test_self_test_can_fail(tmp_path):
    """A copy of the command finds a failing test beside it."""
    command = shutil.copy(COMMAND, tmp_path / "accelerant")
    missing = run("test", command=command)
    assert missing.returncode == 1
    assert missing.stderr.startswith("accelerant: error: accelerant-selftest, which is part of Accelerant, is missing")
    helper = tmp_path / "accelerant-selftest"
    helper.write_text("#!/bin/sh\necho no luck >&2; exit 3\n")
    helper.chmod(0o755)
    failing = run("test", command=command)
    assert failing.returncode == 1
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


def test_helpers_that_do_not_find_libtorch(tmp_path):
    """The helpers cannot find libtorch, as after it has moved."""
    command = shutil.copy(COMMAND, tmp_path / "accelerant")
    compiler = os.environ["ACCELERANT_CXX"]
    (tmp_path / "lost.c").write_text("int lost(void) { return 0; }\n")
    (tmp_path / "main.c").write_text("int lost(void); int main(void) { return lost(); }\n")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "lost.c", "-o", "libtorch_lost.so"], cwd=tmp_path,
                   check=True)
    for helper in "accelerant-describe", "accelerant-selftest":
        subprocess.run([compiler, "-x", "c", "main.c", "-x", "none", "-L.", "-ltorch_lost", "-o", helper],
                       cwd=tmp_path, check=True)
    (tmp_path / "libtorch_lost.so").unlink()
    advice = "libtorch_lost.so was not found; set LD_LIBRARY_PATH=<torch>/lib, where <torch> is the folder of libtorch 2."
    result = run("test", command=command)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"accelerant: error: Cannot start accelerant-selftest: {advice}")
    result = run("env", command=command)
    assert result.returncode == 0
    assert f"- libtorch: does not load: {advice}" in result.stdout


def test_self_test_checks_what_it_is_told():
    helper = pathlib.Path(COMMAND).parent / "accelerant-selftest"
    result = subprocess.run([helper], env={}, capture_output=True, text=True, timeout=DEADLINE)
    assert result.returncode == 1
    assert "is not set" in result.stderr
    wrong = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
             "GROUP_WORLD_SIZE": "1", "MASTER_PORT": "1"}
    result = subprocess.run([helper], env=wrong, capture_output=True, text=True, timeout=DEADLINE)
    assert "RANK: expected 0 from GROUP_RANK" in result.stderr


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


def test_env_hides_what_may_be_private():
    shown = {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG_SUBSYS": "INIT,NET", "SLURM_PROCID": "3",
             "CUDA_VISIBLE_DEVICES": "0,1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
             "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_IB_DISABLE": "True"}
    hidden = {"NCCL_HOSTID": "node-secret", "NCCL_COMM_ID": "10.secret:7", "SLURM_JWT": "12345", "SLURM_JOB_NODELIST": "secret[1-3]",
              "ACCELERATE_API_KEY": "1", "TORCH_HUB_TOKEN": "secret", "CUDA_SECRET": "secret", "MKL_PASSWORD": "secret",
              "GLOO_AUTH": "1", "NCCL_NEW_SETTING": "secret"}
    lines = run("env", **shown, **hidden).stdout.splitlines()
    for name, value in shown.items():
        assert f"    {name}={value}" in lines
    for name in hidden:
        assert f"    {name}=<hidden>" in lines
    assert "secret" not in "\n".join(lines).replace("CUDA_SECRET", "")

    result = run("env", **{"MASTER_ADDR": "node7.example.org"})
    assert "node7" not in result.stdout


def test_the_command_needs_no_libtorch():
    libraries = subprocess.run(["ldd", COMMAND], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in libraries.splitlines()]  # the addresses after them may contain "c10" too
    assert any("libc.so" in name for name in names)
    assert not [name for name in names if "torch" in name or "c10" in name]
