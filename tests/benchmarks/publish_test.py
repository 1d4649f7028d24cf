"""How the pages show the stored results."""

import xml.etree.ElementTree

import chart
import publish
import pytest
import result
import workloads
from result import Result
from result_test import row_of

SIDES = {"stock": 4.0, "accelerate": 3.0, "compiled": 2.5, "ours": 2.0, "captured": 1.0}


def complete(kind, date="2026-01-31", form="full"):
    device = "cpu" if kind.startswith("cpu") else "cuda"
    sides = {side: value for side, value in SIDES.items() if side != "captured" or device == "cuda"}
    rows = [row_of(key, **sides) for key in publish.CHART[kind]]
    return Result(date, {"kind": kind, "name": f"machine {kind}", "device": device},
                  {"accelerant": "0.1.0", "torch": "2.13.0"}, form, rows)


def stored(folder, *results):
    for one in results:
        (folder / f"{one.date}-{one.machine['kind']}.json").write_text(result.to_json(one), encoding="utf-8")
    return folder


@pytest.mark.parametrize("path, made", [
    (publish.PICTURE, publish.picture),
    (publish.PAGE, lambda chosen: publish.page(publish.PAGE.read_text(encoding="utf-8"), chosen)),
])
def test_the_pages_show_the_stored_results(path, made):
    assert path.read_text(encoding="utf-8") == made(publish.to_publish()), (
        f"{path.relative_to(publish.ROOT)} is not what the results give; run: python3 benchmarks/publish.py")


def test_the_newest_complete_result_of_each_machine_is_shown(tmp_path):
    partial = complete("h200", "2026-03-01")
    partial.rows.pop()
    folder = stored(tmp_path, complete("h200", "2026-01-01"), complete("h200", "2026-02-01"), partial,
                    complete("cpu-2", "2026-02-02"), complete("cpu-2", "2026-02-03", form="quick"))
    (folder / "baseline-cpu-2.json").write_text(result.to_json(complete("cpu-2", "2026-04-01")), encoding="utf-8")
    chosen = publish.to_publish(folder)
    assert {kind: one.date for kind, (_, one) in chosen.items()} == {"h200": "2026-02-01", "cpu-2": "2026-02-02"}


def test_a_missing_machine_is_an_error_that_says_how_to_measure(tmp_path):
    with pytest.raises(ValueError, match="no result of 'cpu-2' .*no result of such a machine.*make bench ARGS='--full"):
        publish.to_publish(stored(tmp_path, complete("h200")))


def test_what_a_result_lacks_is_named(tmp_path):
    lacking = complete("h200", form="quick")
    del lacking.row("step/fp16/mlp").figures["compiled"]
    lacking.rows.remove(lacking.row("step/bf16/cnn"))
    with pytest.raises(ValueError) as error:
        publish.to_publish(stored(tmp_path, lacking, complete("cpu-2")))
    for words in ("2026-01-31-h200.json", "its form is quick", "no row step/bf16/cnn",
                  "step/fp16/mlp lacks Accelerate, torch.compile"):
        assert words in str(error.value)


def test_every_workload_has_a_heading():
    assert set(publish.SECTIONS) == set(workloads.ALL)


SVG = "{http://www.w3.org/2000/svg}"


def drawn(*groups):
    return xml.etree.ElementTree.fromstring(chart.svg([chart.Panel("a <machine> & more", list(groups))], ["a caption"]))


def bars(picture, side):
    """The lengths of a side's bars. The first rectangle of its colour belongs to the legend."""
    return [float(bar.get("width")) for bar in picture.iter(f"{SVG}rect") if bar.get("fill") == chart.BARS[side][1]][1:]


def test_bars_are_relative_to_plain_libtorch_and_begin_at_zero():
    picture = drawn(chart.Group("large", {"stock": 400.0, "ours": 100.0}),
                    chart.Group("small", {"stock": 0.4, "ours": 0.2}))
    plain, ours = bars(picture, "stock"), bars(picture, "ours")
    assert plain[0] == plain[1]
    assert ours == [pytest.approx(plain[0] / 4, abs=0.1), pytest.approx(plain[0] / 2, abs=0.1)]
    starts = {bar.get("x") for bar in picture.iter(f"{SVG}rect") if bar.get("height") == str(chart.BAR_HEIGHT)}
    assert len(starts) == 1


def test_everything_lies_within_the_picture():
    picture = drawn(chart.Group("slow", {"stock": 1.0, "compiled": 7.3, "ours": 0.001}))
    for bar in picture.iter(f"{SVG}rect"):
        assert float(bar.get("x")) + float(bar.get("width")) <= chart.WIDTH
    for words in picture.iter(f"{SVG}text"):
        assert 0 < float(words.get("y")) < float(picture.get("height"))


def test_the_picture_says_in_words_what_it_shows():
    picture = drawn(chart.Group("GPT", {"stock": 41.13, "ours": 20.04}))
    words = picture.find(f"{SVG}desc").text
    assert words == "a <machine> & more, GPT: plain libtorch 41.1 ms, Accelerant 20.0 ms."
    assert picture.find(f"{SVG}title").text and picture.get("role") == "img"
    assert {"41.1 ms", "20.0 ms", "a caption"} <= {text.text for text in picture.iter(f"{SVG}text")}
