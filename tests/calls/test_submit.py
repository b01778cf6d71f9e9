"""Functions that run as local jobs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

import holdfast
from holdfast.errors import JobCancelledError, WorkerFailedError

#: Longer than any job of these tests takes on a busy machine.
PATIENCE_S = 240.0


def work(number: int) -> int:
    print("working", flush=True)
    return number * (int(os.environ["RANK"]) + 1)


def test_results_come_back_by_rank_and_the_job_is_found_again(environ: dict[str, str]) -> None:
    job = holdfast.submit(work, 21, workers=2)

    assert job.results(PATIENCE_S) == {0: 21, 1: 42}
    assert asyncio.run(_await(job)) == 21
    assert sum("working" in line for line in job.logs()) == 2
    assert job.done()
    again = holdfast.Job.open(job.handle)
    assert again.result() == 21
    assert job.id.startswith("work-")
    again.delete()


def test_submit_does_not_import_what_only_those_who_await_need() -> None:
    code = "import sys, holdfast; holdfast.submit, holdfast.Job; print('asyncio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


async def _await(job: holdfast.Job[int]) -> int:
    return await job


def test_a_worker_that_is_killed_and_a_job_that_is_cancelled_raise(environ: dict[str, str]) -> None:
    killed = holdfast.submit(lambda: os.kill(os.getpid(), 9))
    waiting = holdfast.submit(input_that_never_comes)

    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        killed.result(PATIENCE_S)
    with pytest.raises(TimeoutError):
        waiting.result(timeout=0)
    assert waiting.cancel()
    with pytest.raises(JobCancelledError):
        waiting.result()


def input_that_never_comes() -> None:
    import signal

    signal.pause()


TYPED = """
import holdfast, os
class Wrong(Exception): pass

def typed(x):
    if x < 0: raise Wrong(x)
    return x + base

base = 40
good, bad = holdfast.submit(typed, 2), holdfast.submit(typed, -1)
print(good.result(240))
try:
    bad.result(240)
except Wrong as error:
    print(type(error).__name__, error)

"""


def test_functions_and_exceptions_of_a_prompt_travel(environ: dict[str, str]) -> None:
    typed = subprocess.run(
        [sys.executable, "-i", "-q"], input=TYPED, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert typed.stdout.split() == ["42", "Wrong", "-1"], typed.stderr
