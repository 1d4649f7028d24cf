"""Compares the splitting of models over several files with huggingface_hub."""

import json
from pathlib import PureWindowsPath

from accelerate.utils.modeling import convert_file_size_to_int
from huggingface_hub.serialization._base import parse_size_to_int, split_state_dict_into_shards_factory
from safetensors_files import in_batches, random_name

TOPIC = "safetensors"


def test_split(replay, rng):
    documents, expected = [], []
    for _ in range(1000):
        largest = rng.choice([0, 1, 10, 100])
        tensors = {random_name(rng): (rng.randint(0, 20), rng.choice([None, None, 1, 2, 3]))
                   for _ in range(rng.choice([1, 2, 5, 20]))}
        split = split_state_dict_into_shards_factory(
            tensors, get_storage_size=lambda tensor: tensor[0], get_storage_id=lambda tensor: tensor[1],
            filename_pattern="model{suffix}.safetensors", max_shard_size=largest)
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        documents.append({"split": {"max_bytes": largest,
                                    "tensors": [[name, *tensor] for name, tensor in tensors.items()]}})
        expected.append({"files": [[file, names] for file, names in split.filename_to_tensors.items()],
                         "total_size": split.metadata["total_size"],
                         "index": json.dumps(index, indent=2, sort_keys=True) + "\n"})
    for (document, result), wanted in zip(in_batches(replay, documents), expected):
        assert result == wanted, document


def python_byte_size(text):
    """The size in bytes; None for an error. What our parser refuses on purpose counts as an error."""
    if text.strip()[:1] in ("+", "-") or "_" in text or "n" in text.lower():
        return None  # signs, 1_000, inf and nan
    try:
        if text.strip().lower().endswith("ib"):
            return convert_file_size_to_int(text.strip())
        return parse_size_to_int(text)
    except (ValueError, OverflowError):
        return None


def test_byte_size(replay, rng):
    documents = []
    for _ in range(1000):
        number = rng.choice([str(rng.randrange(1000)), repr(rng.uniform(0, 100)), f"{rng.uniform(0, 9):.2e}", "1e3",
                             ".5", "5.", "", "x", "1.2.3", "-1", "inf", "1_0"])
        unit = rng.choice(["KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "gb", "Gb", "kib", "B", "", "PB", "iB"])
        space = rng.choice(["", "", " ", "\t"])
        documents.append({"byte_size": space + number + rng.choice(["", "", " "]) + unit + space})
    accepted = 0
    for document, result in in_batches(replay, documents):
        expected = python_byte_size(document["byte_size"])
        accepted += expected is not None
        assert result.get("bytes") == expected and ("error" in result) == (expected is None), document
    assert accepted > 300


def test_shard_names(replay, rng):
    pieces = ["..", ".", "/", "\\", "a", "C:", ":", "model", ".safetensors", "x.bin", " "]
    documents = []
    for _ in range(2000):
        name = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 5)))
        documents.append({"shard_name": name + (".safetensors" if rng.random() < 0.8 else "")})
    accepted = 0
    for document, result in in_batches(replay, documents):
        name = document["shard_name"]
        path = PureWindowsPath(name)  # as huggingface_hub does
        # Which characters may name a drive depends on the version of Python.
        refused = name[1:2] == ":" or path.drive or path.root or ".." in path.parts or not name.endswith(".safetensors")
        accepted += not refused
        assert ("error" in result) == bool(refused), name
    assert accepted > 200
