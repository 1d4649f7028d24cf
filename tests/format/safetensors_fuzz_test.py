"""The reader and the writer of safetensors files against the reference implementation, and the
splitting over several files against huggingface_hub, on random, damaged and hostile inputs.

Where we refuse what the reference accepts, the file must have one of the faults in `stricter`.
"""

import collections
import ctypes
import json
import math
import os
import struct
from pathlib import PureWindowsPath

from accelerate.utils.modeling import convert_file_size_to_int
from huggingface_hub.serialization._base import parse_size_to_int, split_state_dict_into_shards_factory
from safetensors import SafetensorError, TensorSpec, deserialize, safe_open, serialize

TOPIC = "safetensors"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "6000"))
BATCH = 200
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
        "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}
# What the reference's writer calls them; it writes no F6.
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


def in_batches(replay, documents):
    """(document, result) of each."""
    for begin in range(0, len(documents), BATCH):
        batch = documents[begin:begin + BATCH]
        yield from zip(batch, replay({"documents": batch})["results"])


# --- Random files ---------------------------------------------------------------------------------


def random_name(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(["", "../x", "__metadata", "a\0b", "\"\\/\b\f\n\r\t\x01\x1f\x7f", "dtype", "{", " "])
    if kind == 1:
        ranges = [(0x20, 0x7F), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)]
        return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(1, 5)))
    return rng.choice(["layer", "a", "b", "model.w"]) + f".{rng.randrange(100)}"


def random_shape(rng, dtype):
    shape = [rng.choice([0, 1, 1, 2, 2, 3, 4, 5]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5]))]
    if BITS[dtype] < 8:
        shape.append(4)
    return shape


def random_metadata(rng, largest):
    return {random_name(rng): random_name(rng) for _ in range(rng.randint(0, largest))}


def random_entries(rng):
    """Tensors with offsets, in the order of their data, and the data."""
    entries, position = {}, 0
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        dtype = rng.choice(list(BITS))
        shape = random_shape(rng, dtype)
        size = math.prod(shape) * BITS[dtype] // 8
        name = random_name(rng)
        if name in entries:
            continue
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    return entries, rng.randbytes(position)


def shuffled(rng, mapping):
    items = list(mapping.items())
    rng.shuffle(items)
    return dict(items)


def print_header(rng, header):
    """JSON text in any of the forms that mean the same."""
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
    text = json.dumps(header, ensure_ascii=rng.random() < 0.5, separators=separators,
                      indent=rng.choice([None, None, 1]))
    text = rng.choice(["", "", "", " ", "\n\t\r "]) + text + " " * rng.randrange(9)
    return text.encode()


def build(header, data):
    return struct.pack("<Q", len(header)) + header + data


def random_valid(rng):
    entries, data = random_entries(rng)
    header = shuffled(rng, entries) if rng.random() < 0.3 else dict(entries)
    if rng.random() < 0.2:
        for entry in header.values():
            entry[rng.choice(["extra", "", "strides"])] = rng.choice([None, 1.5, "x", [1, {"a": []}], True])
    if rng.random() < 0.2:
        header = {name: shuffled(rng, entry) for name, entry in header.items()}
    metadata = rng.choice(["absent", "absent", None, random_metadata(rng, 3), random_metadata(rng, 1)])
    if metadata != "absent":
        header = {"__metadata__": metadata, **header} if rng.random() < 0.5 else {**header, "__metadata__": metadata}
    return print_header(rng, header), data


# --- Damage ---------------------------------------------------------------------------------------

NUMBERS = ["0", "1", "2", "4", "-1", "-0", "1.0", "1e0", "01", "\"1\"", "null", "18446744073709551615",
           "18446744073709551616", "9223372036854775807", "9223372036854775808", "4294967296", "[]"]
TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b"\"a\"", b"\"dtype\"", b"\"shape\"", b"\"data_offsets\"",
          b"\"__metadata__\"", b"\"U8\"", b"\"F4\"", b"null", b"true", b" ", b"\\", b"\"", b"\\ud800", b"\\u0041",
          b"1e999", b"0", b"1", b"2"]


def damage_bytes(rng, content):
    content = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(5)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[place:place + rng.randint(1, 4)]
        elif kind == 2:
            content[place:place] = content[place:place + rng.randint(1, 8)]
        elif kind == 3:
            content[place:place] = rng.choice(TOKENS)
        else:
            content[place:place] = rng.randbytes(rng.randint(1, 3))
    return bytes(content)


