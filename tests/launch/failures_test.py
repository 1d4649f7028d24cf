"""How a launch ends: exit codes, the report, signals, restarts, and that nothing is left behind."""

import json
import os
import signal

import pytest
from launching import finish, is_running, launch, numbers_in, python, send, shell, start, wait_for


def test_success():
    result = launch(["--num-processes", 3], ["true"])
    assert (result.code, result.out, result.err) == (0, b"", b"")


@pytest.mark.parametrize("script, code, what", [("exit 3", 3, "exit code 3"),
                                                ("kill -SEGV $$", 139, "SIGSEGV (exit code 139)"),
                                                ("kill -KILL $$", 137, "SIGKILL (exit code 137)"),
                                                ("exit 255", 255, "exit code 255")])
def test_exit_codes(script, code, what):
    result = launch(["--num-processes", 3], shell(f'[ $RANK = 1 ] && {{ echo why >&2; {script}; }}; sleep 1000'))
    assert result.code == code
    report = result.err_lines[-3:]
    if "SIG" in what:
        report = result.err_lines[-4:]
        assert report.pop().startswith("[accelerant] what to do: ")
    assert report == [f"[accelerant] rank 1 of 3 failed: {what}; 2 other ranks were stopped",
                      "[accelerant] the last lines of its standard error:", "[accelerant]   | why"]


def test_one_process():
    result = launch([], shell("echo plain; echo error >&2; exit 4"))
    assert result.code == 4
    assert result.out == b"plain\n"
    assert result.err_lines[:2] == ["error", "[accelerant] rank 0 of 1 failed: exit code 4"]


def test_quiet():
    result = launch(["--quiet"], shell("echo error >&2; exit 4"))
    assert (result.code, result.err) == (4, b"error\n")


def test_only_the_last_lines_of_standard_error_are_shown_again():
    result = launch(["--num-processes", 2], shell('[ $RANK = 0 ] && exit 0; seq 50 >&2; exit 1'))
    shown = [line for line in result.err_lines if line.startswith("[accelerant]   | ")]
    assert shown == [f"[accelerant]   | {number}" for number in range(41, 51)]


REPORT = """
    report() {
      echo '{"message": {"message": "'"$1"'", "extraInfo": {"timestamp": "'$2'", "time": '$2.5', "step": 812}}}' \\
        > $TORCHELASTIC_ERROR_FILE
    }
"""


def test_the_earliest_error_is_the_cause(tmp_path):
    """Rank 1 fails first but takes a while to end; rank 0 ends first, because it has lost rank 1."""
    result = launch(["--num-processes", 3], shell(REPORT + f"""
        case $RANK in
          0) while [ ! -e {tmp_path}/mark ]; do sleep 0.01; done; report "lost rank 1" 200; exit 1;;
          1) report "the cause" 100; trap 'exit 6' TERM; touch {tmp_path}/mark; while :; do sleep 0.05; done;;
          2) sleep 1000;;
        esac"""))
    report = [line for line in result.err_lines if line.startswith("[accelerant]")]
    assert report[0] == (
        "[accelerant] rank 1 of 3 failed: exit code 6; 1 other rank failed after it; 1 other rank was stopped")
    assert report[-2:] == ["[accelerant] its error:", "[accelerant]   in step 812: the cause"]
    assert result.code == 6


def test_a_rank_that_only_lost_another_is_not_the_cause(tmp_path):
    """Rank 1 fails without a report. It is still exiting when rank 0 has noticed and ended."""
    result = launch(["--num-processes", 2], shell(f"""
        case $RANK in
          0) while [ ! -e {tmp_path}/mark ]; do sleep 0.01; done
             echo '{{"message": {{"message": "lost rank 1", "extraInfo": {{"timestamp": "200",
                   "is_consequence": true}}}}}}' > $TORCHELASTIC_ERROR_FILE
             exit 3;;
          1) trap 'echo "disk on fire" >&2; exit 6' TERM; touch {tmp_path}/mark; while :; do sleep 0.05; done;;
        esac"""))
    report = [line for line in result.err_lines if line.startswith("[accelerant]")]
    assert report[0] == "[accelerant] rank 1 of 2 failed: exit code 6; 1 other rank failed after it"
    assert "disk on fire" in result.err_lines[-1]
    assert result.code == 6


def test_a_cause_that_was_stopped_has_code_1(tmp_path):
    result = launch(["--num-processes", 2], shell(REPORT + f"""
        case $RANK in
          0) while [ ! -e {tmp_path}/mark ]; do sleep 0.01; done; report "lost rank 1" 200; exit 9;;
          1) report "the cause" 100; touch {tmp_path}/mark; sleep 1000;;
        esac"""))
    assert result.code == 1
    assert "the cause" in result.err_lines[-1]


