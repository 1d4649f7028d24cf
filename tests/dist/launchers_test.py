"""The same program under every launcher: the processes find each other and end with the same weights."""

import json
import os
import shutil
import sys

import launching
import pytest
from rank_processes import clean_environment, free_port, rank_environment, run_together

RANKS = 2
PROGRAM = os.environ["ACCELERANT_LAUNCHED_TRAINING"]
# The values of Launcher in accelerant/watch/environment.h.
BY_TORCH, BY_OPEN_MPI, BY_SLURM = 1, 2, 6


def results_in(folder) -> list:
    results = [json.loads(path.read_text()) for path in sorted(folder.iterdir())]
    assert [result["rank"] for result in results] == list(range(RANKS))
    assert [result["local_rank"] for result in results] == list(range(RANKS))
    assert {(result["ranks"], result["local_ranks"]) for result in results} == {(RANKS, RANKS)}
    assert len({result["hash"] for result in results}) == 1
    return results


@pytest.fixture(scope="module")
def expected_hash(tmp_path_factory):
    """The hash from ranks whose environment is set by hand as torchrun would set it."""
    port = free_port()
    folder = tmp_path_factory.mktemp("by_hand")
    run_together([([PROGRAM, str(folder)], rank_environment(rank, RANKS, port)) for rank in range(RANKS)])
    return results_in(folder)[0]["hash"]


def assert_results(folder, launcher: int, expected_hash: str) -> list:
    results = results_in(folder)
    assert {result["launcher"] for result in results} == {launcher}
    assert results[0]["hash"] == expected_hash
    return results


def test_accelerant_launch(tmp_path, expected_hash):
    command = [launching.COMMAND, "launch", "--num-processes", str(RANKS), "--", PROGRAM, str(tmp_path)]
    run_together([(command, clean_environment())])
    assert_results(tmp_path, BY_TORCH, expected_hash)


@pytest.mark.parametrize("rendezvous", ["static", "standalone"])
def test_torchrun(tmp_path, expected_hash, rendezvous):
    """torchrun serves the store itself and tells the ranks so."""
    how = {"static": ["--master-addr", "127.0.0.1", "--master-port", str(free_port())], "standalone": ["--standalone"]}
    command = [sys.executable, "-m", "torch.distributed.run", *how[rendezvous], "--nproc-per-node", str(RANKS),
               "--no-python", PROGRAM, str(tmp_path)]
    run_together([(command, clean_environment())], seconds=240)
    results = assert_results(tmp_path, BY_TORCH, expected_hash)
    assert all(result["agent_store"] for result in results)


def mpirun(folder) -> list:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    # Two runs that start at once race to create the same folder in /tmp, and one fails; so each has its own.
    session = folder.with_name(folder.name + "_session")
    session.mkdir()
    # All processes are on this machine, where there may be no ssh.
    return ["mpirun", "-np", str(RANKS), "--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent", "sh",
            "--mca", "orte_tmpdir_base", str(session), PROGRAM, str(folder)]


def test_mpirun(tmp_path, expected_hash):
    run_together([(mpirun(tmp_path), clean_environment())])
    assert_results(tmp_path, BY_OPEN_MPI, expected_hash)


def test_two_runs_of_mpirun_do_not_meet(tmp_path, expected_hash):
    """Without MASTER_PORT the port depends on the job."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    run_together([(mpirun(folder), clean_environment()) for folder in folders])
    for folder in folders:
        assert_results(folder, BY_OPEN_MPI, expected_hash)


def test_srun(tmp_path, expected_hash):
    """The variables of a job step of two tasks on one node, set by hand."""

    def environment(rank: int) -> dict:
        return clean_environment(SLURM_PROCID=rank, SLURM_LOCALID=rank, SLURM_NTASKS=RANKS,
                                 SLURM_NTASKS_PER_NODE=RANKS, SLURM_NODEID=0, SLURM_NNODES=1,
                                 SLURM_STEP_NODELIST="localhost", SLURM_JOB_ID=os.getpid(), SLURM_STEP_ID=0)

    run_together([([PROGRAM, str(tmp_path)], environment(rank)) for rank in range(RANKS)])
    assert_results(tmp_path, BY_SLURM, expected_hash)