def damage_number(rng, header):
    """Another number in the place of one."""
    text = header.decode()
    places = [i for i, c in enumerate(text) if c.isdigit() and (i == 0 or not text[i - 1].isalnum())]
    if not places:
        return header
    begin = end = rng.choice(places)
    while end < len(text) and text[end].isdigit():
        end += 1
    return (text[:begin] + rng.choice(NUMBERS) + text[end:]).encode()


def damage_structure(rng, header):
    """An object with an entry removed, doubled, renamed or of another kind."""
    def pairs(items):
        return Pairs(items)

    class Pairs(list):
        pass

    tree = json.loads(header, object_pairs_hook=pairs)

    def objects(node):
        if isinstance(node, Pairs):
            yield node
            for _, value in node:
                yield from objects(value)

    def dump(node):
        if isinstance(node, Pairs):
            return "{" + ",".join(f"{json.dumps(key)}:{dump(value)}" for key, value in node) + "}"
        return json.dumps(node)

    node = rng.choice(list(objects(tree)))
    kind = rng.randrange(6)
    if node:
        place = rng.randrange(len(node))
        key, value = node[place]
        if kind == 0:
            del node[place]
        elif kind == 1:
            node.insert(rng.randrange(len(node) + 1), (key, value))
        elif kind == 2:
            node[place] = (rng.choice(["a", "dtype", "shape", "data_offsets", "__metadata__", random_name(rng)]), value)
        elif kind == 3 and isinstance(value, Pairs):
            node[place] = (key, [item for _, item in value])
        elif kind == 4:
            node[place] = (key, rng.choice([None, 1, "U8", "f32", [], [0, 2**63, 2**63], [1] * 65, Pairs([("U8", None)]), Pairs()]))
    if kind == 5:
        node.append((random_name(rng), Pairs([("dtype", "U8"), ("shape", [0]), ("data_offsets", [0, 0])])))
    return dump(tree).encode()


def plant_fault(rng, header, size):
    """Something that the reference accepts and we do not, unless the header is damaged otherwise."""
    tree = json.loads(header)
    tree[random_name(rng)] = {"dtype": "U8", "shape": [0], "data_offsets": [size, size]}
    name = rng.choice([key for key in tree if key != "__metadata__"])
    entry = tree[name]
    kind = rng.randrange(4)
    if kind == 0:
        tree[name] = [entry["dtype"], entry["shape"], entry["data_offsets"]]
    elif kind == 1:
        entry["dtype"] = {entry["dtype"]: None}
    elif kind == 2:
        entry["shape"] += [1] * rng.choice([64, 65])
    else:
        entry["shape"] = [0, *rng.sample([2**63, 2**64 - 1, 2**40, 2**40, 3], 3)]
    return json.dumps(tree).encode()


def random_file(rng, number):
    kind = number % 8
    header, data = random_valid(rng)
    if kind in (0, 1):
        return build(header, data)
    if kind == 2:
        return build(damage_number(rng, header), data)
    if kind == 3 or (kind == 4 and rng.random() < 0.5):
        return build(damage_structure(rng, header), data)
    if kind == 4:
        return build(plant_fault(rng, header, len(data)), data)
    if kind == 5:
        return build(damage_bytes(rng, header), data)
    if kind == 6:
        return damage_bytes(rng, build(header, data))
    if rng.random() < 0.5:
        return rng.randbytes(rng.randrange(20))
    soup = b"".join(rng.choice(TOKENS) for _ in range(rng.randrange(30)))
    return build(soup, b"\0" * rng.randrange(3))


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
    # Each of our own rules was met.
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
                if all(first < last < size for (first, last), size in zip(ranges, shape)):  # what get_slice takes
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
        if dtype == "F4":  # the reference takes torch's shape, of pairs
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
            metadata = None  # the reference then writes text that it cannot read
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
        if len(metadata or {}) > 1:  # the reference has no order of its own for them
            ours, theirs = (json.loads(text[8:8 + struct.unpack_from("<Q", text)[0]]) for text in (content, wanted))
            assert list(ours.items()) == list(theirs.items()) and len(content) == len(wanted), document
            assert list(ours["__metadata__"]) == sorted(metadata, key=str.encode)
        else:
            equal += 1
            assert content == wanted, document
    assert equal >= 500


# --- Several files --------------------------------------------------------------------------------


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
    """In bytes, None for an error. What our parser refuses on purpose is an error here."""
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
