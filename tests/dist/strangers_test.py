"""Another user of the machine, and processes without the run's secret, get nothing from a training and do not disturb it.

A real training of two processes runs under `accelerant launch`. Next to it a process tries what it can: it reads what
/proc shows, looks into the launcher's folder and talks to the store. As another user this needs root, from which it
steps down; without root that test is skipped.
"""

import contextlib
import glob
import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import time

import launching
import pytest
from rank_processes import SCALE, free_port

PROGRAM = os.environ["ACCELERANT_FAULTS_TEST"]
NOBODY = 65534


def environment(**variables):
    return launching.clean_environment(OMP_NUM_THREADS=1, FAULTS_MACHINES=1, FAULTS_TIMEOUT=60, **variables)


PROGRAM_LINE = [PROGRAM, "--gtest_also_run_disabled_tests", "--gtest_filter=Faults.DISABLED_TrainingOnMachines"]


class Training:
    """Two processes that train until they are stopped, or for so many steps."""

    def __init__(self, tmp_path, options=(), steps=10**9, env=None):
        self.folder = tmp_path / "tmp"  # the launcher's TMPDIR
        self.folder.mkdir(mode=0o755)
        self.files = [tmp_path / "out", tmp_path / "err"]
        with open(self.files[0], "wb") as out, open(self.files[1], "wb") as err:
            self.launcher = launching.start(
                ["--num-processes", 2, "--grace", 2, *options], PROGRAM_LINE,
                env or environment(FAULTS_STEPS=steps, TMPDIR=self.folder), stdout=out, stderr=err)

    def __enter__(self):
        launching.wait_for(lambda: b"under way" in self.out or self.launcher.poll() is not None, "the training")
        assert self.launcher.poll() is None, self.text
        return self

    def __exit__(self, *_):
        self.launcher.terminate()
        try:
            self.launcher.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.launcher.kill()

    @property
    def out(self):
        return self.files[0].read_bytes()

    @property
    def err(self):
        return self.files[1].read_bytes()

    @property
    def text(self):
        return (self.out + self.err).decode(errors="replace")

    @property
    def ranks(self):
        """The process ids by rank."""
        found = {}
        for pid in processes_below(self.launcher.pid):
            with contextlib.suppress(OSError):
                variables = variables_of(pid)
                if "RANK" in variables:
                    found[int(variables["RANK"])] = pid
        return [found[rank] for rank in sorted(found)]

    def assert_alive(self):
        """It makes progress: processor time goes up, and nobody reports an error."""
        before = [ticks_of(pid) for pid in self.ranks]
        launching.wait_for(lambda: all(ticks_of(pid) > old + 5 for pid, old in zip(self.ranks, before)), "progress")
        assert self.launcher.poll() is None, self.text
        assert "error" not in self.text


def processes_below(root):
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
                children.setdefault(int(parent), []).append(int(entry))
    found, rest = [], [root]
    while rest:
        below = children.get(rest.pop(), [])
        found += below
        rest += below
    return found


def variables_of(pid):
    entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)


