"""JSON lines: one write a line, also in a shared file."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.metrics.api import MetricData
from holdfast.metrics.sinks.simple import create_jsonl, line_of
from tests.metrics.conftest import PATIENCE_S


def test_a_line_holds_the_value_its_group_and_its_source() -> None:
    data = MetricData(1574213883.5, "my_app", "loss", 0.25)

    assert json.loads(line_of(data, "node-3", 5)) == {
        "timestamp": 1574213883.5,
        "group": "my_app",
        "name": "loss",
        "value": 0.25,
        "host": "node-3",
        "rank": 5,
    }
    assert "rank" not in json.loads(line_of(data, "node-3", None))


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_what_json_has_no_number_for_is_a_string(value: float, text: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = json.loads(line_of(MetricData(1.0, "g", "loss", value), "h", None), parse_constant=refuse)

    assert line["value"] == text


def test_folders_are_made_and_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "m.jsonl"
    for number in range(2):
        handler = create_jsonl(str(path))
        handler.emit(MetricData(1.0, "g", "x", number))
        handler.close()

    assert [json.loads(line)["value"] for line in path.read_text().splitlines()] == [0, 1]


def test_a_file_that_cannot_be_written_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a file: write jsonl:PATH"):
        create_jsonl("")
    with pytest.raises(UsageError, match=f"the metrics sink jsonl cannot write {tmp_path}: Is a directory"):
        create_jsonl(str(tmp_path))


def test_a_pipe_without_a_reader_blocks_no_caller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match=r"jsonl cannot write .*pipe: No such device or address"):
        create_jsonl(str(tmp_path / "pipe"))


WRITER = """
import sys
from holdfast.metrics.api import MetricData
from holdfast.metrics.sinks.simple import create_jsonl
handler = create_jsonl(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(500):
    handler.emit(MetricData(1.0, sys.argv[2], "x" * (number % 300), number))
handler.close()
"""


def test_lines_of_many_processes_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(who)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        writer.communicate("go\n", timeout=PATIENCE_S)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["group"], line["value"]) for line in lines) == [
        (str(who), number) for who in range(4) for number in range(500)
    ]
