"""Files of single objects move between Python and C++: scalers, tensors, and dicts of tensors."""

import os
import random

import accelerate
import pytest
import safetensors.torch
import torch
from replay import seed_from_environment

TOPIC = "python_files"
ROUNDS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "60"))
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


def same(left, right):
    return (left.dtype == right.dtype and left.shape == right.shape
            and left.contiguous().flatten().view(torch.uint8).equal(right.contiguous().flatten().view(torch.uint8)))


def random_tensor(rng, dtypes):
    numbers = torch.randn([rng.choice([0, 1, 2, 5]) for _ in range(rng.randrange(4))]) * 10
    dtype = rng.choice(dtypes)
    numbers = numbers.abs() if dtype == torch.uint8 else numbers
    tensor = numbers > 0 if dtype == torch.bool else numbers.to(dtype)
    return tensor.transpose(0, 1) if tensor.dim() > 1 and rng.random() < 0.3 else tensor


# --- Scalers --------------------------------------------------------------------------------------


def test_scalers(replay, rng, tmp_path):
    for number in range(20):
        scale = torch.tensor(2.0**rng.uniform(-20, 30)).item()  # a float32
        state = {"scale": scale, "growth_factor": rng.uniform(1.1, 4), "backoff_factor": rng.random(),
                 "growth_interval": rng.randint(1, 5000), "_growth_tracker": rng.randrange(9)}
        theirs = torch.amp.GradScaler("cpu")
        theirs.load_state_dict(state)
        torch.save(theirs.state_dict(), tmp_path / "theirs.pt")
        result = replay({"scaler": {"load": str(tmp_path / "theirs.pt"), "save": str(tmp_path / "ours.pt")}})
        assert "error" not in result, result
        ours = torch.load(tmp_path / "ours.pt", weights_only=True)
        assert ours == state
        assert [type(value) for value in ours.values()] == [type(value) for value in state.values()]
        loaded = torch.amp.GradScaler("cpu")
        loaded.load_state_dict(ours)
        assert loaded.state_dict() == ours


def test_files_that_are_no_scaler(replay, tmp_path):
    def error(value):
        torch.save(value, tmp_path / "scaler.pt")
        return replay({"scaler": {"load": str(tmp_path / "scaler.pt"), "save": str(tmp_path / "ours.pt")}})["error"]

    assert "scaler.pt: The source state dict is empty" in error(torch.amp.GradScaler("cpu", enabled=False).state_dict())
    assert "got a Python list" in error([])
    assert "scaler.pt: " in error({"scale": "high"})
    assert "nothing was executed" in error(torch.nn.Linear(1, 1))
    assert "none.pt" in replay({"scaler": {"load": str(tmp_path / "none.pt"), "save": ""}})["error"]
    assert not (tmp_path / "ours.pt").exists()


# --- Tensors --------------------------------------------------------------------------------------


def ask(replay, load, save, safe, single=None):
    return replay({"tensors": {"load": str(load), "save": str(save), "safe_serialization": safe, "single": single}})


def test_tensors(replay, tmp_path):
    seed = seed_from_environment()
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(ROUNDS):
        from_safe, to_safe = rng.random() < 0.5, rng.random() < 0.5
        dtypes = DTYPES if from_safe or to_safe else [*DTYPES, torch.complex128]
        state = {f"näme.{i}": random_tensor(rng, dtypes) for i in range(rng.randint(1, 8))}
        load, save = tmp_path / f"in{number}.pt", tmp_path / f"out{number}.bin"
        if from_safe:
            accelerate.utils.save({name: tensor.contiguous() for name, tensor in state.items() if tensor.numel()}, load,
                                  safe_serialization=True)
            state = {name: tensor for name, tensor in state.items() if tensor.numel()}
        else:
            accelerate.utils.save(state, load)
        single = rng.choice(list(state)) if state and rng.random() < 0.3 else None
        result = ask(replay, load, save, to_safe, single)
        assert "error" not in result, (result, seed, number)
        assert sorted(sum(result["names"], [])) == sorted(state), (seed, number)
        back = safetensors.torch.load_file(save) if to_safe else torch.load(save, weights_only=True)
        if single:
            back = {single: back["tensor"] if to_safe else back}
            state = {single: state[single]}
        assert back.keys() == state.keys()
        for name, tensor in state.items():
            assert same(back[name], tensor), (name, seed, number)


@pytest.mark.parametrize("safe", [True, False])
def test_one_tensor_of_two_names(replay, tmp_path, safe):
    weight = torch.randn(3, 4)
    torch.save({"b": weight, "a": weight, "c": weight.clone(), "part": weight[:2]}, tmp_path / "in.pt")
    first = ask(replay, tmp_path / "in.pt", tmp_path / "out", safe)
    assert sorted(sorted(names) for names in first["names"]) == [["a", "b"], ["c"], ["part"]]
    again = ask(replay, tmp_path / "out", tmp_path / "again", False)
    assert sorted(sorted(names) for names in again["names"]) == [["a", "b"], ["c"], ["part"]]
    back = torch.load(tmp_path / "again", weights_only=True)
    assert same(back["a"], weight) and back["a"].data_ptr() == back["b"].data_ptr() and same(back["part"], weight[:2])


def test_a_single_tensor_of_python(replay, tmp_path):
    tensor = torch.randn(2, 3).conj()
    torch.save(tensor, tmp_path / "tensor.pt")
    assert ask(replay, tmp_path / "tensor.pt", tmp_path / "out", True)["names"] == [["tensor"]]
    assert same(safetensors.torch.load_file(tmp_path / "out")["tensor"], tensor)


def test_files_that_have_no_tensors(replay, tmp_path):
    def error(path):
        return ask(replay, path, tmp_path / "out", True)["error"]

    assert "No such file" in error(tmp_path / "none.pt")
    for value, text in [({"a": 1}, "got a Python dict"), ([torch.ones(1)], "got a Python list"),
                        ({1: torch.ones(1)}, "got a Python dict"), (torch.nn.Linear(1, 1), "nothing was executed")]:
        torch.save(value, tmp_path / "other.pt")
        assert text in error(tmp_path / "other.pt"), value
    torch.save({"a": torch.ones(500)}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:size])
        assert "cut.pt" in error(tmp_path / "cut.pt")
    assert not (tmp_path / "out").exists()
    assert "out" in ask(replay, tmp_path / "whole.pt", tmp_path / "no folder" / "out", True)["error"]


# --- TorchScript ----------------------------------------------------------------------------------


def test_the_weights_of_a_script_are_taken_and_no_code_is_run(replay, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.jit.script(net).save(tmp_path / "script.pt")
    result = ask(replay, tmp_path / "script.pt", tmp_path / "out", True)
    assert "error" not in result, result
    back = safetensors.torch.load_file(tmp_path / "out")
    assert back.keys() == net.state_dict().keys()
    for name, tensor in net.state_dict().items():
        assert same(back[name], tensor), name


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = torch.ones(2)
        self.training = True

    @torch.jit.export
    def __getstate__(self):
        return (self.numbers, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.numbers = state[0]
        self.training = state[1]

    def forward(self, x):
        return x + self.numbers


def test_a_script_that_saves_itself_by_code_is_refused(replay, tmp_path):
    torch.jit.script(Own()).save(tmp_path / "script.pt")
    assert "sets attributes" in ask(replay, tmp_path / "script.pt", tmp_path / "out", True)["error"]
