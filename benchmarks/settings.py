"""The settings of a run, and its workers."""

import dataclasses
import os
import pathlib
import socket
import sys

from worker import Team, Worker, WorkerFailed

HERE = pathlib.Path(__file__).parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program_path(build, name):
    path = build / "bin" / name
    return path if path.exists() else build / name


@dataclasses.dataclass
class Settings:
    build: pathlib.Path  # contains the programs, directly or in bin/
    device: str  # cpu or cuda
    threads: int  # for every worker that runs alone
    full: bool  # otherwise quick
    rounds: int
    seconds: float  # per side and round
    compiled: bool  # also measure torch.compile
    deadline: float  # seconds to wait for a measurement
    patience: float  # seconds to wait for an answer that may need compiling
    workers: dict = dataclasses.field(default_factory=dict)
    shared: dict = dataclasses.field(default_factory=dict)  # kept by workloads until the run ends

    def program(self, name):
        return str(program_path(self.build, name))

    def script(self, name):
        return [sys.executable, str(HERE / name)]

    def environment(self, threads=None, **more):
        threads = str(threads or self.threads)
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
                "KINETO_LOG_LEVEL": "99",  # keeps the profiler quiet; it counts waits and exchanges
                "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false",
                # A run on the CPU must not see a GPU.
                **({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}), **more}

    def worker(self, name, command):
        """The worker of this name. It starts with its first request."""
        if name not in self.workers:
            self.workers[name] = Worker(command, self.environment())
        return self.workers[name]

    def ranks(self, name, command, count, threads):
        """Workers that form the ranks of one group."""
        if name not in self.workers:
            port = str(free_port())
            self.workers[name] = Team([
                Worker(command, self.environment(threads, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
                                                 LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
                for rank in range(count)])
        return self.workers[name]

    def close(self):
        """Ends all workers."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()


def reason_of(ask):
    """Returns the answer and None, or None and the reason why there is no answer."""
    try:
        return ask(), None
    except WorkerFailed as failure:
        return None, str(failure)
