"""Files that would make a reader wait, fill the disk or the memory, or believe what was changed."""

import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess

import pytest
import torch
from launching import COMMAND, DEADLINE, clean_environment
from replay import seed_from_environment
from safetensors.torch import load_file, save_file
from weights_command_test import load_folder, run

COMMANDS = {"inspect": [], "verify": [], "convert": ["OUT"], "merge-weights": ["OUT"]}
MEMORY = 64 << 20  # of its own, without mapped files


def run_small(*arguments, code=0):
    """With little memory and small files only."""
    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))

    result = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE,
                            env=clean_environment(), stdin=subprocess.DEVNULL, preexec_fn=limit)
    assert result.returncode == code, result.stdout + result.stderr
    assert "bad_alloc" not in result.stderr
    return result


def arguments_of(command, path, tmp_path):
    return [command, path, *(str(tmp_path / "out") for _ in COMMANDS[command])]


# --- What is no file ------------------------------------------------------------------------------

NAMES = ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "net.pt"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_refused_at_once(tmp_path, command, name):
    os.mkfifo(tmp_path / name)
    paths = [tmp_path / name] + ([tmp_path] if name != "net.pt" else [])
    for path in paths:
        result = run(*arguments_of(command, path, tmp_path), code=1)
        assert "expected a regular file, got a pipe" in result.stderr, (path, result.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_other_things_are_refused(tmp_path, command):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.safetensors"))
        (tmp_path / "folder.safetensors").mkdir()
        (tmp_path / "zero.safetensors").symlink_to("/dev/zero")
        for name, what in (("socket", "a socket"), ("zero", "a device")):
            result = run(*arguments_of(command, tmp_path / f"{name}.safetensors", tmp_path), code=1)
            assert f"got {what}" in result.stderr
        result = run(*arguments_of(command, tmp_path / "folder.safetensors", tmp_path), code=2 if command == "verify" else 1)
        assert "model" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shard_may_not_be_a_pipe_either(tmp_path, command):
    save_file({f"w{i}": torch.ones(500) for i in range(3)}, tmp_path / "model.safetensors")
    run("convert", tmp_path / "model.safetensors", tmp_path / "parts", "--max-shard-size", "2KB")
    for name in ("model-00002-of-00003.safetensors", "model.checksums.json"):
        folder = tmp_path / f"of {name}"
        shutil.copytree(tmp_path / "parts", folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        if command == "inspect" and name.endswith(".json"):
            run("inspect", folder)  # which does not need the list
        else:
            assert "got a pipe" in run(*arguments_of(command, folder, tmp_path), code=1).stderr
    assert not (tmp_path / "out").exists()


def test_links_to_files_are_files(tmp_path):
    save_file({"w": torch.ones(5)}, tmp_path / "blob")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "blob")  # as in Hugging Face's cache
    for command in COMMANDS:
        run(*arguments_of(command, tmp_path / "model", tmp_path))
    assert torch.equal(load_folder(tmp_path / "out")["w"], torch.ones(5))


def test_a_trace_may_not_be_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "trace_rank_0.json")
    result = run("merge-traces", tmp_path, tmp_path / "merged.json", code=1)
    assert "pipe" in result.stderr or "nothing to merge" in result.stderr


# --- Views that repeat elements -------------------------------------------------------------------

def save_expanded(path, *shape):
    torch.save({"small": torch.arange(6.0).view(2, 3), "wide": torch.full((1,), 7.0).expand(*shape)}, path)
    assert path.stat().st_size < 3000


@pytest.mark.parametrize("command", ["convert", "merge-weights"])
@pytest.mark.parametrize("shape", [(2**30,), (2**40,), (2**20, 2**20)])
def test_expanded_views_are_refused(tmp_path, command, shape):
    save_expanded(tmp_path / "pytorch_model.bin", *shape)
    error = run_small(command, tmp_path, tmp_path / "out", code=1).stderr
    for part in (str(tmp_path / "pytorch_model.bin"), "'wide'", "is an expanded view", "the 4 bytes",
                 f"{4 * torch.Size(shape).numel()} bytes", "--allow-expanded"):
        assert part in error, error
    assert not (tmp_path / "out").exists()
    listed = run_small("inspect", tmp_path).stdout
    assert " of 4 B\n" in listed
    shown = json.loads(run_small("inspect", tmp_path, "--json").stdout)["files"][0]["tensors"]
    assert [tensor.get("held_bytes") for tensor in shown] == [None, 4]
    assert "--allow-expanded" in run_small("inspect", tmp_path, "--tensor", "wide", code=1).stderr
    run_small("inspect", tmp_path, "--tensor", "small")
    run_small("verify", tmp_path)


