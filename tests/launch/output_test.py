"""What ranks write: line by line with their rank on the screen, and unchanged in log files."""

import os
import resource
import select
import socket

import pytest
from launching import DEADLINE, finish, is_running, launch, numbers_in, python, shell, start, wait_for


def test_lines_have_their_rank():
    result = launch(["--num-processes", 2], shell("printf 'one\\ntwo\\n'; printf 'three\\n' >&2"))
    for rank in range(2):
        mine = [line for line in result.out_lines if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"[rank {rank}] one", f"[rank {rank}] two"]
        assert f"[rank {rank}] three" in result.err_lines
    assert len(result.out_lines) == 4
    assert len(result.err_lines) == 2


def test_lines_that_name_their_rank_do_not_get_it_twice():
    result = launch(["--num-processes", 2], shell("echo \"[rank $RANK] terminated\"; echo '[rank 7] other'"))
    assert sorted(result.out_lines) == ["[rank 0] [rank 7] other", "[rank 0] terminated",
                                        "[rank 1] [rank 7] other", "[rank 1] terminated"]


def test_unfinished_lines_are_shown_at_the_end():
    result = launch(["--num-processes", 2], shell("printf 'no end'; printf 'nor here' >&2"))
    assert sorted(result.out_lines) == ["[rank 0] no end", "[rank 1] no end"]
    assert result.out.endswith(b"\n")
    assert sorted(result.err_lines) == ["[rank 0] nor here", "[rank 1] nor here"]


def test_lines_in_pieces_stay_whole():
    result = launch(["--num-processes", 2], python("""
        import os, sys, time
        for i in range(20):
            for part in "abc":
                os.write(1, part.encode())
                time.sleep(0.001)
            os.write(1, b"\\n")
    """))
    assert sorted(result.out_lines) == ["[rank 0] abc"] * 20 + ["[rank 1] abc"] * 20


def test_long_lines_and_any_bytes():
    result = launch(["--num-processes", 2], python("""
        import os, sys
        rank = os.environ["RANK"].encode()
        sys.stdout.buffer.write(rank * 1_000_000 + b"\\n" + b"\\0\\xff\\n")
    """))
    assert result.code == 0
    lines = result.out.split(b"\n")
    for rank in b"0", b"1":
        assert b"[rank " + rank + b"] " + rank * 1_000_000 in lines
        assert b"[rank " + rank + b"] \0\xff" in lines
    assert len(lines) == 5


def test_progress_bars():
    """Every state of a bar is a line of its own that overwrites the previous one."""
    result = launch(["--num-processes", 2], shell("printf '\\r10%%\\r20%%\\r\\n'; printf 'windows\\r\\n'"))
    for rank in b"0", b"1":
        prefix = b"[rank " + rank + b"] "
        for text in prefix + b"10%\r", prefix + b"20%\r", prefix + b"windows\r\n":
            assert text in result.out, result


def test_one_process_is_passed_through():
    result = launch([], shell("printf 'a\\0b\\rc'; printf 'd' >&2"))
    assert (result.out, result.err) == (b"a\0b\rc", b"d")


def test_the_report_begins_a_new_line():
    result = launch([], shell("printf 'unfinished' >&2; exit 1"))
    assert result.err.startswith(b"unfinished\n[accelerant] rank 0")


def test_order_is_kept():
    result = launch(["--num-processes", 2], shell("seq 1 20000"))
    for rank in range(2):
        prefix = f"[rank {rank}] "
        mine = [int(line[len(prefix):]) for line in result.out_lines if line.startswith(prefix)]
        assert mine == list(range(1, 20001))


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"

    def read(attempt=0, run="mine"):
        root = folder / run / f"attempt_{attempt}"
        return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*.log"))}
    read.folder = folder
    return read


WRITE = shell("printf 'out %s\\nend' $RANK; echo err $RANK >&2")


def test_log_folder_alone_means_both(logs):
    result = launch(["--num-processes", 2, "--log-dir", logs.folder, "--run-id", "mine"], WRITE)
    assert logs() == {"0/stdout.log": b"out 0\nend", "0/stderr.log": b"err 0\n",
                      "1/stdout.log": b"out 1\nend", "1/stderr.log": b"err 1\n"}
    assert "[rank 1] out 1" in result.out_lines
    assert "[rank 0] err 0" in result.err_lines


