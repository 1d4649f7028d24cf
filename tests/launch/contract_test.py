"""What the launcher gives to ranks: the environment that torchrun sets, and a port where they can meet."""

import os
import socket
import subprocess
import sys

import pytest
from launching import clean_environment, finish, launch, python, shell, start

OUR_OWN = {"ACCELERANT_ERROR_IS_REPORTED", "ACCELERANT_MASTER_LISTEN_FD", "ACCELERANT_SAVING_FILE",
           "ACCELERANT_SECRET_FILE", "NCCL_SOCKET_IFNAME"}


def variables_of(result_bytes):
    entries = [entry for entry in result_bytes.split(b"\0") if b"=" in entry]
    return dict(entry.decode().split("=", 1) for entry in entries)


def ranks_of(tmp_path, options, env=None):
    """The environments of all ranks, by rank."""
    result = launch(options, shell(f"env -0 > {tmp_path}/env.$RANK"), env)
    assert result.code == 0, result
    files = sorted(tmp_path.glob("env.*"), key=lambda file: int(file.suffix[1:]))
    return [variables_of(file.read_bytes()) for file in files]


def test_environment_is_that_of_torchrun(tmp_path):
    """The same variables, with the same values wherever possible."""
    for folder in "ours", "theirs":
        (tmp_path / folder).mkdir()
    outside = clean_environment()
    ours = ranks_of(tmp_path / "ours", ["--num-processes", 2, "--max-restarts", 3], outside)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2", "--max-restarts=3",
         "--standalone", *shell(f"env -0 > {tmp_path}/theirs/env.$RANK")],
        env=outside, check=True, capture_output=True, timeout=300)
    theirs = [variables_of((tmp_path / f"theirs/env.{rank}").read_bytes()) for rank in range(2)]
    shells = {"PWD", "OLDPWD", "SHLVL", "_"}
    for our, their in zip(ours, theirs):
        added_by_us = set(our) - set(outside) - shells
        # torchrun uses the last one to pass on an option of its own.
        added_by_them = set(their) - set(outside) - shells - {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
        assert added_by_us - OUR_OWN == added_by_them
        differing = {name for name in added_by_them if our[name] != their[name]}
        assert differing <= {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
                             "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}


def test_places_of_ranks(tmp_path):
    for rank, env in enumerate(ranks_of(tmp_path, ["--num-processes", 3])):
        assert env["RANK"] == env["LOCAL_RANK"] == env["ROLE_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == env["ROLE_WORLD_SIZE"] == "3"
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert int(env["MASTER_PORT"]) > 0
        assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert env["ROLE_NAME"] == "default"
        assert ("ACCELERANT_MASTER_LISTEN_FD" in env) == (rank == 0)
        assert not [name for name in env if name.startswith("ACCELERATE_")]


def test_places_on_the_second_of_two_machines(tmp_path):
    options = ["--num-processes", 4, "--num-machines", 2, "--machine-rank", 1, "--main-process-ip", "10.0.0.7"]
    ranks = ranks_of(tmp_path, options)
    assert [env["RANK"] for env in ranks] == ["2", "3"]
    for local_rank, env in enumerate(ranks):
        assert env["LOCAL_RANK"] == str(local_rank)
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("4", "2")
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("1", "2")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.7", "29500")
        assert "ACCELERANT_MASTER_LISTEN_FD" not in env
        assert "ACCELERANT_SECRET_FILE" not in env
        assert env["TORCHELASTIC_RUN_ID"] == "none"


def test_several_machines_take_the_address_from_the_environment(tmp_path):
    env = clean_environment(MASTER_ADDR="10.0.0.8", MASTER_PORT=1234)
    several = ["--num-processes", 2, "--num-machines", 2, "--machine-rank", 1]
    (rank,) = ranks_of(tmp_path, several, env)
    assert (rank["MASTER_ADDR"], rank["MASTER_PORT"]) == ("10.0.0.8", "1234")
    for name, options in ("single", ["--num-processes", 1]), ("standalone", [*several, "--standalone"]):
        folder = tmp_path / name
        folder.mkdir()
        for rank in ranks_of(folder, options, env):
            assert rank["MASTER_ADDR"] == "127.0.0.1"
            assert rank["MASTER_PORT"] != "1234"


def test_variables_that_are_asked_for(tmp_path):
    (env,) = ranks_of(tmp_path, ["--mixed_precision", "bf16", "--gradient_accumulation_steps=4", "--cpu", "--debug",
                                 "--num-cpu-threads-per-process", 5, "--run-id", "mine"])
    assert env["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"
    assert env["ACCELERATE_USE_CPU"] == "true"
    assert env["ACCELERATE_DEBUG_MODE"] == "true"
    assert env["OMP_NUM_THREADS"] == "5"
    assert env["TORCHELASTIC_RUN_ID"] == "mine"


def test_threads_are_a_fair_share(tmp_path):
    processors = len(os.sched_getaffinity(0))
    for env in ranks_of(tmp_path, ["--num-processes", 2]):
        assert env["OMP_NUM_THREADS"] == str(max(1, processors // 2))
    for env in ranks_of(tmp_path, ["--num-processes", 2], clean_environment(OMP_NUM_THREADS=7)):
        assert env["OMP_NUM_THREADS"] == "7"


def test_nccl_stays_on_one_machine(tmp_path):
    several = ["--num-processes", 2, "--num-machines", 2, "--machine-rank", 1, "--main-process-ip", "10.0.0.7"]
    cases = [(["--num-processes", 2], {}, "=lo"), ([*several, "--standalone"], {}, "=lo"), (several, {}, None),
             (["--num-processes", 2], {"NCCL_SOCKET_IFNAME": "eth7"}, "eth7"),
             (several, {"NCCL_SOCKET_IFNAME": "eth7"}, "eth7"),
             (["--num-processes", 2], {"NCCL_SOCKET_FAMILY": "AF_INET6"}, None),
             (["--num-processes", 2], {"NCCL_COMM_ID": "10.0.0.7:29600"}, None)]
    for number, (options, variables, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks = ranks_of(folder, options, clean_environment(**variables))
        assert {rank.get("NCCL_SOCKET_IFNAME") for rank in ranks} == {expected}, (options, variables)


def test_leftovers_of_an_outer_launcher(tmp_path):
    stale = {"RANK": 9, "WORLD_SIZE": 10, "LOCAL_RANK": 9, "TORCHELASTIC_RESTART_COUNT": 5,
             "ACCELERANT_MASTER_LISTEN_FD": 77, "ACCELERANT_SECRET_FILE": "/an/outer/secret",
             "OMPI_COMM_WORLD_RANK": 9, "SLURM_PROCID": 9, "TORCH_NCCL_ASYNC_ERROR_HANDLING": 0}
    ranks = ranks_of(tmp_path, ["--num-processes", 2], clean_environment(**stale))
    assert [env["RANK"] for env in ranks] == ["0", "1"]
    assert {env["WORLD_SIZE"] for env in ranks} == {"2"}
    assert {env["TORCHELASTIC_RESTART_COUNT"] for env in ranks} == {"0"}
    assert "ACCELERANT_MASTER_LISTEN_FD" not in ranks[1]
    assert ranks[0]["ACCELERANT_MASTER_LISTEN_FD"] != "77"
    assert ranks[0]["ACCELERANT_SECRET_FILE"] == ranks[1]["ACCELERANT_SECRET_FILE"] != "/an/outer/secret"
    assert ranks[0]["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


COUNTS = [(["--num-processes", "cpu"], {}, len(os.sched_getaffinity(0))),
          (["--num-processes", "gpu"], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
          (["--num-processes", "auto"], {"CUDA_VISIBLE_DEVICES": "0,1,-1,3"}, 2),
          (["--num-processes", "auto"], {"CUDA_VISIBLE_DEVICES": ""}, len(os.sched_getaffinity(0))),
          (["--num-processes", "auto", "--cpu"], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, len(os.sched_getaffinity(0))),
          ([], {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, 2),
          ([], {"CUDA_VISIBLE_DEVICES": ""}, 1),
          (["--cpu"], {"CUDA_VISIBLE_DEVICES": "0,1"}, 1)]


@pytest.mark.parametrize("options, env, count", COUNTS)
def test_number_of_processes(tmp_path, options, env, count):
    assert len(ranks_of(tmp_path, options, clean_environment(**env))) == count


# Rank 0 accepts one connection from each other rank; the others connect.
MEET = """
    import os, socket
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    if rank == 0:
        server = {server}
        server.listen()
        for _ in range(size - 1):
            server.accept()[0].sendall(b"hello")
    else:
        while True:
            try:
                peer = socket.create_connection(({address!r}, port))
                break
            except ConnectionRefusedError:
                pass
        assert peer.recv(100) == b"hello"
"""
INHERITED = 'socket.socket(fileno=int(os.environ["ACCELERANT_MASTER_LISTEN_FD"]))'
OWN = 'socket.create_server(("", port))'  # with SO_REUSEADDR
OWN_SIX = 'socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)'


@pytest.mark.parametrize("server, address", [(INHERITED, "127.0.0.1"), (OWN, "127.0.0.1"),
                                             (OWN_SIX, "127.0.0.1"), (OWN_SIX, "::1")])
@pytest.mark.parametrize("given", [False, True])
def test_ranks_meet(server, address, given):
    options = ["--num-processes", 3]
    if given:
        options += ["--main-process-port", free_port()]
    result = launch(options, python(MEET.format(server=server, address=address)))
    assert result.code == 0, result


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


TORCH = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method="env://")
    tensor = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 3, tensor
    dist.destroy_process_group()
"""


def test_a_foreign_torch_program():
    result = launch(["--num-processes", 2], python(TORCH))
    assert result.code == 0, result


def test_the_socket_serves_c10ds_store():
    """A program in place of the library may use the socket in this way: TCPStoreOptions::masterListenFd."""
    result = launch(["--num-processes", 2], python("""
        import os, torch.distributed as dist
        rank = int(os.environ["RANK"])
        fd = {"master_listen_fd": int(os.environ["ACCELERANT_MASTER_LISTEN_FD"])} if rank == 0 else {}
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0, **fd)
        store.set(str(rank), "here")
        store.wait(["0", "1"])
        store.add("gone", 1)
        while rank == 0 and store.add("gone", 0) < 2:
            pass
    """))
    assert result.code == 0, result


def test_nobody_else_holds_the_listening_socket():
    """Otherwise a connection after the death of rank 0 would wait instead of being refused."""
    result = launch(["--num-processes", 2, "--grace", 20], python("""
        import os, socket, signal, sys
        port = int(os.environ["MASTER_PORT"])
        if os.environ["RANK"] == "0":
            server = socket.socket(fileno=int(os.environ["ACCELERANT_MASTER_LISTEN_FD"]))
            server.listen()
            peer, _ = server.accept()
            server.close()  # by hand: an exiting process closes its files in no promised order
            peer.close()
            os._exit(5)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                peer = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                pass
        assert peer.recv(1) == b""  # rank 0 is gone
        try:
            socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            print("refused", flush=True)
    """))
    assert result.code == 5, result
    assert "[rank 1] refused" in result.out_lines


@pytest.mark.parametrize("family, address", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"),
                                             (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")])
@pytest.mark.parametrize("machines", [1, 2])
def test_a_port_in_use_is_an_error_before_anything_starts(tmp_path, family, address, machines):
    options = ["--num-processes", 2]
    if machines == 2:
        options += ["--num-machines", 2, "--machine-rank", 0, "--main-process-ip", "127.0.0.1"]
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        result = launch([*options, "--main-process-port", port], ["touch", tmp_path / "started"])
    assert result.code == 2
    assert f"port {port}: it is in use".encode() in result.err
    assert not (tmp_path / "started").exists()


def test_the_other_machines_do_not_mind_the_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = ["--num-processes", 2, "--num-machines", 2, "--machine-rank", 1, "--main-process-ip", "127.0.0.1",
                   "--main-process-port", server.getsockname()[1]]
        assert launch(options, ["true"]).code == 0


def test_ranks_have_sessions_of_their_own():
    result = launch(["--num-processes", 2], python("""
        import os
        assert os.getsid(0) == os.getpid() == os.getpgid(0)
    """))
    assert result.code == 0, result


def test_only_the_ranks_own_descriptors_are_open():
    result = launch(["--num-processes", 2], python("""
        import os
        mine = {0, 1, 2}
        if os.environ["RANK"] == "0":
            mine.add(int(os.environ["ACCELERANT_MASTER_LISTEN_FD"]))
        opened = set()
        for fd in range(256):
            try:
                os.fstat(fd)
                opened.add(fd)
            except OSError:
                pass
        assert opened == mine, opened
    """))
    assert result.code == 0, result


def test_two_machines_on_this_one():
    """Two launchers, as on two machines, run a torch program."""
    options = ["--num-processes", 2, "--num-machines", 2, "--main-process-ip", "127.0.0.1", "--main-process-port",
               free_port()]
    launchers = [start([*options, "--machine-rank", rank], python(TORCH)) for rank in range(2)]
    for launcher in launchers:
        result = finish(launcher)
        assert result.code == 0, result
