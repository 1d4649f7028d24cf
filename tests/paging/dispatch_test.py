"""Dispatched models against Accelerate's: the same checkpoint, map and input give the same output."""

import random

import accelerate
import pytest
import torch
from safetensors.torch import load_file, save_file

TOPIC = "dispatch"
CASES = 40


class Layers(torch.nn.Module):
    def __init__(self, widths):
        super().__init__()
        for i, (before, after) in enumerate(widths):
            self.add_module(str(i), torch.nn.Linear(before, after))

    def forward(self, x):
        for i, layer in enumerate(self.children()):
            x = layer(x if i == 0 else torch.nn.functional.gelu(x))
        return x


def random_widths(rng: random.Random):
    """Most weights are large enough to come and go, some are not."""
    sizes = [rng.choice([16, 320, 384]) for _ in range(rng.randint(3, 6))]
    return list(zip(sizes, sizes[1:]))


def random_map(rng: random.Random, layers: int):
    names = [str(i) for i in range(layers)]
    if rng.random() < 0.3:  # down to single tensors
        i = rng.randrange(layers)
        names[i : i + 1] = [f"{i}.weight", f"{i}.bias"]
    return {name: rng.choice(["cpu", "disk"]) for name in names}


def can_accelerate_run(device_map):
    """It gives safetensors a device named "disk" if there is no other, and forgets to bring single tensors in."""
    return set(device_map.values()) != {"disk"} and not any("." in name for name in device_map)


def output_of_accelerate(tmp_path, checkpoint, widths, device_map, dtype, x):
    with accelerate.init_empty_weights():
        model = Layers(widths)
    model = accelerate.load_checkpoint_and_dispatch(
        model,
        str(checkpoint),
        device_map=device_map,
        offload_folder=str(tmp_path / "theirs"),
        dtype=dtype,
    )
    with torch.no_grad():
        return model(x)


@pytest.mark.parametrize("case", range(CASES))
def test_outputs_are_those_of_accelerate(replay, rng, tmp_path, case):
    widths = random_widths(rng)
    device_map = random_map(rng, len(widths))
    dtype = rng.choice([None, None, "bfloat16"])
    torch.manual_seed(rng.randrange(2**31))
    original = Layers(widths)
    state = {name: value.contiguous() for name, value in original.state_dict().items()}
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    if rng.random() < 0.3:
        torch.save(state, checkpoint / "pytorch_model.bin")
    else:
        save_file(state, checkpoint / "model.safetensors", metadata={"format": "pt"})
    x = torch.randn(5, widths[0][0], dtype=torch.bfloat16 if dtype else torch.float32)
    save_file({"tensor": x}, tmp_path / "x.safetensors")

    with torch.no_grad():
        expected = original.to(x.dtype)(x)
    if can_accelerate_run(device_map):
        theirs = output_of_accelerate(tmp_path, checkpoint, widths, device_map, dtype, x)
        assert torch.equal(theirs, expected), device_map
    result = replay(
        {
            "checkpoint": str(checkpoint),
            "layers": widths,
            "device_map": device_map,
            "offload_folder": str(tmp_path / "ours"),
            "dtype": dtype,
            "zero_copy": rng.random() < 0.5,
            "budget": rng.choice([None, 0, 1 << 20]),
            "input": str(tmp_path / "x.safetensors"),
            "output": str(tmp_path / "y.safetensors"),
            "save": str(tmp_path / "saved"),
        }
    )
    assert "error" not in result, (device_map, result)
    assert result["missing"] == [] and result["unexpected"] == []
    assert torch.equal(load_file(tmp_path / "y.safetensors")["tensor"], expected), device_map
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == state.keys()
    for name, value in saved.items():
        assert torch.equal(value, state[name].to(x.dtype)), name


def test_maps_that_leave_something_out_are_refused_with_their_words(replay, tmp_path):
    widths = [(320, 320), (320, 320)]
    torch.manual_seed(0)
    model = Layers(widths)
    save_file(model.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    save_file({"tensor": torch.ones(1, 320)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError) as theirs:
        accelerate.dispatch_model(model, {"0": "cpu"})
    result = replay(
        {
            "checkpoint": str(tmp_path),
            "layers": widths,
            "device_map": {"0": "cpu"},
            "offload_folder": "",
            "dtype": None,
            "zero_copy": True,
            "budget": None,
            "input": str(tmp_path / "x.safetensors"),
            "output": str(tmp_path / "y.safetensors"),
            "save": str(tmp_path / "saved"),
        }
    )
    assert str(theirs.value) in result["error"]
