"""docs/troubleshooting.md quotes messages that exist, and has an entry for every message.

An entry quotes a message as code: in bold at the start of a line (**`words`**), or in the first column
of a table whose first heading is "message". A part that varies is written "…". The test ignores code
elsewhere on the page, such as compiler messages.

The test compares only what the source spells out as string literals. It does not look for messages
made only of variables; the page may still quote the words that the variables hold.
"""

import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
OPTIONS = ROOT / "include" / "accelerant" / "accelerator" / "options.h"
VARIES = "…"

# Messages without an entry: the start of a path, and a part of the text.
INTERNAL = [
    # Variables hold the words that distinguish these messages; the page quotes those words.
    ("src/accelerator/state/agreed.h", ""),
    ("src/dist/side_channel.cpp", "Rank "),
    ("src/dist/transport.cpp", "after "),
    ("src/format/safetensors_header.cpp", "tensor "),
    ("src/launch/launch_plan.cpp", "run_id"),
    ("src/store/model_folder.cpp", " is invalid"),
    ("src/watch/monitor.cpp", "in step "),
    # The checks of `accelerant test`, below the name of the check.
    ("src/helpers/selftest/", ""),
    # A caller of a low-level function broke its contract, which the header states.
    ("src/checkpoint/torch_optimizer_file.cpp", "is not an integer"),
    ("src/core/atomic_file.cpp", "the file is already committed"),
    ("src/format/float_conversion.cpp", "cannot be converted"),
    ("src/format/plain_tensor.cpp", "has no storage"),
    ("src/format/plain_tensor.cpp", "cannot require a gradient"),
    ("src/format/plain_tensor.cpp", "a part of a tensor reaches beyond its end"),
    ("src/format/plain_tensor.cpp", "a storage that is made when it is written"),
    ("src/format/plain_value.cpp", ""),
    ("src/format/safetensors_file.cpp", ""),
    ("src/format/safetensors_writer.cpp", ""),
    ("src/format/shard_index.cpp", "is not valid UTF-8"),
    ("src/format/shard_split.cpp", "tensor "),
    ("src/format/slice_plan.cpp", ""),
    ("src/format/torch_archive.cpp", "has an invalid name"),
    ("src/format/zip_writer.cpp", "a record of an archive has the wrong size"),
    ("src/order/random.cpp", ""),
    ("src/paging/attachment.cpp", "Units of a Pager cannot be told apart"),
    ("src/paging/engine.cpp", "cannot be changed"),
    ("src/paging/host_memory.cpp", "does not fit"),
    ("src/paging/mapped_file.cpp", "The files have no tensor for a parameter"),
    ("src/paging/offload/peer_memory.cpp", "does not fit"),
    ("src/paging/plan_units.cpp", "UnitOptions::prefixes"),
    ("src/paging/source.cpp", "cannot be stored in"),
    ("src/store/weight_file.cpp", "the part is outside the tensor"),
]


# --- The page -----------------------------------------------------------------------------------


def rows(heading):
    """The cells of the first column of all tables whose first column has this heading."""
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line)[1].strip() for line in table.splitlines()]
        if lines[0] == heading:
            yield from lines[2:]


@functools.cache
def quotes():
    """The fixed parts of every quoted message, in order."""
    bold = re.findall(r"^\*\*(`.+?`)\*\*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    spans = [span for text in [*bold, *rows("message")] for span in re.findall(r"`(.+?)`", text)]
    return [[part for part in span.split(VARIES) if part.strip()] for span in spans]


# --- The sources --------------------------------------------------------------------------------

# A comment, a literal, or one other character.
TOKEN = re.compile(r'//.*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|[^\s]')
# What comes before a message. A message that is a member of a struct ends at a comma, others at the closing
# bracket.
BEGINNINGS = re.compile(
    r"\.problem =\s(?P<member>)|\bwarnings\.say\(|\blog(?:_on_main)?\(\s*LogLevel::(?:warning|error),"
    r"|\bstatic_assert\(|\bError\((?!\s*ErrorDetails)|\bUsageError\{"
)


def files(*folders):
    found = [file for folder in folders for file in sorted((ROOT / folder).rglob("*")) if file.is_file()]
    return [file for file in found if file.suffix != ".pyc"]


@functools.cache
def cpp_files():
    found = [file for file in files("include", "src") if file.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in found}


def literals_from(text, begin, ends_at_comma):
    """The literals up to the end of an expression. Adjacent ones are joined."""
    literals, depth, follows_literal = [], 0, False
    for match in TOKEN.finditer(text, begin):
        token = match[0]
        if token.startswith("//"):
            continue
        if depth == 0 and (token in ")};" or (token == "," and ends_at_comma)):
            break
        depth += (token in "([{") - (token in ")]}")
        is_literal = token.startswith('"')
        if is_literal and not follows_literal:
            literals.append("")
        if is_literal:
            literals[-1] += token[1:-1].replace("\\n", " ").replace('\\"', '"')
        follows_literal = is_literal
    return literals


def messages():
    """The path and the text of every message that the source spells out."""
    for path, text in cpp_files().items():
        for beginning in BEGINNINGS.finditer(text):
            is_member = beginning["member"] is not None
            message = VARIES.join(literals_from(text, beginning.end(), ends_at_comma=is_member))
            if re.search(r"[a-z]{3}", message, re.IGNORECASE):
                yield path, message


def all_words(text):
    """The text without comments, and with adjacent literals and continued lines joined."""
    text = re.sub(r"^\s*(//|#(?!include)).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'(?<!\\)"\s*"|\\\n', "", text)
    return re.sub(r"\s+", " ", text.replace('\\"', '"').replace("\\n", " "))


def is_internal(path, message):
    return any(path.startswith(start) and part in message for start, part in INTERNAL)


# --- The tests ----------------------------------------------------------------------------------


def test_every_quoted_message_exists():
    texts = [all_words(text) for text in cpp_files().values()]
    texts += [all_words(file.read_text(encoding="utf-8")) for file in files("scripts", "cmake")]
    missing = [q for q in quotes() if not any(all(part in text for part in q) for text in texts)]
    assert not missing, "on the page, but not in the sources:\n" + "\n".join(VARIES.join(q) for q in missing)


def test_every_message_has_an_entry():
    patterns = [re.compile(".*".join(map(re.escape, parts))) for parts in quotes()]
    missing = [
        f"{path}: {message}"
        for path, message in messages()
        if not is_internal(path, message) and not any(pattern.search(message) for pattern in patterns)
    ]
    assert not missing, "without an entry on the page:\n" + "\n".join(missing)


def test_no_entry_is_vague():
    """A quote of a few letters would match almost any message."""
    vague = [q for q in quotes() if len(re.findall("[A-Za-z]", "".join(q))) < 5]
    assert not vague, vague


def test_internal_messages_exist():
    found = list(messages())
    gone = [
        (start, part)
        for start, part in INTERNAL
        if not any(path.startswith(start) and part in message for path, message in found)
    ]
    assert not gone, f"remove from INTERNAL: {gone}"


def test_every_switch_has_a_row():
    options = re.search(r"struct WarningOptions \{(.*?)\n\};", OPTIONS.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert [f"`{name}`" for name in re.findall(r"bool (\w+) = true;", options)] == list(rows("switch"))
