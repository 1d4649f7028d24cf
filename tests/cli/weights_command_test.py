"""Tests inspect, verify, merge-weights and convert with files that Python's libraries write and read."""

import errno
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

import pytest
import torch
from launching import COMMAND, DEADLINE, clean_environment
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def run(*arguments, code=0, **variables):
    result = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE,
                            env=clean_environment(**variables), stdin=subprocess.DEVNULL)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def bits(tensor):
    return tensor.contiguous().view(SAME_SIZE[tensor.element_size()])


def assert_same(ours, theirs):
    """Compares bit for bit, except for the payload of NaN: torch's own loops differ there."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if ours.is_floating_point():
        nan = torch.isnan(theirs)
        assert torch.equal(torch.isnan(ours), nan)
        ours, theirs = ours[~nan], theirs[~nan]
    assert torch.equal(bits(ours), bits(theirs))


def all_16_bits():
    return torch.arange(65536, dtype=torch.int32).to(torch.int16)


def random_floats(rng, count=200_000):
    """Random bits, all 16-bit numbers, ties between them, numbers just beside ties, and edge cases."""
    torch.manual_seed(rng.randrange(2**32))
    everything = torch.randint(-2**31, 2**31, (count,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    halves = all_16_bits().view(torch.float16).float()
    brains = all_16_bits().view(torch.bfloat16).float()
    ties = torch.cat([bits(halves) + (1 << 12), bits(halves) | 0x0fff, bits(halves) + 0x1001,
                      bits(brains) | 0x8000, bits(brains) | 0x7fff, bits(brains) | 0x8001]).view(torch.float32)
    subnormal = torch.rand(count) * 2.0**-14 * torch.randint(-1, 2, (count,))
    subnormal_ties = (torch.arange(-2050, 2050) + 0.5) * 2.0**-24
    edges = torch.tensor([65504.0, 65519.996, 65520.0, -65520.0, 2.0**-25, 2.0**-24, 3.3895e38, 3.4e38, 0.0, -0.0])
    return torch.cat([everything, halves, brains, ties, subnormal, subnormal_ties, edges])


def random_doubles(rng):
    floats = random_floats(rng).double()
    nudge = 1 + torch.randint(-2, 3, floats.shape) * 2.0**-50
    wide = torch.randn(100_000, dtype=torch.float64) * 10.0 ** torch.randint(-320, 308, (100_000,)).double()
    return torch.cat([floats, floats * nudge, wide])


def mixed_state():
    torch.manual_seed(1)
    return {"a.weight": torch.randn(64, 33), "a.bias": torch.randn(64).half(), "b.weight": torch.randn(3, 5, 7).double(),
            "b.scale": torch.randn(9).bfloat16(), "steps": torch.tensor(7), "mask": torch.tensor([True, False]),
            "empty": torch.empty(0, 4), "bytes": torch.arange(10, dtype=torch.uint8), "c": torch.randn(2).cfloat()}


def converted(state, dtype):
    return {name: value.to(dtype) if dtype and value.is_floating_point() else value for name, value in state.items()}


def load_folder(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    state = {}
    for name in set(json.loads(index.read_text())["weight_map"].values()):
        state.update(load_file(folder / name))
    assert sorted(state) == sorted(json.loads(index.read_text())["weight_map"])
    return state


def assert_same_state(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert_same(ours[name], tensor)


@pytest.fixture
def sharded(tmp_path):
    state = mixed_state()
    save_file(state, tmp_path / "one.safetensors", {"format": "pt", "origin": "test"})
    run("convert", tmp_path / "one.safetensors", tmp_path / "sharded", "--max-shard-size", "1KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    return tmp_path / "sharded", state


# --- convert --------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_those_of_torch(tmp_path, rng, dtype):
    state = {"half": all_16_bits().view(torch.float16), "brain": all_16_bits().view(torch.bfloat16),
             "single": random_floats(rng), "double": random_doubles(rng)}
    save_file(state, tmp_path / "model.safetensors")
    result = run("convert", tmp_path / "model.safetensors", tmp_path / "out", "--dtype", dtype)
    assert_same_state(load_folder(tmp_path / "out"), converted(state, TYPES[dtype]))
    overflows = int((torch.isinf(state["double"].to(TYPES[dtype])) & ~torch.isinf(state["double"])).sum())
    assert f"{overflows:,} values of 'double'" in result.stderr


@pytest.mark.parametrize("dtype", [None, *TYPES])
@pytest.mark.parametrize("source", ["safetensors", "bin"])
@pytest.mark.parametrize("target", ["safetensors", "bin"])
def test_formats(tmp_path, dtype, source, target):
    state = mixed_state()
    state["turned"] = torch.randn(6, 4).t()[1:]  # neither contiguous nor from the beginning of its storage
    if source == "bin":
        torch.save(state, tmp_path / "pytorch_model.bin")
    else:
        save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "model.safetensors")
    run("convert", tmp_path, tmp_path / "out", "--format", target, *(["--dtype", dtype] if dtype else []))
    out = (torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True) if target == "bin"
           else load_folder(tmp_path / "out"))
    assert_same_state(out, converted(state, TYPES.get(dtype)))


def test_shards_go_there_and_back(tmp_path, sharded):
    folder, state = sharded
    assert_same_state(load_folder(folder), state)
    with safe_open(next(folder.glob("model-*")), "pt") as file:
        assert file.metadata() == {"format": "pt", "origin": "test"}
    run("convert", folder, tmp_path / "bins", "--format", "bin", "--max-shard-size", "1KB")
    index = json.loads((tmp_path / "bins" / "pytorch_model.bin.index.json").read_text())
    loaded = {}
    for name in set(index["weight_map"].values()):
        loaded.update(torch.load(tmp_path / "bins" / name, weights_only=True))
    assert_same_state(loaded, state)
    run("convert", tmp_path / "bins" / "pytorch_model.bin.index.json", tmp_path / "back")
    assert_same_state(load_folder(tmp_path / "back"), state)


def test_tied_weights_stay_tied(tmp_path):
    model = torch.nn.ModuleDict({"out": torch.nn.Linear(4, 8), "embed": torch.nn.Embedding(8, 4)})
    model["out"].weight = model["embed"].weight
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    run("convert", tmp_path, tmp_path / "safe", "--dtype", "bf16")
    with safe_open(tmp_path / "safe" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "out.weight": "embed.weight"}
        assert sorted(file.keys()) == ["embed.weight", "out.bias"]
    run("convert", tmp_path / "safe", tmp_path / "again", "--max-shard-size", "0.02KB")
    assert '"out.weight"' not in (tmp_path / "again" / "model.safetensors.index.json").read_text()
    run("convert", tmp_path / "again", tmp_path / "bin", "--format", "bin")
    state = torch.load(tmp_path / "bin" / "pytorch_model.bin", weights_only=True)
    assert state["out.weight"].data_ptr() == state["embed.weight"].data_ptr()
    assert_same(state["out.weight"], model["embed"].weight.detach().bfloat16())


def test_versions_of_modules_are_kept(tmp_path):
    torch.save(torch.nn.BatchNorm1d(3).state_dict(), tmp_path / "pytorch_model.bin")
    run("convert", tmp_path, tmp_path / "out", "--format", "bin", "--dtype", "f16")
    state = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    assert state._metadata[""]["version"] == 2
    assert state["num_batches_tracked"].dtype == torch.int64


def test_in_place_only_without_loss(tmp_path, sharded):
    folder, state = sharded
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "less precision" in run("convert", folder, f"{folder}/.", "--dtype", "f16", code=2).stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    run("convert", folder, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["model.checksums.json", "model.safetensors"]
    assert_same_state(load_folder(folder), state)
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")
    assert "another model" in run("convert", folder, folder, code=2).stderr


def test_what_was_there_stays_when_it_fails(tmp_path):
    torch.save({"w": torch.ones(1000)}, tmp_path / "pytorch_model.bin")
    content = bytearray((tmp_path / "pytorch_model.bin").read_bytes())
    content[content.find(struct.pack("<f", 1.0) * 100) + 5] ^= 1
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    save_file({"old": torch.ones(2)}, tmp_path / "old.safetensors")
    run("convert", tmp_path / "old.safetensors", tmp_path / "out")
    assert "checksum" in run("convert", tmp_path / "pytorch_model.bin", tmp_path / "out", code=1).stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.checksums.json", "model.safetensors"]
    assert list(load_folder(tmp_path / "out")) == ["old"]


@pytest.mark.parametrize("place, is_new", [("model.before_complete", False), ("model.before_move", True),
                                           ("model.before_stale", True)])
def test_a_killed_run_leaves_one_model_or_the_other(tmp_path, sharded, place, is_new):
    folder, state = sharded
    save_file({"old": torch.ones(2)}, tmp_path / "old.safetensors")
    run("convert", tmp_path / "old.safetensors", tmp_path / "out")
    run("convert", folder, tmp_path / "out", "--max-shard-size", "1KB", code=-signal.SIGKILL,
        ACCELERANT_FAILPOINT=f"{place}:kill")
    run("merge-weights", tmp_path / "out", tmp_path / "found.safetensors")
    assert sorted(load_file(tmp_path / "found.safetensors")) == (sorted(state) if is_new else ["old"])


def test_no_model_into_a_checkpoint(tmp_path, sharded):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    assert "is a checkpoint" in run("convert", sharded[0], tmp_path / "out", code=2).stderr


# --- merge-weights --------------------------------------------------------------------------------

def parts_of(path) -> tuple:
    """The order of the tensors, the header and the data of a file."""
    content = path.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    return [name for name in header if name != "__metadata__"], header, content[size:]


def test_merge(tmp_path, sharded):
    folder, state = sharded
    run("merge-weights", folder, tmp_path / "merged")
    assert_same_state(load_file(tmp_path / "merged" / "model.safetensors"), state)
    run("merge-weights", folder / "model.safetensors.index.json", tmp_path / "named.safetensors")
    assert (tmp_path / "named.safetensors").read_bytes() == (tmp_path / "merged" / "model.safetensors").read_bytes()
    # Equals what Python's safetensors writes, except for the order of its metadata, which differs in each process.
    assert parts_of(tmp_path / "named.safetensors") == parts_of(tmp_path / "one.safetensors")
    shard = next(folder.glob("model-*"))
    assert "one of the files to be merged" in run("merge-weights", folder, shard, code=2).stderr


# --- inspect --------------------------------------------------------------------------------------

def test_inspect_as_json(tmp_path, sharded):
    folder, state = sharded
    for path in folder, folder / "model.safetensors.index.json", tmp_path / "one.safetensors":
        shown = json.loads(run("inspect", path, "--json").stdout)
        tensors = {tensor["name"]: tensor for file in shown["files"] for tensor in file["tensors"]}
        assert sorted(tensors) == sorted(state)
        for name, value in state.items():
            assert tensors[name]["shape"] == list(value.shape)
            assert tensors[name]["bytes"] == value.numel() * value.element_size()
        assert shown["totals"]["elements"] == sum(value.numel() for value in state.values())
        assert shown["totals"]["by_dtype"]["F16"] == {"tensors": 1, "elements": 64, "bytes": 128}
        assert "trained" not in shown["totals"]  # such a file does not tell parameters from buffers
        assert shown["files"][0]["metadata"]["origin"] == "test"


def test_inspect_for_people(tmp_path):
    save_file({"long.name.weight": torch.zeros(300, 1000), "b": torch.zeros(2, dtype=torch.int64)},
              tmp_path / "model.safetensors")
    lines = run("inspect", tmp_path).stdout.splitlines()
    assert lines[0].startswith("model.safetensors  1.2 MB, safetensors, 2 tensors")
    rows = [line for line in lines if "[300, 1000]" in line or line.startswith("  NAME")]
    assert rows[0].index("SHAPE") == rows[1].index("[300")
    assert rows[1].endswith("1.2 MB") and len(rows[0]) == len(rows[1])
    assert "Total: 2 tensors, 300,002 elements, 1.2 MB" in lines
    assert not any("parameter" in line for line in lines)


def test_names_cannot_write_to_the_terminal(tmp_path):
    save_file({"\x1b[31mred\nline": torch.zeros(1)}, tmp_path / "model.safetensors")
    shown = run("inspect", tmp_path).stdout
    assert "\x1b" not in shown and r"\x1b[31mred\x0aline" in shown


def test_inspect_torch_files(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.25)
    parameter.grad = torch.ones(3)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.bin")
    file = json.loads(run("inspect", tmp_path / "optimizer.bin", "--json").stdout)["files"][0]
    assert {"state.0.exp_avg", "state.0.step"} <= {tensor["name"] for tensor in file["tensors"]}
    assert file["values"]["param_groups.0.lr"] == 0.25 and file["values"]["param_groups.0.params"] == [0]
    torch.save({"scale": 65536.0, "growth": float("inf")}, tmp_path / "scaler.pt")
    file = json.loads(run("inspect", tmp_path / "scaler.pt", "--json").stdout)["files"][0]
    assert file["values"] == {"scale": 65536.0, "growth": "Infinity"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
                                   torch.int32, torch.int16, torch.int8, torch.uint8])
def test_statistics(tmp_path, rng, dtype):
    torch.manual_seed(rng.randrange(2**32))
    value = (torch.randn(1_500_000) * 40 + 50).clamp(0, 120).to(dtype)
    if dtype.is_floating_point:
        value[1], value[5], value[7] = float("nan"), float("inf"), float("-inf")
    save_file({"x": value}, tmp_path / "x.safetensors")
    shown = json.loads(run("inspect", tmp_path / "x.safetensors", "--tensor", "x", "--json").stdout)
    finite = value[torch.isfinite(value)]
    assert (shown["min"], shown["max"]) == (finite.min().item(), finite.max().item())
    assert shown["mean"] == pytest.approx(finite.double().mean().item(), rel=1e-12)
    assert (shown["nan"], shown["inf"]) == ((1, 2) if dtype.is_floating_point else (0, 0))
    if dtype.is_floating_point:
        assert (shown["first"][1], shown["first"][5], shown["first"][7]) == ("NaN", "Infinity", "-Infinity")
    assert shown["first"][0] == value[0].item() and len(shown["first"]) == 8


def test_large_integers_are_exact(tmp_path):
    save_file({"x": torch.tensor([2**63 - 1, -2**63])}, tmp_path / "x.safetensors")
    shown = json.loads(run("inspect", tmp_path / "x.safetensors", "--tensor", "x", "--json").stdout)
    assert (shown["min"], shown["max"]) == (-2**63, 2**63 - 1)


def test_unknown_tensor(tmp_path):
    save_file({"lm_head.weight": torch.zeros(1)}, tmp_path / "x.safetensors")
    result = run("inspect", tmp_path / "x.safetensors", "--tensor", "lm_head.wieght", code=2)
    assert "did you mean 'lm_head.weight'?" in result.stderr


# --- verify ---------------------------------------------------------------------------------------

def damage(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def test_verify_models(tmp_path, sharded):
    folder, _ = sharded
    count = len(list(folder.iterdir()))
    assert run("verify", folder).stdout.count("ok ") == count
    shard = sorted(folder.glob("model-*"))[-1]
    shard.write_bytes(shard.read_bytes()[:-1])
    result = run("verify", folder, code=1)
    assert f"DAMAGED  {shard}" in result.stdout and str(shard) in result.stderr
    shard.unlink()
    assert f"A file of the model is missing: {shard}" in run("verify", folder, code=1).stderr
    (folder / "model.checksums.json").unlink()
    assert "missing" in run("verify", folder, code=1).stderr


def test_verify_torch_files(tmp_path):
    # The file holds a class that is not known here, but it is intact.
    torch.save({"w": torch.ones(1000), "other": pathlib.PurePosixPath("x")}, tmp_path / "optimizer.bin")
    run("verify", tmp_path / "optimizer.bin")
    damage(tmp_path / "optimizer.bin", 2000)
    assert "checksum" in run("verify", tmp_path, code=1).stderr


def test_checkpoints(tmp_path):
    subprocess.run([os.environ["ACCELERANT_CHECKPOINT_SAVER"], tmp_path / "checkpoints", "rotate", "3"], check=True,
                   stdout=subprocess.DEVNULL)
    for path in tmp_path, tmp_path / "checkpoints":
        lines = run("verify", path).stdout.splitlines()
        assert sum(line.endswith("manifest.json") for line in lines) == 2
        assert all(line.startswith("ok ") for line in lines[:-1])
    last = tmp_path / "checkpoints" / "checkpoint_2"
    # The model in these checkpoints cannot be read, which is reported; the manifest is good.
    shown = json.loads(run("inspect", last, "--json", code=1).stdout)
    assert shown["kind"] == "checkpoint" and shown["manifest"]["good"]
    manifest = json.loads((last / "manifest.json").read_text())
    assert sorted(manifest["files"]) == sorted(file["name"] for file in shown["files"])
    assert shown["manifest"]["content"] == manifest["content"]
    name, record = max(manifest["files"].items(), key=lambda item: item[1]["size"])
    damage(last / name, record["size"] // 2)
    result = run("verify", tmp_path / "checkpoints", code=1)
    assert f"DAMAGED  {last / name}\n" in result.stdout and result.stdout.count("DAMAGED") == 1
    assert "damaged: its checksum is" in result.stderr
    assert "all present" in run("inspect", last, code=1).stdout.split("Manifest:")[1]  # looks at sizes only
    (last / name).unlink()
    assert f"{name} is missing" in run("inspect", last, code=1).stderr


def test_a_lost_manifest(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    subprocess.run([os.environ["ACCELERANT_CHECKPOINT_SAVER"], checkpoints, "rotate", "3"], check=True,
                   stdout=subprocess.DEVNULL)
    lost = checkpoints / "checkpoint_2" / "manifest.json"
    lost.unlink()
    for path in tmp_path, checkpoints, lost.parent, f"{lost.parent}/":
        result = run("verify", path, code=1)
        assert f"DAMAGED  {lost}\n" in result.stdout and result.stdout.count("DAMAGED") == 1
        assert str(lost) in result.stderr
    (lost.parent / "optimizer.bin").touch()  # as Python saves, whose folders have no manifest
    assert str(lost) not in run("verify", checkpoints, code=1).stdout


def test_a_file_that_cannot_be_read_is_no_damaged_one(tmp_path):
    """A file of 0 bytes whose first byte is an error of the disk."""
    with open("/proc/self/mem", "rb", buffering=0) as unreadable:
        try:
            unreadable.read(1)
            pytest.skip("this system has no file that cannot be read")
        except OSError as error:
            assert error.errno == errno.EIO
    subprocess.run([os.environ["ACCELERANT_CHECKPOINT_SAVER"], tmp_path / "checkpoints", "rotate", "1"], check=True,
                   stdout=subprocess.DEVNULL)
    checkpoint = tmp_path / "checkpoints" / "checkpoint_0"
    (checkpoint / "empty").unlink()
    (checkpoint / "empty").symlink_to("/proc/self/mem")
    files = len(json.loads((checkpoint / "manifest.json").read_text())["files"]) + 1
    result = run("verify", tmp_path, code=1)
    assert f"UNREAD   {checkpoint}/empty\n" in result.stdout and "DAMAGED" not in result.stdout
    assert result.stdout.endswith(f"\n{files} files, 0 damaged, 1 that could not be read\n")
    assert f"{checkpoint}/empty cannot be read: Input/output error" in result.stderr
    damage(checkpoint / "model.safetensors", 2000)
    result = run("verify", tmp_path, code=1)
    assert result.stdout.endswith(f"\n{files} files, 1 damaged, 1 that could not be read\n")


@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "replaced"])
def test_verify_counts_no_checkpoint_that_a_training_removes(tmp_path, is_replaced):
    """After its manifest was read. If nothing else was verified, that is no success."""
    checkpoints = tmp_path / "checkpoints"
    subprocess.run([os.environ["ACCELERANT_CHECKPOINT_SAVER"], checkpoints, "rotate", "1"], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.copytree(checkpoints / "checkpoint_0", tmp_path / "next")
    verifying = subprocess.Popen([COMMAND, "verify", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=clean_environment(ACCELERANT_FAILPOINT="verify.file:stop@2"))
    os.waitpid(verifying.pid, os.WUNTRACED)
    shutil.rmtree(checkpoints / "checkpoint_0")
    if is_replaced:
        (tmp_path / "next").rename(checkpoints / "checkpoint_1")
    os.kill(verifying.pid, signal.SIGCONT)
    out, err = verifying.communicate(timeout=DEADLINE)
    assert f"removed  {checkpoints / 'checkpoint_0'}\n" in out
    if is_replaced:
        files = len(json.loads((checkpoints / "checkpoint_1" / "manifest.json").read_text())["files"]) + 1
        assert verifying.returncode == 0 and out.endswith(f"\n{files} files, 0 damaged\n"), out + err
    else:
        assert verifying.returncode == 2 and "contains no complete checkpoint" in err, out + err


def test_verify_does_not_pass_what_has_no_checkpoint(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    for unfinished in False, True:
        if unfinished:
            (checkpoints / "checkpoint_0.tmp").mkdir()
        for path in tmp_path, checkpoints:
            run("verify", path, code=2)


def test_verify_says_what_is_no_model(tmp_path):
    assert "contains neither checkpoints nor a model" in run("verify", tmp_path, code=2).stderr


def test_verify_counts_one_file(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert run("verify", tmp_path).stdout.endswith("\n1 file, 0 damaged\n")


# --- errors ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [["inspect"], ["verify"], ["convert", "OUT"], ["merge-weights", "OUT"]])
def test_errors(tmp_path, arguments):
    command, *rest = arguments
    rest = [tmp_path / "out" for _ in rest]
    missing = run(command, tmp_path / "missing", *rest, code=2).stderr
    assert missing == f"accelerant: error: {tmp_path / 'missing'} does not exist\n"
    run(command, code=2)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{\"a\":1}")
    assert "model.safetensors" in run(command, tmp_path / "model.safetensors", *rest, code=1).stderr
    (tmp_path / "empty").mkdir()
    result = run(command, tmp_path / "empty", *rest, code=2 if command == "verify" else 1)
    assert "model" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [["--dtype", "f8"], ["--max-shard-size", "5"], ["--format", "onnx"], ["--dtyp", "f16"]])
def test_wrong_options(tmp_path, sharded, options):
    run("convert", sharded[0], tmp_path / "out", *options, code=2)
    assert not (tmp_path / "out").exists()


def test_an_optimizer_is_no_model(tmp_path):
    torch.save({"state": {}, "param_groups": []}, tmp_path / "optimizer.bin")
    assert "is not a saved model" in run("convert", tmp_path / "optimizer.bin", tmp_path / "out", code=1).stderr