def ticks_of(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def listening_sockets(pids):
    """The addresses and ports at which these processes listen, as in `ss -ltn`."""
    inodes = set()
    for pid in pids:
        for link in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(link))
    found = []
    for family, table in (socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                words = bytes.fromhex(address)
                packed = b"".join(words[i:i + 4][::-1] for i in range(0, len(words), 4))
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def test_one_machine_listens_on_loopback_only(tmp_path):
    with Training(tmp_path) as training:
        listening = listening_sockets([training.launcher.pid, *processes_below(training.launcher.pid)])
        port = int(variables_of(training.ranks[0])["MASTER_PORT"])
    assert ("127.0.0.1", port) in listening
    assert {address for address, _ in listening} == {"127.0.0.1"}, listening


def test_the_same_without_our_launcher(tmp_path):
    """As under mpirun and srun: rank 0 binds the port itself."""
    port = free_port()
    ranks = []
    for rank in range(2):
        variables = environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, MASTER_ADDR="localhost",
                                MASTER_PORT=port, FAULTS_STEPS=10**9)
        ranks.append(subprocess.Popen(PROGRAM_LINE, env=variables, stdout=subprocess.DEVNULL))
    try:
        pids = [rank.pid for rank in ranks]
        listening = launching.wait_for(lambda: [entry for entry in listening_sockets(pids) if entry[1] == port],
                                       "the store")
        assert listening == [("127.0.0.1", port)]
        assert {address for address, _ in listening_sockets(pids)} == {"127.0.0.1"}
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_several_machines_listen_at_the_address_asked_for(tmp_path):
    port = free_port()
    options = ["--num-machines", 2, "--machine-rank", 0, "--main-process-ip", "127.0.0.3", "--main-process-port", port]
    waits = """
        import os, socket, time
        inherited = socket.socket(fileno=int(os.environ["ACCELERANT_MASTER_LISTEN_FD"]))
        inherited.listen()
        print("listening", flush=True)
        time.sleep(1000)
    """
    with open(tmp_path / "out", "wb") as out:
        launcher = launching.start(options + ["--num-processes", 2], launching.python(waits), stdout=out)
    try:
        launching.wait_for(lambda: b"listening" in (tmp_path / "out").read_bytes(), "the listening socket")
        assert listening_sockets(processes_below(launcher.pid)) == [("127.0.0.3", port)]
    finally:
        launcher.terminate()
        launcher.communicate(timeout=60)


def test_an_address_of_another_machine_is_an_error():
    options = ["--num-machines", 2, "--machine-rank", 0, "--main-process-ip", "192.0.2.7", "--num-processes", 2]
    result = launching.launch(options, ["true"])
    assert result.code == 2
    assert b"the ranks cannot meet at 192.0.2.7" in result.err
    assert b"192.0.2.7 is not an address of this machine" in result.err
    assert b"--main-process-ip" in result.err


# --- The secret -----------------------------------------------------------------------------------


def test_where_the_secret_is(tmp_path):
    with Training(tmp_path) as training:
        ranks = [variables_of(pid) for pid in training.ranks]
        (path,) = {variables["ACCELERANT_SECRET_FILE"] for variables in ranks}
        file = pathlib.Path(path)
        secret = file.read_bytes()
        assert len(secret) == 32
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert file.parent.parent == training.folder
        for pid in [training.launcher.pid, *processes_below(training.launcher.pid)]:
            for shown in "environ", "cmdline":
                content = pathlib.Path(f"/proc/{pid}/{shown}").read_bytes()
                assert secret not in content and secret.hex().encode() not in content.lower()
    assert not os.listdir(training.folder), "the launcher removes it"
    assert secret.hex() not in training.text and secret not in training.out + training.err


def test_each_launch_and_each_restart_has_its_own(tmp_path):
    keep = launching.shell(f"""
        cat "$ACCELERANT_SECRET_FILE" > {tmp_path}/secret.$TORCHELASTIC_RESTART_COUNT.$RANK.$$
        exit $(( TORCHELASTIC_RESTART_COUNT < 2 ))
    """)
    for options in [], ["--log-dir", tmp_path / "logs"]:
        result = launching.launch(["--num-processes", 1, "--max-restarts", 2, *options], keep)
        assert result.code == 0, result
    secrets = {file.read_bytes() for file in tmp_path.glob("secret.*")}
    assert len(secrets) == 6
    logs = [file for file in (tmp_path / "logs").rglob("*") if file.is_file()]
    assert logs and not [file for file in logs if file.read_bytes() in secrets]


def test_the_secret_survives_programs_in_between(tmp_path):
    """A wrapper in Python starts the program and closes all descriptors, as subprocess does."""
    wrapper = f"import subprocess, sys; sys.exit(subprocess.run({PROGRAM_LINE!r}).returncode)"
    result = launching.launch(["--num-processes", 2], launching.python(wrapper), environment(FAULTS_STEPS=21))
    assert result.code == 0, result


# --- Strangers ------------------------------------------------------------------------------------