# Waits until the launcher has seen rank 1 end.
AFTER_RANK_1 = """
    after_rank_1() {{
      while [ ! -s {folder}/1.pid ]; do sleep 0.01; done
      while [ -e /proc/$(cat {folder}/1.pid) ]; do sleep 0.01; done
    }}
    [ $RANK = 1 ] && {{ echo $$ > {folder}/1.pid; exit 0; }}
"""


def test_a_rank_that_had_ended_well_is_named(tmp_path):
    result = launch(["--num-processes", 3], shell(AFTER_RANK_1.format(folder=tmp_path) + """
        [ $RANK = 0 ] && { after_rank_1; exit 3; }
        sleep 1000"""))
    assert result.code == 3
    assert result.err_lines == ["[accelerant] rank 0 of 3 failed: exit code 3; 1 other rank was stopped",
                                "[accelerant] rank 1 had ended with exit code 0 before"]


def test_a_rank_that_had_ended_well_before_a_signal_is_named(tmp_path):
    launcher = start(["--num-processes", 2], shell(AFTER_RANK_1.format(folder=tmp_path) + f"""
        after_rank_1; echo $$ > {tmp_path}/0.pid; sleep 1000"""))
    numbers_in(tmp_path, 2)
    send(launcher, signal.SIGTERM)
    result = finish(launcher)
    assert result.err_lines == ["[accelerant] stopped by SIGTERM",
                                "[accelerant] rank 1 had ended with exit code 0 before"]


def test_a_rank_that_ends_just_before_a_signal_was_not_stopped(tmp_path):
    """The launcher learns of the end and the signal at the same time."""
    launcher = start(["--num-processes", 2], shell(f"""
        echo $$ > {tmp_path}/$RANK.pid
        [ $RANK = 0 ] && sleep 1000
        while [ ! -e {tmp_path}/end ]; do sleep 0.01; done"""))
    _, second = numbers_in(tmp_path, 2)
    send(launcher, signal.SIGSTOP)
    (tmp_path / "end").touch()
    wait_for(lambda: not is_running(second), "the end of rank 1")
    send(launcher, signal.SIGTERM)
    send(launcher, signal.SIGCONT)
    result = finish(launcher)
    assert result.err_lines[-1] == "[accelerant] rank 1 had ended with exit code 0 before"


def test_the_report_does_not_repeat_the_error():
    """The rank's own line and the error in the report are enough."""
    result = launch(["--num-processes", 2], shell(REPORT + """
        [ $RANK = 0 ] && sleep 1000
        echo loading >&2; report "bad batch" 100; echo "[rank 1] terminated: bad batch" >&2; exit 1"""))
    assert result.err_lines[-5:] == [
        "[accelerant] rank 1 of 2 failed: exit code 1; 1 other rank was stopped",
        "[accelerant] the last lines of its standard error:", "[accelerant]   | loading",
        "[accelerant] its error:", "[accelerant]   in step 812: bad batch"]


def test_the_report_has_no_stack_frames_and_ends_with_the_cause():
    """A libtorch program ends with an uncaught exception: more stack frames follow its message than lines are kept."""
    result = launch(["--num-processes", 2], python(r"""
        import os, sys, time
        if os.environ["RANK"] == "0": time.sleep(1000)
        print("loading", file=sys.stderr)
        print("terminate called after throwing an instance of 'c10::Error'", file=sys.stderr)
        print("  what():  The size of tensor a (2) must match the size of tensor b (3)", file=sys.stderr)
        print("Exception raised from infer_size_impl at E.cpp:35 (most recent call first):", file=sys.stderr)
        for i in range(30): print(f"frame #{i}: c10::f() + 0x80 (0x7f in libc10.so)", file=sys.stderr)
        sys.stderr.flush()
        os.abort()
    """))
    assert result.err_lines[-4:] == [
        "[accelerant] the last lines of its standard error:", "[accelerant]   | loading",
        "[accelerant]   | terminate called after throwing an instance of 'c10::Error'",
        "[accelerant]   |   what():  The size of tensor a (2) must match the size of tensor b (3)"]
    assert "[rank 1] frame #3: c10::f() + 0x80 (0x7f in libc10.so)" in result.err_lines


