"""Compares the reader and writer of torch's file format with torch.save and torch.load(weights_only=True).

Python writes random states and we read them, and the other way round. Then files are damaged: the
reader must refuse them or find what Python finds in them, and must never crash.
"""

import collections
import io
import os
import sys
import warnings
import zipfile

import pytest
import torch
from damage import damage
from torch_values import describe, difference, python_load, random_value, real_states

TOPIC = "torch_archive"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "3000"))


# --- Tests ----------------------------------------------------------------------------------------


def check_both_ways(replay, folder, state):
    original, copy = str(folder / "original.pt"), str(folder / "copy.pt")
    torch.save(state, original)
    expected = describe(python_load(original))
    result = replay({"op": "read", "path": original})
    assert difference(result, {"value": expected}) is None
    assert replay({"op": "kind", "path": original}) == {"kind": "python_state"}
    assert replay({"op": "copy", "path": original, "to": copy}) == {}
    assert difference(describe(python_load(copy)), expected) is None
    assert difference(describe(python_load(copy, mmap=True)), expected) is None
    assert zipfile.ZipFile(copy).testzip() is None


def test_real_states(replay, tmp_path):
    count = 0
    for state in real_states():
        check_both_ways(replay, tmp_path, state)
        count += 1
    assert count > 40


def test_random_states(replay, rng, tmp_path):
    for _ in range(DOCUMENTS // 10):
        check_both_ways(replay, tmp_path, random_value(rng, []))


def test_offsets_are_where_torch_computes_them(replay, rng, tmp_path, monkeypatch):
    """With this setting torch.load computes where the records must be instead of looking for them."""
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    original, copy = str(tmp_path / "original.pt"), str(tmp_path / "copy.pt")
    for _ in range(20):
        state = [torch.randn(rng.choice([0, 1, 5, 100])) for _ in range(rng.randrange(20))]
        torch.save(state, original)
        assert replay({"op": "copy", "path": original, "to": copy}) == {}
        expected = describe(python_load(original))
        assert describe(python_load(copy)) == expected
        with torch.utils.serialization.config.patch({"load.calculate_storage_offsets": True}):
            assert describe(python_load(copy, mmap=True)) == expected


def test_the_same_value_gives_the_same_bytes(replay, tmp_path):
    state = {"a": torch.ones(5), "b": [1, 2.5, "x"]}
    contents = set()
    for name in ("first", "second"):
        torch.save(state, tmp_path / f"{name}.pt")
        assert replay({"op": "copy", "path": str(tmp_path / f"{name}.pt"), "to": str(tmp_path / "copy")}) == {}
        contents.add((tmp_path / "copy").read_bytes())
    assert len(contents) == 1


def test_other_ways_to_save(replay, tmp_path):
    state = {"weight": torch.randn(3), "text": "x" * 300, "bytes": b"abc", "set": {1, 2}, "big": 2**40,
             "nested": [{"a": (1, 2, 3, 4)}], "array": bytearray(b"xyz")}
    path = str(tmp_path / "state.pt")
    for protocol in (2, 3, 4, 5):
        torch.save(state, path, pickle_protocol=protocol)
        assert replay({"op": "read", "path": path}) == {"value": describe(state)}
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert replay({"op": "read", "path": path}) == {"value": describe(state)}


def test_deep_nesting(replay, tmp_path):
    nested = []
    for _ in range(150):
        nested = [{"a": nested}]
    check_both_ways(replay, tmp_path, nested)


def save_and_read(replay, tmp_path, state, **options):
    torch.save(state, tmp_path / "x.pt", **options)
    return replay({"op": "read", "path": str(tmp_path / "x.pt")})["error"]


def test_what_is_no_plain_data_is_refused(replay, tmp_path):
    for state, text in [
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (collections.defaultdict(list), "collections.defaultdict"),
        (torch.eye(2).to_sparse(), "_rebuild_sparse_tensor"),
        (complex(1, 2), "builtin__.complex"),
        (2**64, "integer is too large"),
        (torch.ones(2, dtype=torch.complex64).conj(), "conjugate"),
        (torch.empty(2, device="meta"), "_rebuild_meta_tensor_no_storage"),
        (torch.ones(2).untyped_storage(), "storage outside a tensor"),
        (print, "builtin__.print"),
    ]:
        assert text in save_and_read(replay, tmp_path, state)
    itself = []
    itself.append(itself)
    assert "contains itself" in save_and_read(replay, tmp_path, itself)
    legacy = save_and_read(replay, tmp_path, [1], _use_new_zipfile_serialization=False)
    assert "before version 1.6" in legacy
    assert replay({"op": "kind", "path": str(tmp_path / "x.pt")}) == {"kind": "legacy"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(1, 1)).save(str(tmp_path / "s.pt"))
    assert "torch::jit::load" in replay({"op": "read", "path": str(tmp_path / "s.pt")})["error"]
    assert replay({"op": "kind", "path": str(tmp_path / "s.pt")}) == {"kind": "torchscript_or_cpp"}


# --- Damage ---------------------------------------------------------------------------------------


OPCODES = [bytes([code]) for code in b"()]}.tRabsuQqhKMJGNX\x85\x86\x87\x88\x89\x8a"]


def with_pickle(archive, pickle):
    """The archive with another pickle and a matching checksum."""
    source, target = zipfile.ZipFile(io.BytesIO(archive)), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as result:
        for entry in source.infolist():
            is_pickle = entry.filename.endswith("/data.pkl")
            result.writestr(entry.filename, pickle if is_pickle else source.read(entry))
    return target.getvalue()


def seeds_of_damage(rng):
    for state in real_states():
        yield state
    while True:
        yield random_value(rng, [])


def test_damaged_files(replay, rng, tmp_path):
    """Python reads only the files that we accept: damaged sizes make it read memory that is not its own."""
    path = str(tmp_path / "damaged.pt")
    accepted = compared = 0
    states = seeds_of_damage(rng)
    archive = None
    for number in range(DOCUMENTS):
        if number % 10 == 0:
            buffer = io.BytesIO()
            torch.save(next(states), buffer)
            archive = buffer.getvalue()
        in_pickle = rng.random() < 0.7
        if in_pickle:
            pickle = zipfile.ZipFile(io.BytesIO(archive)).read("archive/data.pkl")
            content = with_pickle(archive, damage(rng, pickle, OPCODES))
        else:
            content = damage(rng, archive, OPCODES)
        (tmp_path / "damaged.pt").write_bytes(content)
        result = replay({"op": "read", "path": path, "verify": rng.random() < 0.5})
        if "error" in result:
            assert "value" not in result
            continue
        accepted += 1
        try:
            expected = describe(python_load(path, map_location="cpu"))
        except Exception:
            continue  # we may be more lenient, as with the opcodes of later protocols
        if python_misreads(path, content):
            continue
        compared += 1
        forget_what_damage_changes(result)
        forget_what_damage_changes(expected)
        assert difference(result["value"], expected) is None, content.hex()
    print(f"{DOCUMENTS} damaged files: {accepted} accepted, {compared} of them by Python too")
    assert compared > DOCUMENTS // 50


def python_misreads(path, content) -> bool:
    """Whether torch's archive reader returns bytes of a record that differ from those in the file. With some damaged
    lists of records it returns uninitialised memory."""
    try:
        entries = zipfile.ZipFile(io.BytesIO(content)).infolist()
    except (zipfile.BadZipFile, NotImplementedError):
        return True  # cannot tell, so assume it
    reader = torch._C.PyTorchFileReader(path)
    for entry in entries:
        folder, _, name = entry.filename.partition("/")
        if not name.startswith("data/"):
            continue
        sizes = content[entry.header_offset + 26:entry.header_offset + 30]
        start = entry.header_offset + 30 + int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
        if reader.get_record(name) != content[start:start + entry.file_size]:
            return True
    return False


def forget_what_damage_changes(description):
    """Removes what torch changes in damaged files. map_location puts tensors with damaged device names on the CPU.
    Torch makes damaged booleans 0 or 1 when it copies elements; their bytes in the storage are still compared."""
    if isinstance(description, dict):
        description.pop("location", None)
        if description.get("dtype") == "BOOL":
            description.pop("elements", None)
        for value in description.values():
            forget_what_damage_changes(value)
    elif isinstance(description, list):
        for value in description:
            forget_what_damage_changes(value)


@pytest.mark.skipif("ACCELERANT_LARGE_FILES" not in os.environ, reason="reads 14 GB")
def test_files_beyond_4_gib(replay, tmp_path):
    """Sizes and offsets of more than 32 bits, in files that are mostly holes."""
    path = str(tmp_path / "large.pt")
    sizes = [5, 2**32 - 1, 2**32 + 70, 100]
    assert replay({"op": "large", "to": path, "bytes": sizes}) == {}
    for options in ({"calculate": False}, {"calculate": True}):
        patch = {"load.calculate_storage_offsets": options["calculate"]}
        with torch.utils.serialization.config.patch(patch):
            tensors = python_load(path, mmap=True)
        assert [tensor.numel() for tensor in tensors] == sizes
        assert [int(tensor[-1]) for tensor in tensors] == [1, 2, 3, 4]
    assert replay({"op": "copy", "path": path, "to": str(tmp_path / "copy.pt")}) == {}
    assert [int(tensor[-1]) for tensor in python_load(str(tmp_path / "copy.pt"), mmap=True)] == [1, 2, 3, 4]


sys.setrecursionlimit(10_000)  # for descriptions of deeply nested states
