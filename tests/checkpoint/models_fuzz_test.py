"""Models saved by Python's libraries load here, are saved again, and load in Python."""

import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess

import accelerate
import pytest
import replay
import safetensors.torch
import torch

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
          "float8_e4m3fn", "float8_e5m2"]
ROUNDS = 60


class Weights(torch.nn.Module):
    """A module with the given state dict."""

    def __init__(self, state: dict):
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name.replace(".", "_"), tensor)
        self.state = state

    def state_dict(self, *args, **kwargs):
        return dict(self.state)


def random_tensor(generator: random.Random, smallest: int) -> torch.Tensor:
    dtype = getattr(torch, generator.choice(DTYPES))
    shape = [generator.choice([smallest, 1, 2, 3, 5, 17]) for _ in range(generator.randrange(4))]
    numbers = torch.randn(shape) * 10
    if dtype.is_complex:
        return torch.complex(numbers, numbers.flip(0) if shape else numbers).to(dtype)
    if dtype == torch.uint8:
        numbers = numbers.abs()
    return numbers > 0 if dtype == torch.bool else numbers.to(dtype)


def random_state(generator: random.Random, smallest: int = 0) -> dict:
    """smallest: the smallest size of a dimension."""
    names = [".".join(generator.choice(["a", "b", "layer", "0", "ünï", "weight"]) for _ in range(3))
             for _ in range(generator.randrange(1, 12))]
    return {name: random_tensor(generator, smallest) for name in names}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (left.dtype == right.dtype and left.shape == right.shape
            and left.contiguous().flatten().view(torch.uint8).equal(right.contiguous().flatten().view(torch.uint8)))


def files_in(folder: pathlib.Path) -> list:
    """The files of the model; the list of their checksums, which Python ignores, names exactly these."""
    names = sorted(os.listdir(folder))
    names.remove("model.checksums.json")
    listed = json.loads((folder / "model.checksums.json").read_text())["files"]
    assert sorted(listed) == names
    assert all(record["size"] == (folder / name).stat().st_size for name, record in listed.items())
    return names


def load_folder(folder: pathlib.Path) -> dict:
    """Loads the folder as Python's libraries do."""
    for kind, read in ((".safetensors", safetensors.torch.load_file),
                       (".bin", lambda path: torch.load(path, weights_only=True))):
        stem = "model" if kind == ".safetensors" else "pytorch_model"
        index = folder / f"{stem}{kind}.index.json"
        if index.exists():
            weight_map = json.loads(index.read_text())["weight_map"]
            shards = {file: read(folder / file) for file in set(weight_map.values())}
            assert sorted(weight_map) == sorted(name for shard in shards.values() for name in shard)
            return {name: shards[file][name] for name, file in weight_map.items()}
        if (folder / f"{stem}{kind}").exists():
            return read(folder / f"{stem}{kind}")
    raise AssertionError(f"no model in {os.listdir(folder)}")


def save_in_python(state: dict, folder: pathlib.Path, generator: random.Random) -> str:
    """Saves in one of the ways of Python's libraries; returns the path to load."""
    folder.mkdir()
    # Accelerate mistakes all empty tensors for a single shared one.
    has_empty = any(tensor.numel() == 0 for tensor in state.values())
    way = generator.choice(["file", "torch"] if has_empty else ["file", "accelerate", "accelerate_bin", "torch"])
    if way == "file":
        safetensors.torch.save_file(state, folder / "weights.safetensors", metadata={"format": "pt"})
        return str(folder / "weights.safetensors")
    if way == "torch":
        torch.save(state, folder / "pytorch_model.bin")
        return str(folder)
    size = generator.choice(["1KB", "200KB", "10GB"])
    accelerate.Accelerator(cpu=True).save_model(Weights(state), str(folder), max_shard_size=size,
                                                safe_serialization=way == "accelerate")
    return str(folder)


