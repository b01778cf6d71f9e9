"""The report: what is committed is what the results give, and nothing that speaks against us is left out."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from bench.__main__ import DOCS, RESULTS
from bench._bars import Chart, Row
from bench.harness import Case, Results, load

from bench import _bars, _report

AGAIN = "the report is not what bench/results.json gives: run `python -m bench --report`"
SVG = "{http://www.w3.org/2000/svg}"

CASES = [
    Case.beside("start", 1.0, 4.0, "s", less_is_better=True, ratio_min=2),
    Case("... recovered", 100.0, "%", 50.0, "100 %", True),
    Case("lost", 0.5, "s", None, "≤ 1 s", True),
    Case("... recovered", 100.0, "%", 0.0, "100 %", True),
    Case.beside("... rate", 20.0, 40.0, "/s", less_is_better=False, ratio_min=1, note="a | in a note"),
    Case.missing("rival==1.0", "it cannot be installed here"),
]
RESULT = Results("figures", CASES, "rival==1.0")
CHART = Chart("Times", (Row("A start", "start"), Row("A loss", "lost"), Row("Never tried", "other")), waited=60)


def texts(picture):
    return ["".join(each.itertext()) for each in ElementTree.fromstring(picture).iter(f"{SVG}text")]


#: `python -m bench.recording` draws a live run, which is another one every time.
RECORDING = "images/recording.svg"


def test_what_is_committed_is_what_the_results_give():
    files = _report.files(load(RESULTS))

    for name, text in files.items():
        assert (DOCS / name).exists(), f"{name} is missing; {AGAIN}"
        assert (DOCS / name).read_text() == text, f"{name}: {AGAIN}"
    drawn = {f"images/{path.name}" for path in (DOCS / "images").glob("*.svg")} - {RECORDING}
    assert drawn <= set(files), f"no result gives {drawn - set(files)}"


def test_what_speaks_against_us_stands_in_one_place_and_in_the_tables():
    page = _report.page({"bench": RESULT}, set())
    short, _, table = page.partition("## bench")

    assert (
        "**Targets that were missed**\n\n- bench: lost: rate, 20 /s beside 40 /s of rival==1.0 (target ≥ 1 x)" in short
    )
    assert "**Not measured**\n\n- bench: rival==1.0: left out: it cannot be installed here" in short
    row = next(line for line in table.splitlines() if "... rate" in line)
    assert "**missed**, **behind**" in row
    assert "a \\| in a note" in row


def test_a_bench_that_is_not_in_the_order_comes_last_and_is_not_forgotten():
    files = _report.files({"new": RESULT, "store": replace(RESULT, rival="")})

    assert re.findall(r"^## (\w+)", files["BENCHMARKS.md"], re.MULTILINE)[-2:] == ["store", "new"]


def test_a_rival_that_never_came_back_has_a_hatched_bar_to_the_end_of_the_wait():
    said = texts(_bars.draw(CHART, RESULT))

    assert "> 60 s" in said
    assert "60 s" in said
    assert "if at all: 50 % came back" in said
    assert 'fill="url(#hatch)"' in _bars.draw(CHART, RESULT)


def test_a_case_that_was_not_measured_is_drawn_as_such():
    assert texts(_bars.draw(CHART, RESULT)).count("not measured") == 1


def test_a_rival_without_a_figure_is_drawn_as_such():
    chart = Chart("Times", (Row("Alone", "alone"),))

    assert texts(_bars.draw(chart, Results("figures", [Case.seen("alone", 1.0, "s")]))).count("no figure") == 1


def test_a_node_that_never_got_in_is_drawn_as_such_in_every_row_that_belongs_to_it():
    cases = [Case.seen("join", 1.0, "s"), Case.seen("... with it", 2.0, "s"), Case("... got in", 100.0, "%", 0.0)]
    chart = Chart("Times", (Row("With it", "... with it", "join"),), waited=60)

    assert "> 60 s" in texts(_bars.draw(chart, Results("figures", cases)))


def test_a_case_with_dots_is_found_only_after_its_head():
    assert _bars.find(Row("", "... recovered", "lost"), CASES) is CASES[3]
    assert _bars.find(Row("", "... rate", "start"), CASES) is None
    assert _bars.find(Row("", "... rate", "nowhere"), CASES) is None


def test_the_length_of_a_bar_is_its_value():
    boxes = ElementTree.fromstring(_bars.draw(replace(CHART, waited=None), RESULT)).iter(f"{SVG}rect")
    widths = [float(box.get("width")) for box in boxes if box.get("height") == str(_bars.BAR)]

    assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)


@pytest.mark.parametrize("name", sorted(_bars.CHARTS))
def test_every_word_of_a_picture_is_inside_it(name):
    results = load(RESULTS).get(name) or RESULT
    picture = ElementTree.fromstring(_bars.draw(_bars.CHARTS[name], results))

    for word in picture.iter(f"{SVG}text"):
        length = len("".join(word.itertext())) * float(word.get("font-size")) * 0.5
        start = float(word.get("x")) - {None: 0, "middle": length / 2, "end": length}[word.get("text-anchor")]
        assert start >= 0
        assert start + length <= _bars.WIDTH, "".join(word.itertext())


@pytest.mark.parametrize("name", sorted(_bars.CHARTS))
def test_the_title_leaves_room_for_the_legend(name):
    results = load(RESULTS).get(name) or RESULT
    title, _, rival, ours, *_ = ElementTree.fromstring(_bars.draw(_bars.CHARTS[name], results)).iter(f"{SVG}text")

    assert (title.text, ours.text) == (_bars.CHARTS[name].title, "holdfast")
    assert float(title.get("x")) + 0.63 * 19 * len(title.text) < float(ours.get("x")) - 20, rival.text