@pytest.mark.parametrize("target", ["safetensors", "bin"])
@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_expanded_views_need_no_memory_if_they_are_allowed(tmp_path, target, dtype):
    """512 MB within 64 MB."""
    save_expanded(tmp_path / "pytorch_model.bin", 2**16, 2**11)
    run_small("convert", tmp_path, tmp_path / "out", "--allow-expanded", "--format", target,
              *(["--dtype", dtype] if dtype else []))
    if target == "bin":
        state = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True, mmap=True)
    else:
        state = load_file(tmp_path / "out" / "model.safetensors")
    assert state["wide"].shape == (2**16, 2**11) and state["wide"].dtype == (torch.bfloat16 if dtype else torch.float32)
    assert torch.equal(state["small"].float(), torch.arange(6.0).view(2, 3))
    assert torch.all(state["wide"][::4097] == 7)
    shutil.rmtree(tmp_path / "out")


def test_strided_views_need_no_memory(tmp_path):
    """A transposed and a sliced weight, of 100 MB each, from one storage."""
    storage = torch.arange(5_000 * 5_000, dtype=torch.int32).view(5_000, 5_000)
    torch.save({"turned": storage.t(), "part": storage[:, 1:]}, tmp_path / "pytorch_model.bin")
    run_small("convert", tmp_path, tmp_path / "out")
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(state["turned"], storage.t()) and torch.equal(state["part"], storage[:, 1:])
    shutil.rmtree(tmp_path / "out")


def test_many_views_of_one_storage_are_refused(tmp_path):
    storage = torch.arange(1000.0)
    views = {f"w{i}": storage.as_strided((1, 1000), (i, 1)) for i in range(40)}
    torch.save(views, tmp_path / "pytorch_model.bin")
    error = run("convert", tmp_path, tmp_path / "out", code=1).stderr
    assert "has tensors that repeat what it holds once" in error and "at most 16 times the 4000 bytes" in error
    run("convert", tmp_path, tmp_path / "out", "--allow-expanded")
    assert len(load_folder(tmp_path / "out")) == 40
    torch.save(dict(list(views.items())[:16]), tmp_path / "pytorch_model.bin")
    run("convert", tmp_path, tmp_path / "few")


# --- Sizes that are not there ---------------------------------------------------------------------

