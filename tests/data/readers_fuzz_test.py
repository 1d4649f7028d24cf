"""The readers of IDX, CSV and text files against Python's own modules, on random files.

Files are written by Python and read by both sides; then they are damaged, and both sides must say
the same about what is left.
"""

import csv
import gzip
import io
import math
import os
import struct
import zlib

import pytest
import torch
from replay import close_enough, to_json

TOPIC = "readers"
DOCUMENTS = int(os.environ.get("ACCELERANT_FUZZ_DOCUMENTS", "400"))
IDX_TYPES = {8: ("B", "uint8"), 9: ("b", "int8"), 11: ("h", "int16"), 12: ("i", "int32"),
             13: ("f", "float32"), 14: ("d", "float64")}


def damage(rng, content):
    """The bytes with some of them changed, removed, doubled or added."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(4)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[place:place + rng.randint(1, 4)]
        elif kind == 2:
            content[place:place] = content[place:place + rng.randint(1, 8)]
        else:
            content[place:place] = rng.randbytes(rng.randint(1, 3))
    return bytes(content)


# --- IDX ------------------------------------------------------------------------------------------


def random_number(rng, letter):
    if letter in "fd":
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4e38]
        number = rng.choice(special + [rng.uniform(-10, 10), rng.gauss(0, 1e30)])
        return struct.unpack(">f", struct.pack(">f", number))[0] if letter == "f" else number
    bits = 8 * struct.calcsize(letter)
    lowest = 0 if letter == "B" else -(2 ** (bits - 1))
    return rng.choice([lowest, lowest + 2**bits - 1, rng.randrange(lowest, lowest + 2**bits)])


def random_idx(rng):
    code = rng.choice(list(IDX_TYPES))
    shape = [rng.choice([0, 1, 2, 3, 7]) for _ in range(rng.randrange(5))]
    letter = IDX_TYPES[code][0]
    values = [random_number(rng, letter) for _ in range(math.prod(shape))]
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape) + struct.pack(
        f">{len(values)}{letter}", *values)


def python_idx(content):
    """What is in an IDX file, or None if it is not exactly one."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        return None
    letter, name = IDX_TYPES[content[2]]
    header = 4 + 4 * content[3]
    if len(content) < header:
        return None
    shape = list(struct.unpack_from(f">{content[3]}I", content, 4))
    with_ones = math.prod(max(size, 1) for size in shape) * struct.calcsize(letter)
    if with_ones >= 2**63 or len(content) != header + math.prod(shape) * struct.calcsize(letter):
        return None
    values = struct.unpack_from(f">{math.prod(shape)}{letter}", content, header)
    return {"dtype": name, "shape": shape, "values": [to_json(value) for value in values]}


def python_gunzip(content):
    """The unpacked bytes, None if they are damaged; members only, nothing after them."""
    result = b""
    while content:
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            result += unpacker.decompress(content)
        except zlib.error:
            return None
        if not unpacker.eof:
            return None
        content = unpacker.unused_data
    return result


def test_idx(replay, rng, tmp_path):
    path = tmp_path / "file"
    accepted = 0
    for number in range(DOCUMENTS):
        content = random_idx(rng)
        packed = gzip.compress(content) if rng.random() < 0.5 else content
        if number % 2:
            packed = damage(rng, packed)
        path.write_bytes(packed)
        unpacked = python_gunzip(packed) if packed[:2] == b"\x1f\x8b" else packed
        expected = None if unpacked is None else python_idx(unpacked)
        result = replay({"reader": "idx", "path": str(path)})
        if expected is None:
            assert str(path) in result["error"], packed
        else:
            accepted += 1
            assert result == expected, packed
    assert accepted >= DOCUMENTS // 2


# --- CSV ------------------------------------------------------------------------------------------


def python_number(text, dtype):
    """The number, None if it is none, an exception if it is out of range."""
    text = text.strip(" \t")
    if "_" in text or text != text.strip() or not text.isascii():
        return None  # Python takes these
    try:
        value = int(text) if dtype == "int64" else float(text)
    except ValueError:
        return None
    if dtype == "int64":
        if not -(2**63) <= value < 2**63:
            raise OverflowError
        return value
    if math.isinf(value) and "inf" not in text.lower():
        raise OverflowError
    return value


def python_csv(text, delimiter, header, dtype, missing):
    """The table that read_csv should find, or None for an error."""
    lines = text.removeprefix("\ufeff")
    # The module has its own mind about what is no plain CSV; such files are left to the C++ tests.
    rows = [row for row in csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter, strict=True)
            if not (len(row) == 0 or (len(row) == 1 and not row[0].strip(" \t")))]
    if not rows or len({len(row) for row in rows}) != 1:
        return None
    names = []
    if header == "yes":
        names = rows.pop(0)
    values = []
    try:
        for row in rows:
            for field in row:
                number = python_number(field, dtype)
                if number is None and not field.strip(" \t") and missing == "nan":
                    number = math.nan
                if number is None:
                    return None
                values.append(number)
    except OverflowError:
        return None
    width = len(names) if not rows else len(rows[0])
    return {"dtype": dtype, "shape": [len(rows), width], "names": names,
            "values": [to_json(value) for value in values]}


