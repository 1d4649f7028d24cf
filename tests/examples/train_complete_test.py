"""train_complete.cpp in two processes: killed, started again, and its model opened in Python."""

import os
import pathlib
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file

COMMAND = os.environ["ACCELERANT_COMMAND"]
PROGRAM = os.environ["ACCELERANT_TRAIN_COMPLETE"]
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")

# On the CPU, where the same program gives the same bits.
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
LIMIT = 300  # seconds
EPOCHS = 2
SAMPLES = 10240  # 80 updates per epoch, with two batches of 64 each; saved after every 50 updates

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="dataset-fashion-mnist is not installed")


def command(project):
    return [COMMAND, "launch", "--num-processes", "2", "--cpu", PROGRAM, "--project", str(project),
            str(EPOCHS), str(DATA), str(SAMPLES)]


def run(project):
    result = subprocess.run(command(project), env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def kill_after_first_save(project):
    training = subprocess.Popen(command(project), env=ENVIRONMENT, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + LIMIT
    while not (project / "checkpoints" / "checkpoint_0").exists():
        assert training.poll() is None and time.monotonic() < give_up, training.communicate()
        time.sleep(0.01)
    training.kill()  # the launcher, and with it both processes
    training.communicate(timeout=LIMIT)
    assert not (project / "model").exists()  # it was still training


def test_killed_and_resumed(tmp_path):
    undisturbed = run(tmp_path / "undisturbed")
    assert "resuming" not in undisturbed
    assert undisturbed.count("test accuracy") == EPOCHS  # only one process prints

    killed = tmp_path / "killed"
    kill_after_first_save(killed)
    resumed = run(killed)
    assert "resuming from" in resumed and "of 160" in resumed

    # The last test result and every bit of the weights equal those of the undisturbed run.
    last_test = undisturbed.splitlines()[-2]
    assert "epoch 2 test accuracy" in last_test and last_test in resumed
    models = [project / "model" / "model.safetensors" for project in (tmp_path / "undisturbed", killed)]
    assert models[0].read_bytes() == models[1].read_bytes()

    # Python's safetensors opens the model. Its tensors have the names of the modules.
    weights = load_file(models[1])
    assert weights["layers.0.weight"].shape == (16, 1, 3, 3)
    assert weights["layers.10.weight"].shape == (10, 128)
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in weights.values())


def test_a_wrong_argument_is_one_line():
    result = subprocess.run([PROGRAM, "many"], env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "error: argument 1: expected a whole number above 0, got many\n"