@pytest.mark.parametrize("options, files, out, err", [
    (["--tee", "1"], ["0/stdout.log", "1/stdout.log"], 4, 2),
    (["--redirect", "3"], ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"], 0, 0),
    (["--redirects", "2"], ["0/stderr.log", "1/stderr.log"], 4, 0),
    (["--redirect", "1:1"], ["1/stdout.log"], 2, 2),
    (["--redirect", "3", "--tee", "0:1"], ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"], 2, 0),
    (["--tee", "0"], [], 4, 2),
])
def test_masks(logs, options, files, out, err):
    result = launch(["--num-processes", 2, "--log-dir", logs.folder, "--run-id", "mine", *options], WRITE)
    assert sorted(logs()) == files
    assert (len(result.out_lines), len(result.err_lines)) == (out, err)


def test_redirected_errors_are_in_the_report_all_the_same(logs):
    result = launch(["--num-processes", 2, "--log-dir", logs.folder, "--run-id", "mine", "--redirect", "3"],
                    shell('echo why >&2; [ $RANK = 1 ] && exit 1; sleep 1000'))
    assert result.err_lines[-3:] == [f"[accelerant] log files: {logs.folder}/mine/attempt_0",
                                     "[accelerant] the last lines of its standard error:",
                                     "[accelerant]   | why"]


def test_every_attempt_has_its_files(logs):
    launch(["--log-dir", logs.folder, "--run-id", "mine", "--max-restarts", 1],
           shell("echo attempt $TORCHELASTIC_RESTART_COUNT; echo $TORCHELASTIC_ERROR_FILE; exit 1"))
    for attempt in range(2):
        error_file = f"{logs.folder}/mine/attempt_{attempt}/0/error.json\n"
        assert logs(attempt)["0/stdout.log"] == f"attempt {attempt}\n{error_file}".encode()


def test_runs_have_folders_of_their_own(logs):
    for _ in range(2):
        assert launch(["--log-dir", logs.folder], ["true"]).code == 0
    assert len(list(logs.folder.iterdir())) == 2


def test_a_run_of_the_same_name_overwrites_nothing(logs):
    options = ["--log-dir", logs.folder, "--run-id", "mine"]
    for number in 1, 2, 3:
        result = launch(options, shell(f"""
            echo run {number} $TORCHELASTIC_RUN_ID
            [ {number} = 1 ] && echo '{{"message": {{"message": "of yesterday"}}}}' > $TORCHELASTIC_ERROR_FILE
            exit 1"""))
        assert (b"yesterday" in result.err) == (number == 1)
        if number > 1:
            assert result.err_lines[0] == (f"[accelerant] log files: {logs.folder}/mine_{number}, since "
                                           f"{logs.folder}/mine has those of an earlier run")
    for number, folder in enumerate(["mine", "mine_2", "mine_3"], start=1):
        assert logs(run=folder)["0/stdout.log"] == f"run {number} mine\n".encode()


def test_later_attempts_of_an_earlier_run_are_kept_too(logs):
    earlier = logs.folder / "mine/attempt_1/0/stdout.log"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("earlier")
    assert launch(["--log-dir", logs.folder, "--run-id", "mine", "--max-restarts", 1], shell("exit 1")).code == 1
    assert earlier.read_text() == "earlier"


def test_machines_share_the_folder_of_a_run(logs):
    """The launcher on machine 1 finds the folder that the launcher on machine 0 has created."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    for machine in range(2):
        options = ["--num-processes", 2, "--num-machines", 2, "--machine-rank", machine, "--main-process-ip",
                   "127.0.0.1", "--main-process-port", port, "--log-dir", logs.folder, "--run-id", "mine"]
        assert launch(options, ["echo", "hello"]).code == 0
    assert [file.name for file in logs.folder.iterdir()] == ["mine"]
    assert {"0/stdout.log", "1/stdout.log"} <= set(logs())


def test_launchers_that_start_at_once_have_folders_of_their_own(logs):
    launchers = [start(["--log-dir", logs.folder, "--run-id", "mine"], ["echo", str(number)]) for number in range(8)]
    assert [finish(launcher).code for launcher in launchers] == [0] * 8
    written = {file.read_text() for file in logs.folder.rglob("stdout.log")}
    assert written == {f"{number}\n" for number in range(8)}


def test_masks_without_a_folder_choose_one(tmp_path):
    result = launch(["--tee", 3], ["echo", "hello"], {**os.environ, "TMPDIR": str(tmp_path)})
    assert result.code == 0
    (file,) = tmp_path.rglob("stdout.log")
    assert file.read_text() == "hello\n"
    assert f"[accelerant] log files: {file.parents[2]}" in result.err_lines


def test_nothing_is_left_in_the_temporary_folder(tmp_path):
    assert launch(["--num-processes", 2], shell("exit 1"), {**os.environ, "TMPDIR": str(tmp_path)}).code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_does_not_end_the_training(logs):
    """/dev/full refuses every write."""
    folder = logs.folder / "mine/attempt_1"
    result = launch(["--log-dir", logs.folder, "--run-id", "mine", "--max-restarts", 1], shell(f"""
        if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
          mkdir -p {folder}/0; ln -s /dev/full {folder}/0/stdout.log; exit 1
        fi
        echo one; sleep 0.1; echo two"""))
    assert (result.code, result.out) == (0, b"one\ntwo\n")
    assert result.err_lines[1:] == [
        f"[accelerant] cannot write the log file {folder}/0/stdout.log: No space left on device; the run continues",
        f"[accelerant] some log files in {folder} are not complete"]


def test_a_log_file_that_must_not_grow_does_not_end_the_training(logs):
    """With ulimit -f the kernel also sends a signal."""
    result = launch(["--log-dir", logs.folder, "--run-id", "mine"], shell("seq 10000"),
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
    assert (result.code, len(result.out_lines)) == (0, 10000)
    assert f"{logs.folder}/mine/attempt_0/0/stdout.log: File too large" in result.err_lines[0]
    assert len(logs()["0/stdout.log"]) == 1000


def test_a_restart_goes_on_without_log_files(logs):
    """The folder of the second attempt cannot be created, as on a disk that has filled up."""
    result = launch(["--log-dir", logs.folder, "--run-id", "mine", "--redirect", 3, "--max-restarts", 1], shell(f"""
        [ $TORCHELASTIC_RESTART_COUNT = 1 ] && {{ echo shown; exit 0; }}
        touch {logs.folder}/mine/attempt_1; exit 1"""))
    assert (result.code, result.out) == (0, b"shown\n"), result
    assert f"The folder {logs.folder}/mine/attempt_1" in result.err_lines[1]
    assert "Not a directory" in result.err.decode()
    assert result.err_lines[-1] == "[accelerant] this attempt has no log files"


@pytest.mark.parametrize("code", [0, 3])
def test_a_closed_pipe_does_not_lose_the_exit_code(code):
    reader, writer = os.pipe()
    os.close(reader)
    result = launch(["--num-processes", 2], shell(f"seq 100000; exit {code}"), stdout=writer)
    os.close(writer)
    assert result.code == code, result


@pytest.mark.parametrize("code", [0, 3])
def test_closed_streams(code):
    result = launch(["--num-processes", 2], shell(f"echo hello; echo error >&2; exit {code}"),
                    preexec_fn=lambda: (os.close(0), os.close(1), os.close(2)))
    assert result.code == code


def test_a_reader_that_does_not_read_does_not_hold_up_signals(tmp_path):
    """The pipe is full and the ranks wait, but the launcher does not."""
    reader, writer = os.pipe()
    launcher = start(["--num-processes", 2, "--grace", 0.5],
                     shell(f"echo $$ > {tmp_path}/$RANK.pid; yes"), stdout=writer)
    os.close(writer)
    pids = numbers_in(tmp_path, 2)
    assert select.select([reader], [], [], DEADLINE)[0]  # the ranks have begun to write
    launcher.terminate()
    wait_for(lambda: not [pid for pid in pids if is_running(pid)], "the end of the ranks")
    with os.fdopen(reader, "rb") as rest:
        assert rest.read().startswith(b"[rank ")  # the reader still gets what ranks wrote before
    assert finish(launcher).code == 143


def test_a_slow_reader_gets_everything():
    launcher = start(["--num-processes", 2], shell("seq 1 100000"))
    out, _ = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0
    assert len(out.splitlines()) == 200000
