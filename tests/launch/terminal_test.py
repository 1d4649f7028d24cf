"""A launcher on a terminal draws the bar of the local main process in place; lines appear above it."""

import fcntl
import os
import pty
import re
import struct
import termios

from launching import clean_environment, finish, launch, python, shell, start

DRAW_BAR = os.environ["ACCELERANT_DRAW_BAR"]
BAR = re.compile(r"^train +(\d+)% (\[[=> ]+\] )?(\d+)/(\d+) ")


def resize(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class Screen:
    """What a terminal shows after some bytes. The only control sequences allowed are "\\r", "\\n" and "\\x1b[K"."""

    def __init__(self, bytes_, columns):
        self.lines = [""]
        self.widest = 0
        column = 0
        text = bytes_.decode()
        for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", text):
            assert part != "\x1b", text
            if part == "\r":
                column = 0
            elif part == "\n":
                self.lines.append("")
                column = 0
            elif part == "\x1b[K":
                self.lines[-1] = self.lines[-1][:column]
            else:
                line = self.lines[-1].ljust(column)
                self.lines[-1] = line[:column] + part + line[column + len(part):]
                column += len(part)
                self.widest = max(self.widest, len(self.lines[-1]))
        self.fits = self.widest <= columns
        if self.lines[-1] == "":
            self.lines.pop()

    def bars(self):
        return [line for line in self.lines if BAR.match(line)]


def on_terminal(options, program, columns=100, streams=("stdout", "stderr"), while_running=None, **variables):
    """The result of a launch, and the bytes that its terminal got."""
    master, slave = pty.openpty()
    resize(slave, columns)
    launcher = start(options, program, clean_environment(**variables), **{stream: slave for stream in streams})
    os.close(slave)
    written = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # everyone else has closed the terminal
            break
        if not part:
            break
        written += part
        if while_running:
            while_running(written, master)
    os.close(master)
    return finish(launcher), written.replace(b"\r\n", b"\n")


def test_the_bar_of_the_main_process_is_drawn_in_place():
    result, written = on_terminal(["--num-processes", 2], [DRAW_BAR, 20])
    assert result.code == 0, written
    assert written.count(b"\r") > 10  # it was drawn again and again
    screen = Screen(written, 100)
    assert screen.fits
    # One bar is left, complete and as wide as it was drawn; all other lines are whole.
    assert len(screen.bars()) == 1, screen.lines
    (bar,) = screen.bars()
    assert BAR.match(bar).groups()[0] == "100" and "=" * 30 in bar and "loss 0.5" in bar
    others = [line for line in screen.lines if line != bar]
    assert sorted(others) == sorted([f"[rank 1] line {i}" for i in range(20)] +
                                    ["[rank 0] half way", "[rank 0] a warning of the library"])


def test_one_process_draws_too():
    result, written = on_terminal([], [DRAW_BAR, 20])
    assert result.code == 0
    lines = Screen(written, 100).lines
    assert lines[-1].startswith("train 100% [====") and "half way" in lines


def test_a_pipe_gets_plain_lines():
    result = launch(["--num-processes", 2], [DRAW_BAR, 20])
    assert b"\r" not in result.err and b"\x1b" not in result.err
    assert result.err_lines[-1].startswith("[rank 0] train: 100% 20/20 it, ")


def test_only_the_stream_on_the_terminal_has_bars():
    result, written = on_terminal(["--num-processes", 2], [DRAW_BAR, 20], streams=["stdout"])
    assert b"train" not in written and b"\r" not in written
    assert b"\x1b" not in result.err and "[rank 0] train: 100% 20/20" in result.err.decode()


def test_a_dumb_terminal_gets_plain_lines():
    result, written = on_terminal(["--num-processes", 2], [DRAW_BAR, 20], TERM="dumb")
    assert result.code == 0
    assert b"\x1b" not in written and b"[rank 0] train: 100% 20/20 it" in written


def test_output_that_a_rank_redirects_itself_is_plain(tmp_path):
    log = tmp_path / "log"
    script = f"{DRAW_BAR} 20 2> {log}; {DRAW_BAR} 20 2>&1 | cat > {log}.piped"
    result, _ = on_terminal([], shell(script))
    assert result.code == 0
    for file in log, tmp_path / "log.piped":
        assert "\r" not in file.read_text() and "train: 100% 20/20" in file.read_text()


def test_a_narrow_terminal():
    _, written = on_terminal(["--num-processes", 2], [DRAW_BAR, 20], columns=45)
    screen = Screen(written, 45)
    assert screen.fits and len(screen.bars()) == 1


def test_a_terminal_that_shrinks():
    """What is drawn after the change fits, including a state that a rank drew before it."""
    seen = []

    def shrink(written, terminal):
        if not seen and b"train" in written:
            resize(terminal, 45)
            seen.append(len(written))

    _, written = on_terminal(["--num-processes", 2], [DRAW_BAR, 60], while_running=shrink)
    assert seen
    after = written[seen[0]:]
    after = after[after.index(b"\r"):]  # skip the rest of what was on its way
    states = [part for part in after.split(b"\r")[3:] if b"train" in part]
    assert states and all(len(part.split(b"\x1b[K")[0]) < 45 for part in states), states


def test_a_rank_that_dies_in_the_middle_of_a_bar():
    for processes in 1, 2:
        result, written = on_terminal(["--num-processes", processes], [DRAW_BAR, 20, 15])
        assert result.code == 3
        lines = Screen(written, 100).lines
        report = next(i for i, line in enumerate(lines) if line.startswith("[accelerant] rank 0"))
        assert BAR.match(lines[report - 1]), lines
        assert all(line.startswith("[accelerant] ") for line in lines[report:])


def test_log_files_hold_lines(tmp_path):
    _, written = on_terminal(["--num-processes", 2, "--log-dir", tmp_path, "--run-id", "mine"], [DRAW_BAR, 20])
    assert len(Screen(written, 100).bars()) == 1
    text = (tmp_path / "mine/attempt_0/0/stderr.log").read_bytes()
    assert b"\r" not in text and b"\x1b" not in text
    lines = text.decode().splitlines()
    assert lines[:2] == ["half way", "a warning of the library"]
    assert len(lines) == 3 and lines[2].startswith("train 100% [===")


def test_long_bars_leave_some_states_in_the_log(tmp_path):
    """One state every five seconds, not all of them."""
    on_terminal(["--num-processes", 2, "--log-dir", tmp_path, "--run-id", "mine"], [DRAW_BAR, 700])
    lines = (tmp_path / "mine/attempt_0/0/stderr.log").read_text().splitlines()
    assert 2 <= len([line for line in lines if BAR.match(line)]) <= 6, lines


def test_bars_of_other_programs():
    """Every rank writes a bar as tqdm does: the lowest rank's is shown, and its last state stays."""
    result, written = on_terminal(["--num-processes", 2], python("""
        import os, sys, time
        for i in range(1, 11):
            sys.stderr.write(f"\\r{10 * i}%|{'#' * i:<10}|")
            sys.stderr.flush()
            time.sleep(0.02)
        sys.stderr.write("\\n")
    """))
    assert result.code == 0
    lines = Screen(written, 100).lines
    assert "100%|##########|" in lines and "[rank 1] 100%|##########|" in lines
    assert len(lines) == 2, lines


def test_windows_line_ends_are_lines():
    _, written = on_terminal(["--num-processes", 2], shell("printf 'one\\r\\ntwo\\r\\n'"))
    assert sorted(Screen(written, 100).lines) == sorted(f"[rank {rank}] {word}" for rank in (0, 1)
                                                       for word in ("one", "two"))
