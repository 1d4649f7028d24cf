"""Random, damaged and hostile safetensors files, and names for tensors."""

import json
import math
import struct

from damage import damage

BATCH = 200  # documents per line
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
        "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}


def in_batches(replay, documents):
    """Yields (document, result) for each document."""
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
    """JSON text in one of several equivalent forms."""
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


def damage_number(rng, header):
    """Replaces one number with another value."""
    text = header.decode()
    places = [i for i, c in enumerate(text) if c.isdigit() and (i == 0 or not text[i - 1].isalnum())]
    if not places:
        return header
    begin = end = rng.choice(places)
    while end < len(text) and text[end].isdigit():
        end += 1
    return (text[:begin] + rng.choice(NUMBERS) + text[end:]).encode()


def damage_structure(rng, header):
    """Removes, doubles, renames or adds an entry of an object, or changes its kind."""
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
    """Adds something that the reference accepts and we do not, unless the header is damaged in another way too."""
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
        return build(damage(rng, header, TOKENS), data)
    if kind == 6:
        return damage(rng, build(header, data), TOKENS)
    if rng.random() < 0.5:
        return rng.randbytes(rng.randrange(20))
    soup = b"".join(rng.choice(TOKENS) for _ in range(rng.randrange(30)))
    return build(soup, b"\0" * rng.randrange(3))