# Runs in a process of its own and prints what it could find out, as JSON. The first argument is the port, the others
# are process ids.
SPY = r"""
    import glob, json, os, pathlib, socket, sys, time

    port, *pids = map(int, sys.argv[1:])
    found = {}

    def attempt(name, action):
        try:
            found[name] = repr(action())
        except OSError as error:
            found[name] = None

    def talk(*texts):
        answer = b""
        with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
            try:
                for text in texts:
                    peer.sendall(text)
                    answer = peer.recv(4096)
                while more := peer.recv(4096):
                    answer += more
            except (ConnectionResetError, BrokenPipeError):
                pass
        return answer

    for pid in pids:
        for name in "environ", "maps", "mem":
            attempt(f"/proc/{pid}/{name}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
        attempt(f"/proc/{pid}/fd", lambda: os.listdir(f"/proc/{pid}/fd") or 1 / 0)
    for folder in sys.stdin.read().split():
        attempt(folder, lambda: os.listdir(folder))
        attempt(folder + "/secret_0", lambda: open(folder + "/secret_0", "rb").read())
    hello = lambda flag: b"ACstorC1" + bytes([flag]) + bytes(7) + bytes(32)
    found["without a secret"] = talk(hello(0)).hex()
    found["with a guess"] = talk(hello(1), bytes(32)).hex()
    found["as c10d"] = talk(bytes([7, 0, 0, 0]) + bytes(100)).hex()
    print(json.dumps(found))
"""


def spy_on(training, user=None, python=sys.executable):
    port = variables_of(training.ranks[0])["MASTER_PORT"]
    pids = [str(pid) for pid in [training.launcher.pid, *training.ranks]]
    folders = [str(path) for path in training.folder.iterdir()]
    as_user = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    spy = subprocess.run([python, "-I", "-S", "-c", textwrap.dedent(SPY), port, *pids], input="\n".join(folders),
                         capture_output=True, text=True, timeout=120 * SCALE, cwd="/", env={}, **as_user)
    assert spy.returncode == 0, spy.stderr
    return json.loads(spy.stdout)


def assert_the_store_says_nothing(found):
    # Its greeting, with a random number, and no more.
    assert len(bytes.fromhex(found["without a secret"])) == 48
    assert bytes.fromhex(found["with a guess"]) == bytes(33)
    assert found["as c10d"] == ""


def python_of(user):
    """A Python that this user can run: one in a home folder he often cannot."""
    for python in [sys.executable, *sorted(glob.glob("/usr/bin/python3*"))]:
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-I", "-S", "-c", ""], user=user, group=user, extra_groups=[], cwd="/", env={},
                              capture_output=True).returncode == 0:
                return python
    pytest.skip("the other user cannot run Python")


