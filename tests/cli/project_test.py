"""inspect on projects: which checkpoints exist, and what is in them."""

import json
import os
import shutil
import subprocess

import pytest
import torch
from launching import COMMAND, DEADLINE, clean_environment
from safetensors.torch import save_file

TRAINING = os.environ["ACCELERANT_RESUMABLE_TRAINING"]


def inspect(*arguments, code=0):
    result = subprocess.run([COMMAND, "inspect", *map(str, arguments)], capture_output=True, text=True,
                            timeout=DEADLINE, env=clean_environment(), stdin=subprocess.DEVNULL)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with a checkpoint at the end of each of three epochs of four batches."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    subprocess.run([TRAINING, folder.parent / "log", f"--project={folder}", "--epochs=3", "--samples=16", "--batch=4",
                    "--accumulate=1"], check=True, env=clean_environment(OMP_NUM_THREADS=1), timeout=DEADLINE)
    return folder


@pytest.fixture
def project(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "first")


def by_name(path, code=0):
    shown = json.loads(inspect(path, "--json", code=code).stdout)
    assert shown["kind"] == "checkpoints"
    return {checkpoint["name"]: checkpoint for checkpoint in shown["checkpoints"]}


def test_a_project_and_its_folder_of_checkpoints_are_the_same(project):
    save_file({"stray": torch.ones(1)}, project / "stray.safetensors")
    listed = by_name(project)
    assert listed == by_name(project / "checkpoints")
    assert list(listed) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    manifests = {name: json.loads((project / "checkpoints" / name / "manifest.json").read_text()) for name in listed}
    for number, (name, checkpoint) in enumerate(listed.items()):
        content = manifests[name]["content"]
        assert checkpoint["number"] == number and checkpoint["state"] == "complete"
        assert (checkpoint["epoch"], checkpoint["updates"]) == (content["epoch"], content["updates"])
        assert checkpoint["saved"] == content["created"]
        assert checkpoint["bytes"] > sum(file["size"] for file in manifests[name]["files"].values())
    assert [checkpoint["epoch"] for checkpoint in listed.values()] == [1, 2, 3]


def test_the_table(project):
    save_file({"stray": torch.ones(1)}, project / "stray.safetensors")
    lines = inspect(project).stdout.splitlines()
    assert lines[0] == f"{project}/checkpoints: 3 checkpoints"
    assert lines[1].split() == ["NAME", "EPOCH", "UPDATES", "SIZE", "SAVED", "STATE"]
    assert lines[4].split()[:2] == ["checkpoint_2", "3"] and lines[4].endswith("ago  complete")
    assert f"To see what is in one: accelerant inspect {project}/checkpoints/checkpoint_2" in lines
    assert lines[-1] == "Also in this folder: stray.safetensors"


def test_checkpoints_that_are_not_complete(project):
    checkpoints = project / "checkpoints"
    (checkpoints / "checkpoint_3.tmp").mkdir()
    (checkpoints / "checkpoint_3.tmp" / "model.safetensors").write_bytes(b"x" * 10)
    (checkpoints / "checkpoint_10").mkdir()
    shutil.copytree(checkpoints / "checkpoint_0", checkpoints / "best")
    (checkpoints / "checkpoint_11").mkdir()
    torch.save({}, checkpoints / "checkpoint_11" / "optimizer.bin")
    listed = by_name(project)
    assert list(listed) == ["checkpoint_0", "checkpoint_1", "checkpoint_2", "checkpoint_3.tmp", "checkpoint_10",
                            "checkpoint_11"]
    assert [one["state"] for one in listed.values()][2:] == ["complete", "unfinished", "incomplete", "python"]
    assert listed["checkpoint_3.tmp"]["bytes"] == 10 and listed["checkpoint_10"]["epoch"] is None
    text = inspect(project).stdout
    assert "unfinished (a save under way or interrupted)" in text and "incomplete (no manifest.json)" in text
    (checkpoints / "checkpoint_1" / "trainer.json").unlink()
    result = inspect(project, code=1)
    assert f"accelerant: error: {checkpoints}/checkpoint_1: trainer.json is missing" in result.stderr
    assert by_name(project, code=1)["checkpoint_1"]["state"] == "damaged"


def test_a_project_without_checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert inspect(tmp_path).stdout == f"{tmp_path}/checkpoints: no checkpoints yet\n"
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    assert "Total: 1 tensor, 3 elements" in inspect(tmp_path).stdout


def test_one_tensor_needs_one_model(project):
    result = inspect(project, "--tensor", "in.weight", code=2)
    assert result.stderr == (f"accelerant: error: --tensor needs a checkpoint, a model or a file; {project}/checkpoints "
                             "is a folder of checkpoints\n")
    assert "in.weight" in inspect(project / "checkpoints" / "checkpoint_0", "--tensor", "in.weight").stdout


def test_a_checkpoint_tells_parameters_from_buffers(project):
    checkpoint = project / "checkpoints" / "checkpoint_2"
    shown = json.loads(inspect(checkpoint, "--json").stdout)
    assert shown["kind"] == "checkpoint" and shown["manifest"]["content"]["epoch"] == 3
    model = next(file for file in shown["files"] if file["name"] == "model.safetensors")
    buffers = [tensor for tensor in model["tensors"]
               if tensor["name"].split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked")]
    assert len(buffers) == 3
    totals = shown["totals"]
    assert totals["tensors"] - totals["trained"]["tensors"] == 3
    width = buffers[0]["shape"] or buffers[1]["shape"]
    assert totals["elements"] - totals["trained"]["elements"] == 2 * width[0] + 1
    text = inspect(checkpoint).stdout
    assert "parameters in an optimizer" in text and "others, such as buffers" in text