def random_field(rng, dtype):
    if dtype == "int64":
        return str(rng.choice([0, -1, 2**63 - 1, -(2**63), rng.randrange(-(10**6), 10**6)]))
    value = rng.choice([0.0, -0.0, 1e308, 5e-324, math.inf, math.nan, rng.gauss(0, 1),
                        rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300)])
    return rng.choice([repr, str, "{:.3g}".format, "{:+.20e}".format])(value)


def random_csv(rng, delimiter, header, dtype, missing):
    width = rng.randint(1, 5)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n"]),
                        quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    if header == "yes":
        # Spaces around a name would count only inside quotes, which the module does not tell.
        writer.writerow(["n" + "".join(rng.choice("ab1, ;\"\n\té") for _ in range(rng.randrange(6))) + "."
                         for _ in range(width)])
    for _ in range(rng.randrange(8)):
        writer.writerow(["" if missing == "nan" and width > 1 and rng.random() < 0.1
                         else random_field(rng, dtype) for _ in range(width)])
    return rng.choice(["", "\ufeff"]) + stream.getvalue() + rng.choice(["", "\n", "\r\n\r\n"])


def test_csv(replay, rng, tmp_path):
    path = tmp_path / "table.csv"
    accepted = 0
    for _ in range(DOCUMENTS):
        options = {"delimiter": rng.choice(",;\t|"), "header": rng.choice(["yes", "no"]),
                   "dtype": rng.choice(["float64", "int64"]), "missing": "error"}
        if options["dtype"] == "float64":
            options["missing"] = rng.choice(["error", "nan"])
        text = random_csv(rng, **options)
        path.write_bytes(text.encode())
        expected = python_csv(text, **options)
        result = replay({"reader": "csv", "path": str(path), **options})
        if expected is None:
            assert str(path) in result["error"], repr(text)
            continue
        accepted += 1
        # Numbers must be the same to the last bit.
        assert close_enough(result, expected, relative=0), f"{text!r}\n{result}\n{expected}"
    assert accepted >= DOCUMENTS // 2


def test_csv_in_float32_is_rounded_as_torch_does(replay, rng, tmp_path):
    path = tmp_path / "table.csv"
    numbers = [rng.gauss(0, 1) * 10.0 ** rng.randrange(-30, 30) for _ in range(1000)]
    path.write_text("\n".join(map(repr, numbers)))
    result = replay({"reader": "csv", "path": str(path)})
    # Rounding twice, through a double, differs from once only at exact ties, which random ones are not.
    assert result["values"] == torch.tensor(numbers, dtype=torch.float32).double().tolist()


def test_damaged_csv_is_survived(replay, rng, tmp_path):
    path = tmp_path / "table.csv"
    for _ in range(DOCUMENTS):
        content = random_csv(rng, ",", "yes", "float64", "nan").encode()
        path.write_bytes(damage(rng, content))
        result = replay({"reader": "csv", "path": str(path), "dtype": "float64", "missing": "nan"})
        assert "values" in result or str(path) in result["error"]


# --- Text -----------------------------------------------------------------------------------------


def test_text(replay, rng, tmp_path):
    path = tmp_path / "text"
    refused = 0
    for number in range(DOCUMENTS):
        ranges = [(0x20, 0x7F), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)]
        chosen = rng.sample(ranges, rng.randint(1, 4))
        content = "".join(chr(rng.randrange(*rng.choice(chosen)))
                          for _ in range(rng.randint(1, 300))).encode()
        if number % 2:
            content = damage(rng, content)
        if not content or content[:2] == b"\x1f\x8b":
            continue
        path.write_bytes(content)
        result = replay({"reader": "text", "path": str(path)})
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            refused += 1
            assert f"at byte {error.start}:" in result["error"], content
            continue
        symbols = sorted(set(text))
        assert result["symbols"] == [ord(symbol) for symbol in symbols]
        assert result["values"] == [symbols.index(character) for character in text]
        assert result["dtype"] == ("uint8" if len(symbols) <= 256 else "int16")
    assert refused > DOCUMENTS // 20


def test_bytes(replay, rng, tmp_path):
    path = tmp_path / "bytes"
    for _ in range(20):
        content = b"x" + rng.randbytes(rng.randint(1, 500))
        path.write_bytes(content)
        result = replay({"reader": "text", "path": str(path), "bytes": True})
        assert result["values"] == list(content)
        assert result["symbols"] == list(range(256))
