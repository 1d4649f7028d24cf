"""The list of checksums beside a model does not disturb Python's libraries."""

import ctypes
import json
import pathlib
import re
import shutil
import sys
import types
import warnings

import accelerate
import huggingface_hub
import pytest
import replay
import safetensors.torch
import torch
import transformers
from models_fuzz_test import describe, document, same


@pytest.fixture(scope="module")
def models():
    tool = replay.Replay("models", deadline=240)
    yield tool
    tool.close()


def tiny_model():
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=32, max_position_embeddings=20)
    return transformers.BertModel(config)


@pytest.fixture
def saved(models, tmp_path, request):
    """A model of transformers, and the folder of the same model saved here."""
    size, safe = request.param
    model = tiny_model()
    model.save_pretrained(tmp_path / "theirs")
    state = model.state_dict()
    ours = tmp_path / "ours"
    result = models(document(load=str(tmp_path / "theirs"), save=str(ours), tensors=describe(state),
                             max_shard_size=size, safe_serialization=safe))
    assert "error" not in result, result
    assert (ours / "model.checksums.json").exists()
    assert len(list(ours.iterdir())) > 3 if size == "10KB" else len(list(ours.iterdir())) == 2
    shutil.copy(tmp_path / "theirs" / "config.json", ours)
    return state, ours


KINDS = [("10GB", True), ("10KB", True), ("10GB", False)]


def assert_loaded(model, state):
    loaded = model.state_dict()
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert same(loaded[name], tensor), name


@pytest.mark.parametrize("saved", KINDS, indirect=True)
def test_transformers_and_accelerate_load_the_folder(saved):
    state, folder = saved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_loaded(transformers.AutoModel.from_pretrained(folder), state)
        model = tiny_model()
        accelerate.load_checkpoint_in_model(model, str(folder), strict=True)
        assert_loaded(model, state)
        assert_loaded(accelerate.load_checkpoint_and_dispatch(tiny_model(), str(folder)), state)


@pytest.mark.parametrize("saved", KINDS[:2], indirect=True)
def test_safetensors_and_the_hub_load_the_folder(saved):
    state, folder = saved
    found = {}
    for file in folder.glob("*.safetensors"):
        found.update(safetensors.torch.load_file(file))
    assert found.keys() == state.keys()
    model = tiny_model()
    huggingface_hub.load_torch_model(model, folder)
    assert_loaded(model, state)


def xxh3_64_hexdigest(data: bytes) -> str:
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype = ctypes.c_uint64
    return f"{library.XXH3_64bits(data, ctypes.c_size_t(len(data))):016x}"


@pytest.mark.parametrize("saved", KINDS, indirect=True)
def test_the_program_on_the_page_about_the_format(saved, monkeypatch):
    _, folder = saved
    page = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoint_format.md").read_text("utf-8")
    program, = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "block_bytes" in code)
    monkeypatch.setitem(sys.modules, "xxhash", types.SimpleNamespace(xxh3_64_hexdigest=xxh3_64_hexdigest))
    monkeypatch.setattr(sys, "argv", ["program", str(folder)])
    exec(program, {})
    names = [path.name for path in folder.iterdir() if path.name not in ("config.json", "model.checksums.json")]
    assert sorted(json.loads((folder / "model.checksums.json").read_text())["files"]) == sorted(names)
    content = bytearray((folder / names[0]).read_bytes())
    content[-1] ^= 1
    (folder / names[0]).write_bytes(content)
    with pytest.raises(AssertionError, match=names[0]):
        exec(program, {})


@pytest.mark.parametrize("saved", KINDS[:1], indirect=True)
def test_a_model_that_python_saves_over_it(models, saved):
    """It is refused until the list is removed, and the error says so."""
    state, folder = saved
    other = tiny_model()
    other.save_pretrained(folder)
    request = document(load=str(folder), save=str(folder.parent / "again"), tensors=describe(state))
    error = models(request)["error"]
    assert f"remove {folder / 'model.checksums.json'}" in error, error
    (folder / "model.checksums.json").unlink()
    assert "error" not in models(request)
    found = safetensors.torch.load_file(folder.parent / "again" / "model.safetensors")
    assert all(same(found[name], tensor) for name, tensor in other.state_dict().items())