def test_the_error_of_a_report_has_no_stack_frames():
    result = launch([], shell(r"""
        printf %s '{"message": {"message": "bad shape\nException raised from f at f.cpp:1 (most recent call first):'        '\nframe #0: f()\nframe #1: g()\n"}}' > $TORCHELASTIC_ERROR_FILE; exit 1"""))
    assert result.err_lines[-2:] == ["[accelerant] its error:", "[accelerant]   bad shape"]


def test_python_ranks_report_too():
    result = launch(["--num-processes", 2], python("""
        import os, time
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            if os.environ["RANK"] == "1":
                raise ValueError("bad batch")
            time.sleep(1000)
        main()
    """))
    assert result.code == 1
    assert "[accelerant]   ValueError: bad batch" in result.err_lines


def test_torchrun_reads_our_error_files(tmp_path):
    """The file has torchelastic's own format."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    error = {"message": {"message": "m", "extraInfo": {"timestamp": "100", "time": 100.5, "rank": 1}}}
    file = tmp_path / "error.json"
    file.write_text(json.dumps(error))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(file))
    assert (failure.message, failure.timestamp) == (error["message"], 100)


def test_ranks_that_ignore_the_signal_are_killed(tmp_path):
    result = launch(["--num-processes", 2, "--grace", 0.2], shell(f"""
        if [ $RANK = 0 ]; then while [ ! -s {tmp_path}/1.pid ]; do sleep 0.01; done; exit 7; fi
        trap '' TERM; echo $$ > {tmp_path}/1.pid; while :; do sleep 0.05; done"""))
    assert result.code == 7
    assert not is_running(numbers_in(tmp_path, 1)[0])


def test_ranks_may_end_in_peace(tmp_path):
    result = launch(["--num-processes", 2], shell(f"""
        if [ $RANK = 0 ]; then while [ ! -e {tmp_path}/ready ]; do sleep 0.01; done; exit 7; fi
        trap 'echo saved; exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"""))
    assert result.code == 7
    assert "[rank 1] saved" in result.out_lines


