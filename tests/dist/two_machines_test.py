"""Training on two machines: two network namespaces, connected by a pair of virtual interfaces.

`accelerant launch` starts each machine, as a user would. The namespaces need root; without it the tests are skipped.
"""

import os
import subprocess
import threading
import uuid

import pytest

LAUNCH = os.environ["ACCELERANT_COMMAND"]
PROGRAM = os.environ["ACCELERANT_FAULTS_TEST"]
DEADLINE = 120  # seconds, for what normally takes a few


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machines:
    """Machine i has the address 10.77.0.<i + 1>."""

    def __init__(self):
        tag = uuid.uuid4().hex[:6]
        self.names = [f"acc{tag}{i}" for i in range(2)]
        self.cables = [f"v{tag}{i}" for i in range(2)]
        self.running = []

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
        except FileNotFoundError as error:
            pytest.skip(f"network namespaces need iproute2: {error}")
        except (OSError, subprocess.CalledProcessError) as error:
            self.remove()
            pytest.skip(f"network namespaces need root and iproute2: {error}")
        ip("link", "add", self.cables[0], "type", "veth", "peer", "name", self.cables[1])
        for i, (name, cable) in enumerate(zip(self.names, self.cables)):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", cable)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", cable, "up")
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()
        self.remove()

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self):
        ip("-n", self.names[0], "link", "set", self.cables[0], "down")

    def launch(self, machine, num_processes, **variables):
        command = ["ip", "netns", "exec", self.names[machine], LAUNCH, "launch"]
        command += ["--num-machines", "2", "--machine-rank", str(machine), "--main-process-ip", "10.77.0.1"]
        command += ["--num-processes", str(num_processes), "--main-process-port", "29517", "--grace", "2", PROGRAM]
        command += ["--gtest_also_run_disabled_tests", "--gtest_filter=Faults.DISABLED_TrainingOnMachines"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULTS_MACHINES": "2", **variables}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.running.append(process)
        return process


class Output:
    """Reads what a process writes, as it comes."""

    def __init__(self, process):
        self.process = process
        self.text = ""
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.text += line
                self.changed.notify_all()

    def wait_for(self, part):
        with self.changed:
            found = self.changed.wait_for(
                lambda: part in self.text or self.process.poll() is not None, timeout=DEADLINE
            )
        assert found and part in self.text, self.text

    def end(self):
        code = self.process.wait(timeout=DEADLINE)
        self.thread.join()
        return code


def test_two_machines_train_together():
    with Machines() as machines:
        outputs = [Output(machines.launch(i, 4, FAULTS_STEPS="30", FAULTS_TIMEOUT="60")) for i in range(2)]
        for output in outputs:
            assert output.end() == 0, output.text
            assert output.text.count("gathered 4 of sum 10") == 2, output.text


def test_a_cut_link_ends_both_sides():
    with Machines() as machines:
        outputs = [Output(machines.launch(i, 2, FAULTS_STEPS="1000000000", FAULTS_TIMEOUT="5")) for i in range(2)]
        outputs[0].wait_for("under way")
        machines.cut()
        for rank, output in enumerate(outputs):
            assert output.end() != 0, output.text
            assert f"rank {rank} of 2 failed" in output.text, output.text
            assert f"rank {1 - rank}" in output.text, output.text