def test_another_user_gets_nothing(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = python_of(NOBODY)
    # Folders that others can enter, so that only the launcher's own is in their way.
    tmp_path = tmp_path_factory.mktemp("another_user")
    for folder in [tmp_path, *tmp_path.parents][:-2]:
        folder.chmod(0o755)
    with Training(tmp_path) as training:
        found = spy_on(training, NOBODY, python)
        training.assert_alive()
        refused = training.text
    opened = {name: value for name, value in found.items() if name.startswith("/") and value is not None}
    assert not opened, "a user found something"
    assert len(found) > 10
    assert_the_store_says_nothing(found)
    assert "the store of this run refused a connection from 127.0.0.1" in refused


def test_the_same_user_without_the_secret_gets_nothing(tmp_path):
    with Training(tmp_path) as training:
        found = spy_on(training)
        training.assert_alive()
    assert_the_store_says_nothing(found)


def test_connections_that_say_nothing_do_not_disturb(tmp_path):
    """More than the store lets in at once, held open, and one of them sends a byte now and then."""
    with Training(tmp_path) as training:
        port = int(variables_of(training.ranks[0])["MASTER_PORT"])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                held[-1].sendall(b"A")
            time.sleep(0.1)
        training.assert_alive()
        for one in held:
            one.close()


# --- Secrets of the user --------------------------------------------------------------------------


def make_secret(tmp_path, name="run.secret", mode=0o600):
    file = tmp_path / name
    file.write_bytes(os.urandom(32))
    file.chmod(mode)
    return file


# Both machines are this one.
BETWEEN_MACHINES = {**environment(FAULTS_STEPS=21, GLOO_SOCKET_IFNAME="lo"), "FAULTS_MACHINES": "2"}


def two_launchers(secrets, env=None):
    """The results of launchers of two machines, both on this one."""
    port = free_port()
    launchers = []
    for rank, secret in enumerate(secrets):
        options = ["--num-processes", 2, "--num-machines", 2, "--machine-rank", rank, "--main-process-ip", "127.0.0.1",
                   "--main-process-port", port, "--grace", 2]
        options += ["--secret-file", secret] if secret else []
        launchers.append(launching.start(options, PROGRAM_LINE, {**BETWEEN_MACHINES, **(env or {})}))
    return [launching.finish(launcher) for launcher in launchers]


def test_machines_with_the_same_secret_meet(tmp_path):
    for result in two_launchers([make_secret(tmp_path)] * 2):
        assert result.code == 0, result
        assert b"has no secret" not in result.err


def test_the_secret_from_the_environment(tmp_path):
    for result in two_launchers([None] * 2, {"ACCELERANT_SECRET_FILE": str(make_secret(tmp_path))}):
        assert result.code == 0, result
        assert b"has no secret" not in result.err


def test_machines_without_a_secret_meet_and_say_so():
    results = two_launchers([None] * 2)
    for result in results:
        assert result.code == 0, result
    assert results[0].err.count(b"this run has no secret") == 1
    assert b"head -c 32 /dev/urandom" in results[0].err
    assert b"has no secret" not in results[1].err


@pytest.mark.parametrize("theirs", ["another", "none"])
def test_machines_with_different_secrets_do_not_meet(tmp_path, theirs):
    other = make_secret(tmp_path, "other.secret") if theirs == "another" else None
    port = free_port()
    options = ["--num-processes", 2, "--num-machines", 2, "--main-process-ip", "127.0.0.1", "--main-process-port", port,
               "--grace", 1]
    main = launching.start([*options, "--machine-rank", 0, "--secret-file", make_secret(tmp_path)], PROGRAM_LINE,
                           BETWEEN_MACHINES)
    try:
        with_other = ["--secret-file", other] if other else []
        result = launching.launch([*options, "--machine-rank", 1, *with_other], PROGRAM_LINE, BETWEEN_MACHINES)
    finally:
        main.terminate()
        main_result = launching.finish(main)
    assert result.code != 0
    assert b"Process 1 cannot join the run at 127.0.0.1" in result.err
    assert b"refused a connection" in main_result.err


def test_a_secret_that_others_can_read_is_refused_before_anything_starts(tmp_path):
    file = make_secret(tmp_path, mode=0o644)
    result = launching.launch(["--num-processes", 2, "--secret-file", file], ["touch", tmp_path / "started"])
    assert result.code == 2
    assert b"The file of the run's secret cannot be used" in result.err
    assert b"chmod 600" in result.err
    assert not (tmp_path / "started").exists()


def by_hand(**variables):
    """What two ranks write that no launcher of ours has started."""
    port = free_port()
    ranks = []
    for rank in range(2):
        env = environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, MASTER_PORT=port,
                          FAULTS_STEPS=21, **variables)
        ranks.append(subprocess.Popen(PROGRAM_LINE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    written = [rank.communicate(timeout=120 * SCALE)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], written
    return written


def test_ranks_that_are_started_by_hand_use_a_secret_too(tmp_path):
    for host in "127.0.0.1", "0.0.0.0":
        for out in by_hand(MASTER_ADDR=host, ACCELERANT_SECRET_FILE=make_secret(tmp_path)):
            assert b"has no secret" not in out


def test_an_address_that_other_machines_may_reach_is_told():
    """As with MASTER_ADDR=$(hostname) under mpirun and srun, though all ranks are on one machine."""
    main, other = by_hand(MASTER_ADDR="0.0.0.0")
    assert main.count(b"warning: this run has no secret: whoever can connect to 0.0.0.0:") == 1, main
    assert b"MASTER_ADDR=127.0.0.1 keeps other machines out" in main
    assert b"has no secret" not in other
    assert not [out for out in by_hand(MASTER_ADDR="127.0.0.1") if b"has no secret" in out]