# A rank with a child process.
FAMILY = """
    sh -c 'echo $$ > {folder}/$RANK.child.pid; while :; do sleep 0.05; done' &
    echo $$ > {folder}/$RANK.pid
    wait
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_reach_ranks_and_their_children(tmp_path, number):
    launcher = start(["--num-processes", 2, "--grace", 0.5], shell(FAMILY.format(folder=tmp_path)))
    pids = numbers_in(tmp_path, 4)
    send(launcher, number)
    result = finish(launcher)
    assert result.code == 128 + number
    assert result.err_lines[-1].startswith(f"[accelerant] stopped by {signal.Signals(number).name}")
    assert not [pid for pid in pids if is_running(pid)]


def test_the_signal_itself_is_passed_on(tmp_path):
    launcher = start(["--num-processes", 2], shell(f"""
        trap 'echo got SIGHUP; exit 0' HUP
        echo $$ > {tmp_path}/$RANK.pid
        while :; do sleep 0.05; done"""))
    numbers_in(tmp_path, 2)
    send(launcher, signal.SIGHUP)
    result = finish(launcher)
    assert result.code == 129
    assert sorted(result.out_lines) == ["[rank 0] got SIGHUP", "[rank 1] got SIGHUP"]


def test_a_second_interrupt_kills_at_once(tmp_path):
    launcher = start(["--num-processes", 2, "--grace", 1000], shell(f"""
        trap 'touch {tmp_path}/$RANK.asked' INT TERM
        echo $$ > {tmp_path}/$RANK.pid
        while :; do sleep 0.05; done"""))
    pids = numbers_in(tmp_path, 2)
    send(launcher, signal.SIGINT)
    wait_for(lambda: len(list(tmp_path.glob("*.asked"))) == 2, "the first signal")
    assert all(is_running(pid) for pid in pids)
    send(launcher, signal.SIGINT)
    result = finish(launcher)
    assert result.code == 130
    assert result.err_lines[-1] == (
        "[accelerant] stopped by SIGINT; 2 ranks did not end in time and had to be killed")


def test_a_stopped_rank_is_ended_too(tmp_path):
    """SIGSTOP simulates a rank that hangs."""
    launcher = start(["--num-processes", 2, "--grace", 1000], shell(f"""
        echo $$ > {tmp_path}/$RANK.pid; kill -STOP $$; sleep 1000"""))
    pids = numbers_in(tmp_path, 2)
    send(launcher, signal.SIGTERM)
    assert finish(launcher).code == 143
    assert not [pid for pid in pids if is_running(pid)]


def test_nohup_is_respected(tmp_path):
    launcher = start([], shell(f"echo $$ > {tmp_path}/0.pid; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done"),
                     preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGHUP)
    (tmp_path / "end").touch()
    assert finish(launcher).code == 0


def test_nothing_survives_a_killed_launcher(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    launcher = start(["--num-processes", 2], shell(FAMILY.format(folder=tmp_path)),
                     {**os.environ, "TMPDIR": str(temporary)})
    pids = numbers_in(tmp_path, 4)
    assert len(list(temporary.glob("accelerant_*"))) == 1
    send(launcher, signal.SIGKILL)
    launcher.wait()
    wait_for(lambda: not [pid for pid in pids if is_running(pid)], "the end of the orphans")
    wait_for(lambda: not list(temporary.iterdir()), "the removal of the launcher's folder")
    finish(launcher)


def test_log_files_survive_a_killed_launcher(tmp_path):
    launcher = start(["--tee", 3, "--log-dir", tmp_path / "logs", "--run-id", "run"],
                     shell(FAMILY.format(folder=tmp_path)))
    numbers_in(tmp_path, 2)
    send(launcher, signal.SIGKILL)
    launcher.wait()
    finish(launcher)
    assert (tmp_path / "logs" / "run" / "attempt_0").is_dir()


def test_children_of_a_failed_rank_are_stopped(tmp_path):
    result = launch(["--num-processes", 2], shell(f"""
        sh -c 'echo $$ > {tmp_path}/'$RANK'.child.pid; while :; do sleep 0.05; done' &
        while [ ! -s {tmp_path}/0.child.pid ] || [ ! -s {tmp_path}/1.child.pid ]; do sleep 0.01; done
        [ $RANK = 0 ] && exit 1
        wait"""))
    assert result.code == 1
    assert not [pid for pid in numbers_in(tmp_path, 2) if is_running(pid)]


def test_children_that_clean_up_get_the_grace(tmp_path):
    """The signal ends a wrapper script at once; the training that it started must be able to save."""
    launcher = start(["--num-processes", 1], shell(f"""
        sh -c 'trap "sleep 0.3; echo saved; exit" TERM; echo $$ > {tmp_path}/0.pid; while :; do sleep 0.05; done'
        echo never"""))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGTERM)
    result = finish(launcher)
    assert (result.code, result.out_lines) == (143, ["saved"])


def test_restarts(tmp_path):
    """The second attempt succeeds, on another port, and knows that it is the second."""
    result = launch(["--num-processes", 2, "--max-restarts", 3], shell(f"""
        echo $MASTER_PORT > {tmp_path}/port.$TORCHELASTIC_RESTART_COUNT.$RANK
        [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3
        [ $TORCHELASTIC_RESTART_COUNT = 0 ] && sleep 1000
        [ $TORCHELASTIC_MAX_RESTARTS = 3 ]"""))
    assert result.code == 0, result
    assert result.err_lines == [
        "[accelerant] restart 1 of 3: rank 1 of 2 failed: exit code 3; 1 other rank was stopped"]
    second = {(tmp_path / f"port.1.{rank}").read_text() for rank in range(2)}
    assert len(second) == 1
    assert second != {(tmp_path / "port.0.1").read_text()}


@pytest.mark.parametrize("options", [[], ["--log-dir", "logs"]], ids=["no_logs", "logs"])
def test_a_folder_that_was_cleaned_away_comes_back(tmp_path, options):
    """With the name that the guardian knows, and closed to others, since secrets are in it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = launch(["--num-processes", 1, "--max-restarts", 1, *options], shell(f"""
        stat -c '%n %a' {temporary}/* >> {tmp_path}/seen
        if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then rm -r {temporary}/*; exit 1; fi
        [ -s $ACCELERANT_SECRET_FILE ]"""), {**os.environ, "TMPDIR": str(temporary)}, cwd=tmp_path)
    assert result.code == 0, result
    first, second = (tmp_path / "seen").read_text().splitlines()
    assert first == second and second.endswith(" 700")
    assert not list(temporary.iterdir())


def test_a_folder_that_somebody_else_has_taken_is_not_used(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = launch(["--num-processes", 1, "--max-restarts", 1], shell(f"""
        folder=$(echo {temporary}/*)
        rm -r $folder && mkdir -m 755 $folder && touch $folder/theirs; exit 1"""),
                    {**os.environ, "TMPDIR": str(temporary)})
    assert result.code != 0
    assert "was replaced: expected a folder that only this user can enter" in "\n".join(result.err_lines), result
    assert len(list(temporary.glob("*/theirs"))) == 1


@pytest.mark.parametrize("script, why", [
    (r"""printf %s '{"message": {"message": "the cause\nand more", "extraInfo": {"timestamp": "100"}}}' \
       > $TORCHELASTIC_ERROR_FILE; exit 3""", "exit code 3; its error: the cause\n[accelerant]   and more"),
    ("echo loading >&2; echo 'no such file' >&2; echo >&2; exit 3", "exit code 3; its last line: no such file"),
    ("kill -SEGV $$", "SIGSEGV (exit code 139)")])
def test_restarts_say_why(script, why):
    result = launch(["--max-restarts", 2], shell(REPORT + f"[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0\n{script}"))
    assert result.code == 0, result
    said = "\n".join(line for line in result.err_lines if line.startswith("[accelerant]"))
    assert said == "\n".join(f"[accelerant] restart {number} of 2: rank 0 of 1 failed: {why}" for number in (1, 2))


def test_restarts_end():
    result = launch(["--num-processes", 2, "--max-restarts", 2],
                    shell('echo "attempt $TORCHELASTIC_RESTART_COUNT" >&2; [ $RANK = 1 ] && exit 3; sleep 1000'))
    assert result.code == 3
    assert result.err_lines[-3:] == [
        "[accelerant] rank 1 of 2 failed: exit code 3; 1 other rank was stopped; this was restart 2 of 2",
        "[accelerant] the last lines of its standard error:", "[accelerant]   | attempt 2"]


def test_no_restart_after_a_signal(tmp_path):
    launcher = start(["--max-restarts", 5], shell(f"echo $$ > {tmp_path}/$TORCHELASTIC_RESTART_COUNT.pid; sleep 1000"))
    numbers_in(tmp_path, 1)
    send(launcher, signal.SIGTERM)
    assert finish(launcher).code == 143
    numbers_in(tmp_path, 1)


def test_a_given_port_serves_all_attempts():
    result = launch(["--num-processes", 2, "--max-restarts", 1, "--main-process-port", 0], shell("exit $RANK"))
    assert result.code == 1


REFUSALS = [
    (["--num-processes", 0], 2, "a number of at least 1"),
    (["--num-processes", "some"], 2, "a number of at least 1"),
    (["--num-processes", 3, "--num-machines", 2, "--machine-rank", 0, "--main-process-ip", "x"], 2, "a multiple of"),
    (["--num-machines", 2], 2, "which of them this one is"),
    (["--num-machines", 2, "--machine-rank", 2], 2, "0 to 1"),
    (["--num-machines", 2, "--machine-rank", 0], 2, "need a place to meet"),
    (["--num-machines", 2, "--machine-rank", 0, "--main-process-ip", "x", "--main-process-port", 0], 2, "need a port"),
    (["--machine-rank", 1], 2, "there is one machine"),
    (["--main-process-port", 70000], 2, "65535"),
    (["--mixed-precision", "fp8"], 2, "no, fp16 or bf16"),
    (["--max-restarts", -1], 2, "--max-restarts"),
    (["--monitor-interval", 0], 2, "--monitor-interval"),
    (["--grace", -1], 2, "0 or more"),
    (["--gradient-accumulation-steps", 0], 2, "at least 1"),
    (["--tee", 4], 2, "tee"),
    (["--tee", "0:1,5:1"], 2, "by local rank"),
    (["--redirects", "x"], 2, "redirect"),
    (["--run-id", "a/b"], 2, "without /"),
    (["--log-dir", "/proc/no/such"], 2, "cannot be created"),
    (["--log-dir", "/dev/null/logs"], 2, "cannot be created"),
    (["--unknown"], 2, "--unknown"),
]


@pytest.mark.parametrize("options, code, text", REFUSALS)
def test_refusals_come_before_anything_starts(tmp_path, options, code, text):
    result = launch(options, ["touch", tmp_path / "started"])
    assert result.code == code, result
    assert text in result.err.decode()
    assert not (tmp_path / "started").exists()


def test_gpu_without_one():
    result = launch(["--num-processes", "gpu"], ["true"], {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert result.code == 2
    assert b"there is no GPU here" in result.err


def test_programs_that_cannot_be_started(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    assert launch([], ["no-such-program"]).code == 127
    assert launch([], [tmp_path / "none"]).code == 127
    assert launch([], [plain]).code == 126
    assert launch([], [tmp_path]).code == 126
    plain.chmod(0o755)
    result = launch([], [plain])
    assert result.code == 126
    assert b"a script needs a first line" in result.err
