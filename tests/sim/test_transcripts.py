"""Scripts with the full expected story; HOLDFAST_REWRITE=1 writes what really happened for review as a diff."""

import os
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.sim.script import Script, parse, play

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_script_tells_the_same_story_every_time(path: Path) -> None:
    text = path.read_text()

    story = play(text)

    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(story)
    assert parse(story) == parse(path.read_text())


def test_a_script_refuses_what_it_does_not_know() -> None:
    script = Script()

    with pytest.raises(UsageError, match="begins with 'run'"):
        script.do("status")
    script.do("run min 1 max 1")
    with pytest.raises(UsageError, match="has no command 'dance'"):
        script.do("dance")