def describe(state: dict) -> list:
    return [{"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            for name, tensor in state.items()]


def document(**more) -> dict:
    return {"strict": True, "load_dtype": None, "save_dtype": None, "max_shard_size": "10GB",
            "safe_serialization": True, **more}


@pytest.fixture(scope="module")
def models():
    tool = replay.Replay("models", deadline=240)
    yield tool
    tool.close()


def test_round_trips(models, tmp_path):
    seed = replay.seed_from_environment()
    generator = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(ROUNDS):
        state = random_state(generator, smallest=number % 2)
        path = save_in_python(state, tmp_path / f"python{number}", generator)
        safe = generator.random() < 0.7
        folder = tmp_path / f"ours{number}"
        result = models(document(load=path, save=str(folder), tensors=describe(state), safe_serialization=safe,
                                 max_shard_size=generator.choice(["1KB", "0.064KB", "10GB"])))
        assert "error" not in result, (result, seed, number)
        assert result["missing"] == result["unexpected"] == []
        assert files_in(folder) == sorted(result["files"])
        back = load_folder(folder)
        assert back.keys() == state.keys(), (seed, number)
        for name, tensor in state.items():
            assert same(back[name], tensor), (name, seed, number)


def test_files_are_those_of_accelerate(models, tmp_path):
    """The same split, names, index and bytes."""
    seed = replay.seed_from_environment()
    generator = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(20):
        state = random_state(generator, smallest=1)
        size = generator.choice(["1KB", "2KB", "10GB"])
        theirs, ours = tmp_path / f"theirs{number}", tmp_path / f"ours{number}"
        accelerate.Accelerator(cpu=True).save_model(Weights(state), str(theirs), max_shard_size=size)
        result = models(document(load=str(theirs), save=str(ours), tensors=describe(state), max_shard_size=size))
        assert "error" not in result, (result, seed, number)
        assert files_in(ours) == sorted(os.listdir(theirs))
        for file in os.listdir(theirs):
            assert (ours / file).read_bytes() == (theirs / file).read_bytes(), (file, seed, number)


@pytest.mark.parametrize("safe", [True, False])
def test_tied_weights(models, tmp_path, safe):
    weight = torch.randn(4, 3)
    state = {"embed.weight": weight, "head.bias": torch.randn(4), "head.weight": weight}
    torch.save(state, tmp_path / "pytorch_model.bin")
    tensors = describe(state)
    tensors[2] = {"name": "head.weight", "tied_to": "embed.weight"}
    result = models(document(load=str(tmp_path), save=str(tmp_path / "ours"), tensors=tensors, safe_serialization=safe))
    assert result["total_size"] == 4 * 3 * 4 + 4 * 4
    back = load_folder(tmp_path / "ours")
    assert same(back["embed.weight"], weight)
    if safe:
        assert sorted(back) == ["embed.weight", "head.bias"]
        with safetensors.safe_open(tmp_path / "ours" / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    else:
        assert back["head.weight"].data_ptr() == back["embed.weight"].data_ptr()
    # Also into a model that does not tie them, and back into one that does.
    again = models(document(load=str(tmp_path / "ours"), save=str(tmp_path / "untied"), tensors=describe(state)))
    assert again["missing"] == again["unexpected"] == []
    assert same(load_folder(tmp_path / "untied")["head.weight"], weight)


def test_safetensors_own_tied_models(models, tmp_path):
    """safetensors.torch.save_model keeps one name and records the other."""
    net = torch.nn.ModuleDict({"embed": torch.nn.Linear(3, 4, bias=False), "head": torch.nn.Linear(3, 4, bias=False)})
    net["head"].weight = net["embed"].weight
    safetensors.torch.save_model(net, tmp_path / "model.safetensors")
    tensors = [{"name": "embed.weight", "dtype": "float32", "shape": [4, 3]},
               {"name": "head.weight", "tied_to": "embed.weight"}]
    result = models(document(load=str(tmp_path), save=str(tmp_path / "ours"), tensors=tensors))
    assert result["missing"] == result["unexpected"] == []
    other = torch.nn.ModuleDict({"embed": torch.nn.Linear(3, 4, bias=False), "head": torch.nn.Linear(3, 4, bias=False)})
    other["head"].weight = other["embed"].weight
    missing, unexpected = safetensors.torch.load_model(other, tmp_path / "ours" / "model.safetensors")
    assert not missing and not unexpected
    assert same(other["head"].weight, net["embed"].weight)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_export_in_another_type(models, tmp_path, dtype):
    state = {"weight": torch.randn(5, 5), "count": torch.arange(3)}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    result = models(document(load=str(tmp_path), save=str(tmp_path / "ours"), tensors=describe(state), save_dtype=dtype))
    assert "error" not in result
    back = load_folder(tmp_path / "ours")
    assert same(back["weight"], state["weight"].to(getattr(torch, dtype)))
    assert same(back["count"], state["count"])
    # Loading in another type is the same as casting the model first.
    models(document(load=str(tmp_path), save=str(tmp_path / "cast"), tensors=describe(state), load_dtype=dtype))
    assert same(load_folder(tmp_path / "cast")["weight"], state["weight"].to(getattr(torch, dtype)))


POINTS = ["checkpoint.write", "checkpoint.before_sync", "checkpoint.file_written", "model.before_complete",
          "model.complete", "model.before_checksums", "model.before_move", "model.before_stale", "model.before_end"]


def killed_at(point: str, hit: int, request: dict) -> bool:
    """Whether the save reached the point and was killed there."""
    run = subprocess.run([os.environ["ACCELERANT_REPLAY"], "models"], input=json.dumps(request), text=True,
                         capture_output=True, timeout=60,
                         env={**os.environ, "ACCELERANT_FAILPOINT": f"{point}:kill@{hit}"})
    assert run.returncode in (0, -signal.SIGKILL), run.stderr
    return run.returncode != 0


def test_a_killed_save_leaves_one_model_or_the_other(models, tmp_path):
    """The old model has more files than the new one, both of the same kind and of another."""
    names = [f"layer{i}.weight" for i in range(6)]
    old, new = ({name: torch.full((50,), value) for name in names} for value in (1.0, 2.0))
    for name, state in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        safetensors.torch.save_file(state, tmp_path / name / "model.safetensors")
    folder, check = tmp_path / "folder", tmp_path / "check"
    count = collections.Counter()
    for point in POINTS:
        for hit in range(1, 100):
            shutil.rmtree(folder, ignore_errors=True)
            models(document(load=str(tmp_path / "old"), save=str(folder), tensors=describe(old),
                            max_shard_size="0.2KB"))
            (folder / "pytorch_model.bin").write_bytes(b"of an earlier program")
            killed = killed_at(point, hit, document(load=str(tmp_path / "new"), save=str(folder),
                                                    tensors=describe(new), max_shard_size="0.4KB"))
            result = models(document(load=str(folder), save=str(check), tensors=describe(old)))
            assert "error" not in result, (point, hit, result)
            values = {value for tensor in load_folder(check).values() for value in tensor.tolist()}
            assert values in ({1.0}, {2.0}), (point, hit, values)
            count[point, values.pop()] += 1
            # The next save succeeds and leaves nothing of the earlier models.
            result = models(document(load=str(tmp_path / "new"), save=str(folder), tensors=describe(new),
                                     max_shard_size="0.4KB"))
            assert files_in(folder) == sorted(result["files"]), (point, hit)
            if not killed:
                break
    print(f"killed at {sum(count.values()) - len(POINTS)} points: {dict(count)}")
    assert all(count[point, 2.0] for point in POINTS)  # every point was reached and passed
    assert sum(count.values()) - len(POINTS) >= 20
