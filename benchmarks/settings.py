"""How a run is to be, and the workers it has."""

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


@dataclasses.dataclass
class Settings:
    build: pathlib.Path  # where the programs are, in bin/ or directly
    device: str  # cpu or cuda
    threads: int  # of every worker that is alone
    full: bool  # or quick
    rounds: int
    seconds: float  # one side in one round
    compiled: bool  # also torch.compile
    deadline: float  # seconds for an answer to a measurement
    patience: float  # seconds for what may compile
    workers: dict = dataclasses.field(default_factory=dict)
    shared: dict = dataclasses.field(default_factory=dict)  # what workloads keep until the run ends

    def program(self, name):
        path = self.build / "bin" / name
        return str(path if path.exists() else self.build / name)

    def script(self, name):
        return [sys.executable, str(HERE / name)]

    def environment(self, threads=None, **more):
        threads = str(threads or self.threads)
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
                "KINETO_LOG_LEVEL": "99",  # the profiler counts waits and exchanges, and would chatter
                "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false",
                # A run on the CPU must not see a GPU.
                **({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}), **more}

    def worker(self, name, command):
        """The worker of that name; started when it is first asked."""
        if name not in self.workers:
            self.workers[name] = Worker(command, self.environment())
        return self.workers[name]

    def ranks(self, name, command, count, threads):
        """Workers that are the ranks of one group."""
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
    """The answer, or why there is none."""
    try:
        return ask(), None
    except WorkerFailed as failure:
        return None, str(failure)
