"""Tables and outlines."""

from __future__ import annotations

from holdfast.cli.tables import COLUMN_MIN, outline, render

ROWS = [["local://holdfast/echo-x7k2m", "RUNNING"], ["k8s://holdfast/default:train-1", "FAILED"]]


def test_columns_are_as_wide_as_what_they_hold() -> None:
    assert render(("HANDLE", "STATE"), ROWS).splitlines() == [
        "HANDLE                          STATE",
        "local://holdfast/echo-x7k2m     RUNNING",
        "k8s://holdfast/default:train-1  FAILED",
    ]


def test_a_table_fits_the_screen_by_cutting_its_widest_columns() -> None:
    lines = render(("HANDLE", "STATE"), ROWS, width=30).splitlines()

    assert max(map(len, lines)) <= 30
    assert lines[1] == "local://holdfast/ech…  RUNNING"


def test_a_handle_that_is_cut_keeps_its_end() -> None:
    lines = render(("HANDLE", "STATE"), ROWS, width=24, keep_end=(0,)).splitlines()

    assert lines == [
        "HANDLE           STATE",
        "…ast/echo-x7k2m  RUNNING",
        "…efault:train-1  FAILED",
    ]


def test_a_screen_that_is_far_too_narrow_still_shows_something() -> None:
    lines = render(("HANDLE", "STATE"), ROWS, width=1).splitlines()

    assert lines[1].split() == ["local:/…", "RUNNING"]
    assert len(lines[1].split()[0]) == COLUMN_MIN


def test_a_cell_of_several_lines_becomes_one() -> None:
    assert render(("A",), [["one\n  two"]]) == "A\none two"


def test_a_table_without_rows_is_its_head() -> None:
    assert render(("HANDLE", "STATE"), []) == "HANDLE  STATE"


def test_nested_data_is_outlined() -> None:
    data = {
        "name": "app",
        "roles": [{"args": ["-c", "echo hi: there"], "count": 2, "env": {}}, {"odd": [["a"], "true", ""]}],
        "none": None,
    }

    assert outline(data) == [
        "name: app",
        "roles:",
        "  - args:",
        '      - "-c"',
        '      - "echo hi: there"',
        "    count: 2",
        "    env: {}",
        "  - odd:",
        "      - - a",
        '      - "true"',
        "      - ''",
        "none: null",
    ]
