"""An agent that starts workers again and again holds no more at the end than at the beginning."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.workers.strays import children
from tests.launcher.conftest import Launch

StartLaunch = Callable[..., Launch]

#: The first few times may open what stays open for good.
SETTLED, TIMES = 3, 12

SCRIPT = """
    import os, signal, sys
    if "member" in sys.argv:
        open(os.environ["HOLDFAST_MEMBER_FILE"], "x").close()
    if os.environ["RANK"] == "1":
        print("up", os.getpid())
    while True:
        signal.pause()
"""


def held(pid: int, temporary: Path) -> dict[str, int]:
    """Count what a process holds."""
    tasks = Path(f"/proc/{pid}/task")
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "children": len(children(pid)),
        "threads": len(list(tasks.iterdir())),
        "shared memory": maps.count("/dev/shm/"),
        "temporary files": len(list(temporary.iterdir())),
    }


def wait_words(running: Launch, piece: str) -> None:
    assert running.process.stderr is not None
    for line in running.process.stderr:
        if piece in line:
            return
    raise AssertionError(f"ended without '{piece}'")


@pytest.mark.parametrize(("how", "words"), [("member", "replaced rank 1"), ("all", "round {}:")])
@pytest.mark.parametrize("preload", ["none", "json"])
def test_what_an_agent_holds_does_not_grow(
    launch: StartLaunch, tmp_path: Path, how: str, words: str, preload: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    options = ("--nproc-per-node", "2", "--max-restarts", "100", "--preload", preload, "--hang", "600", "--tee", "1")
    running = launch(*options, script=SCRIPT, args=(how,), TMPDIR=str(temporary))
    pid = int(running.wait_line("up ").split()[-1])
    wait_words(running, "round 1:")
    counts = []
    for number in range(TIMES):
        os.kill(pid, signal.SIGKILL)
        wait_words(running, words.format(number + 2))
        counts.append(held(running.process.pid, temporary))
        pid = int(running.wait_line("up ").split()[-1])
    running.signal(signal.SIGTERM)

    assert running.end()[0] == 143
    # One more or less is a moment's: a line that is held back, a journal that is being written. A leak adds up.
    grown = {what: counts[-1][what] - counts[SETTLED][what] for what in counts[-1]}
    assert all(more <= (TIMES - SETTLED) // 3 for more in grown.values()), counts