def test_a_file_of_holes(tmp_path):
    """A safetensors file of 10 TB that takes no space on the disk."""
    count = 25 * 10**11
    header = json.dumps({"holes": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    try:
        os.truncate(path, 8 + len(header) + 4 * count)
    except OSError:
        pytest.skip("the file system does not allow such a file")
    assert "10.0 TB" in run_small("inspect", path).stdout


def test_a_header_longer_than_the_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{" + b" " * 100)
    for command in COMMANDS:
        assert "header" in run_small(*arguments_of(command, tmp_path, tmp_path), code=1).stderr


@pytest.mark.parametrize("command", ["verify", "convert", "merge-weights"])
def test_checksums_that_do_not_fit_into_the_memory(tmp_path, command):
    """Their text does."""
    save_file({"w": torch.ones(5)}, tmp_path / "model.safetensors")
    blocks = ["0" * 16] * 10**6
    (tmp_path / "model.checksums.json").write_text(json.dumps({
        "block_bytes": 4096, "checksum": "0" * 16, "files": {"model.safetensors": {"blocks": blocks, "size": 4096 * 10**6}},
        "format": "accelerant-model-checksums", "version": 1}))
    error = run_small(*arguments_of(command, tmp_path, tmp_path), code=1).stderr
    assert f"{tmp_path / 'model.checksums.json'} cannot be read: its checksums do not fit into the memory" in error


# --- Checksums ------------------------------------------------------------------------------------

def sharded(folder, rng):
    torch.manual_seed(rng.randrange(2**32))
    save_file({f"layer{i}.weight": torch.randn(300) for i in range(4)}, folder / "source.safetensors")
    run("convert", folder / "source.safetensors", folder / "model", "--max-shard-size", "3KB")
    return folder / "model"


def mutated(rng, content):
    content = bytearray(content)
    if rng.random() < 0.25:
        return bytes(content[:rng.randrange(len(content) - 1)])
    content[rng.randrange(len(content) - 1)] ^= 1 << rng.randrange(8)
    return bytes(content)


def test_every_mutation_of_a_model_is_noticed(tmp_path):
    rng = random.Random(seed_from_environment())
    folder = sharded(tmp_path, rng)
    files = sorted(folder.iterdir())
    assert "model.checksums.json" in [file.name for file in files]
    unnoticed = 0
    for number in range(120):
        file = files[number % len(files)]
        content = file.read_bytes()
        file.write_bytes(mutated(rng, content))
        result = run("verify", folder, code=1)
        assert f"DAMAGED  {file}\n" in result.stdout and str(file) in result.stderr, number
        assert str(file) in run("convert", folder, tmp_path / "out", code=1).stderr
        plain = subprocess.run([COMMAND, "convert", folder, tmp_path / "plain", "--no-checksums"], capture_output=True,
                               timeout=DEADLINE)
        unnoticed += plain.returncode == 0
        file.write_bytes(content)
        assert not (tmp_path / "out").exists()
    run("verify", folder)
    print(f"{unnoticed} of 120 mutations are not noticed without checksums")
    assert unnoticed >= 50


def test_checksums_of_the_commands(tmp_path, rng):
    folder = sharded(tmp_path, rng)
    listed = json.loads((folder / "model.checksums.json").read_text())["files"]
    assert sorted(listed) == sorted(file.name for file in folder.iterdir() if file.name != "model.checksums.json")
    run("merge-weights", folder, tmp_path / "merged")
    assert sorted(file.name for file in (tmp_path / "merged").iterdir()) == ["model.checksums.json", "model.safetensors"]
    run("verify", tmp_path / "merged")
    run("convert", folder, folder)  # other shards in place: no stale entry stays
    assert sorted(json.loads((folder / "model.checksums.json").read_text())["files"]) == ["model.safetensors"]
    run("verify", folder)
    run("convert", folder, folder, "--no-checksums")
    assert [file.name for file in folder.iterdir()] == ["model.safetensors"]


def test_a_single_file_that_replaces_a_listed_one(tmp_path, rng):
    folder = sharded(tmp_path, rng)
    run("merge-weights", folder, tmp_path / "whole")
    save_file({"other": torch.ones(3)}, tmp_path / "other.safetensors")
    run("merge-weights", tmp_path / "other.safetensors", tmp_path / "whole" / "model.safetensors")
    assert list(load_folder(tmp_path / "whole")) == ["other"]
    run("verify", tmp_path / "whole")


def test_a_file_replaced_by_hand(tmp_path, rng):
    run("convert", sharded(tmp_path, rng), tmp_path / "one")
    save_file({"mine": torch.ones(3)}, tmp_path / "one" / "model.safetensors")
    error = run("convert", tmp_path / "one", tmp_path / "out", code=1).stderr
    assert f"if it was replaced on purpose, remove {tmp_path / 'one' / 'model.checksums.json'}" in error
    (tmp_path / "one" / "model.checksums.json").unlink()
    run("convert", tmp_path / "one", tmp_path / "out")


def test_verify_a_single_listed_file(tmp_path, rng):
    folder = sharded(tmp_path, rng)
    shard = sorted(folder.glob("model-*"))[1]
    run("verify", shard)
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    assert "is damaged in bytes 0 to" in run("verify", shard, code=1).stderr
    run("verify", sorted(folder.glob("model-*"))[0])


@pytest.mark.parametrize("place", ["model.before_complete", "model.complete", "model.before_checksums",
                                   "model.before_move", "model.before_stale", "model.before_end"])
def test_a_killed_save_accuses_nobody(tmp_path, rng, place):
    folder = sharded(tmp_path, rng)
    save_file({"new": torch.ones(5000)}, tmp_path / "new.safetensors")
    for hit in (1, 2, 3):
        out = tmp_path / f"out{hit}"
        shutil.copytree(folder, out)
        result = subprocess.run([COMMAND, "convert", tmp_path / "new.safetensors", out], capture_output=True,
                                timeout=DEADLINE, env=clean_environment(ACCELERANT_FAILPOINT=f"{place}:kill@{hit}"))
        run("verify", out)
        run("merge-weights", out, tmp_path / "found.safetensors")
        names = sorted(load_file(tmp_path / "found.safetensors"))
        assert names == ["new"] or len(names) == 4
        if result.returncode != -signal.SIGKILL:
            assert names == ["new"]
        run("convert", folder, out, "--max-shard-size", "3KB")
        run("verify", out)
