"""`holdfast checkpoints`: what is there, whether it is whole, and what may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.checkpoint.checksums import checksum
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.storage import StorageTier
from holdfast.cli.checkpoints import command


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 1 to 4 by two workers; of step 4 one shard is missing, of step 5 everything but a file."""
    tier = StorageTier(tmp_path, keep=None)
    for step in range(1, 5):
        for shard in range(2 if step < 4 else 1):
            data = memoryview(bytes([step]) * 1500)
            tier.save(Key(step, "run.0", 2, shard), data, checksum(data))
    (tmp_path / "step-000000000005").mkdir()
    (tmp_path / "step-000000000005" / "shard-00000-of-00002.run.0~12.state").write_bytes(b"half")
    return tmp_path


def rows(result: Result) -> list[tuple[Any, ...]]:
    return [(row["step"], row["shards"], row["state"]) for row in json.loads(result.output)["checkpoints"]]


def test_checkpoints_are_listed_newest_first(folder: Path) -> None:
    result = run(folder)

    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].split()[:5] == ["STEP", "AGE", "SIZE", "SHARDS", "STATE"]
    assert [line.split()[0] for line in lines[1:]] == ["5", "4", "3", "2", "1"]
    assert "incomplete" in lines[2]
    assert "shards 1 are missing" in lines[2]
    assert "3 kB" in lines[3]
    assert "complete" in lines[3]


def test_json_says_the_same(folder: Path) -> None:
    assert rows(run(folder, "--json")) == [
        (5, 0, "incomplete"),
        (4, 1, "incomplete"),
        (3, 2, "complete"),
        (2, 2, "complete"),
        (1, 2, "complete"),
    ]


def test_verify_reads_every_byte(folder: Path) -> None:
    assert run(folder, "--verify").exit_code == 0
    torn = next((folder / "step-000000000002").glob("*.state"))
    torn.write_bytes(b"?" * torn.stat().st_size)

    assert run(folder).exit_code == 0
    result = run(folder, "--verify", "--json")

    assert result.exit_code == 1
    assert (2, 2, "torn") in rows(result)
    found = {row["step"]: row for row in json.loads(result.output)["checkpoints"]}
    assert "damaged" in found[2]["reason"]
    assert found[3]["verified"]


def test_a_file_that_is_cut_off_is_seen_without_verify(folder: Path) -> None:
    torn = next((folder / "step-000000000003").glob("*.state"))
    torn.write_bytes(b"?")

    result = run(folder)

    assert result.exit_code == 1
    assert "torn" in result.output


@pytest.mark.parametrize("words", ["keep=1", "1"])
def test_prune_keeps_the_newest_complete_ones_and_all_that_is_newer(folder: Path, words: str) -> None:
    result = run(folder, "--prune", words)

    assert result.exit_code == 0
    assert result.output.startswith("removed 2 steps: 1, 2\n")
    assert rows(run(folder, "--json")) == [(5, 0, "incomplete"), (4, 1, "incomplete"), (3, 2, "complete")]


@pytest.mark.parametrize("words", ["keep=0", "all", "keep=-1", ""])
def test_a_prune_that_would_keep_nothing_is_refused(folder: Path, words: str) -> None:
    result = run(folder, "--prune", words)

    assert result.exit_code == 2
    assert len(StorageTier(folder).entries()) == 7


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert run(tmp_path).output == f"no checkpoints in {tmp_path}\n"
