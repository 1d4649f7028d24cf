"""Compares the reader and the writer of safetensors files with the reference implementation, on random,
damaged and hostile files.

If we refuse a file that the reference accepts, it must have one of the faults in `stricter`.
"""

import collections
import ctypes
import json
import math
import os
import struct

from safetensors import SafetensorError, TensorSpec, deserialize, safe_open, serialize
from safetensors_files import (BATCH, BITS, build, in_batches, random_file, random_metadata, random_name,
                               random_shape, random_valid)

TOPIC = "safetensors"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "6000"))
# The names that the reference's writer uses; it cannot write F6.
PYTHON_NAMES = {"BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8",
                "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
                "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16",
                "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
                "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}

xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3(content):
    return f"{xxhash.XXH3_64bits(content, len(content)):016x}"


# --- The reader -----------------------------------------------------------------------------------


def stricter(content):
    """Why we refuse a file that the reference accepts, or None."""
    length = struct.unpack_from("<Q", content)[0]
    top = json.loads(content[8:8 + length], object_pairs_hook=lambda items: ("object", items))[1]
    if len({name for name, _ in top}) != len(top):
        return "name twice"
    for name, entry in top:
        if name == "__metadata__":
            if entry is not None and len({key for key, _ in entry[1]}) != len(entry[1]):
                return "metadata key twice"
            continue
        if isinstance(entry, list):
            return "entry as array"
        fields = dict(entry[1])
        if not isinstance(fields["dtype"], str):
            return "type as object"
        if len(fields["shape"]) > 64:
            return "rank"
        with_ones = math.prod(max(size, 1) for size in fields["shape"]) * BITS[fields["dtype"]]
        if max(fields["shape"], default=0) >= 2**63 or with_ones >= 2**64:
            return "overflow beside zero"
    return None


def python_read(path, content):
    """What the reference finds in a file, or None if it refuses."""
    try:
        tensors = deserialize(content)
    except SafetensorError:
        return None
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8:8 + length])
    result = []
    for name, tensor in sorted(tensors, key=lambda pair: pair[0].encode()):
        entry = header[name]
        offsets = entry["data_offsets"] if isinstance(entry, dict) else entry[2]
        result.append({"name": name, "dtype": tensor["dtype"], "shape": tensor["shape"], "offsets": offsets,
                       "xxh3": xxh3(bytes(tensor["data"]))})
    with safe_open(path, framework="numpy") as file:
        return {"metadata": file.metadata() or {}, "tensors": result}


def test_read(replay, rng, tmp_path):
    counts = collections.Counter()
    for begin in range(0, DOCUMENTS, BATCH):
        contents = [random_file(rng, begin + i) for i in range(BATCH)]
        paths = [str(tmp_path / str(i)) for i in range(BATCH)]
        for path, content in zip(paths, contents):
            with open(path, "wb") as file:
                file.write(content)
        results = replay({"documents": [{"path": path} for path in paths]})["results"]
        for path, content, result in zip(paths, contents, results):
            expected = python_read(path, content)
            reason = stricter(content) if expected is not None else None
            if expected is None:
                counts["refused"] += 1
                assert result.get("error", "").startswith(path + ": "), (content, result)
            elif reason is not None:
                counts[reason] += 1
                assert result.get("error", "").startswith(path + ": "), (content, reason, result)
            else:
                counts["accepted"] += 1
                assert result == expected, content
    print(dict(counts))
    assert counts["accepted"] > DOCUMENTS // 5 and counts["refused"] > DOCUMENTS // 5
    # Each of our own rules has refused some file.
    assert set(counts) == {"accepted", "refused", "name twice", "metadata key twice", "entry as array",
                           "type as object", "rank", "overflow beside zero"}


def test_slices(replay, rng, tmp_path):
    documents, expected = [], []
    while len(documents) < 400:
        header, data = random_valid(rng)
        path = str(tmp_path / str(len(documents)))
        with open(path, "wb") as file:
            file.write(build(header, data))
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                part = file.get_slice(name)
                shape = part.get_shape()
                if not shape or part.get_dtype() not in ("F32", "F64", "I64", "I32", "I16", "U8", "I8", "BOOL"):
                    continue
                ranges = []
                for size in shape[:rng.randint(1, len(shape))]:
                    first = rng.randint(0, size)
                    ranges.append([first, rng.randint(first, size)])
                array = file.get_tensor(name)[tuple(slice(*pair) for pair in ranges)]
                if all(first < last < size for (first, last), size in zip(ranges, shape)):  # get_slice takes no others
                    sliced = part[tuple(slice(*pair) for pair in ranges)]
                    assert sliced.tobytes() == array.tobytes()
                documents.append({"slice": {"path": path, "name": name, "ranges": ranges}})
                expected.append({"shape": list(array.shape), "hex": array.tobytes().hex()})
    for (document, result), wanted in zip(in_batches(replay, documents), expected):
        assert result == wanted, document


# --- The writer -----------------------------------------------------------------------------------


def python_write(tensors, metadata):
    buffers, specs = [], {}
    for name, dtype, shape, content in tensors:
        buffers.append(ctypes.create_string_buffer(content, len(content) or 1))
        if dtype == "F4":  # the reference takes torch's shape, which counts pairs
            shape = [*shape[:-1], shape[-1] // 2]
        specs[name] = TensorSpec(dtype=PYTHON_NAMES[dtype], shape=shape, data_len=len(content),
                                 data_ptr=ctypes.addressof(buffers[-1]))
    return serialize(specs, metadata)


def test_write(replay, rng, tmp_path):
    documents, expected = [], []
    for number in range(max(1000, DOCUMENTS // 6)):
        tensors = []
        for name in {random_name(rng) for _ in range(rng.choice([0, 1, 2, 5, 20]))}:
            dtype = rng.choice(list(PYTHON_NAMES))
            shape = random_shape(rng, dtype)
            tensors.append((name, dtype, shape, rng.randbytes(math.prod(shape) * BITS[dtype] // 8)))
        rng.shuffle(tensors)
        metadata = rng.choice([None, random_metadata(rng, 1), random_metadata(rng, 3)])
        if not tensors and metadata == {}:
            metadata = None  # otherwise the reference writes text that it cannot read
        documents.append({"write": {
            "path": str(tmp_path / str(number)), "piece": rng.choice([0, 1, 7]), "metadata": metadata,
            "tensors": [{"name": name, "dtype": dtype, "shape": shape, "hex": content.hex()}
                        for name, dtype, shape, content in tensors]}})
        expected.append(python_write(tensors, metadata))
    equal = 0
    for (document, result), wanted in zip(in_batches(replay, documents), expected):
        assert result == {}, document
        with open(document["write"]["path"], "rb") as file:
            content = file.read()
        metadata = document["write"]["metadata"]
        if len(metadata or {}) > 1:  # the reference writes them in no fixed order
            ours, theirs = (json.loads(text[8:8 + struct.unpack_from("<Q", text)[0]]) for text in (content, wanted))
            assert list(ours.items()) == list(theirs.items()) and len(content) == len(wanted), document
            assert list(ours["__metadata__"]) == sorted(metadata, key=str.encode)
        else:
            equal += 1
            assert content == wanted, document
    assert equal >= 500
