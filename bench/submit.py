"""The same functions as local jobs by `holdfast.submit` and by submitit: seconds from the call to the result.

    python -m bench.submit            needs submitit

Both run in turns. Holdfast starts three processes for a call: the job's supervisor, the agent, the worker. The rows in
detail say when each of them was there. Seconds on the clock grow with the load of the machine; those of CPU time,
which count every process that a call starts, hardly do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Callable

from bench.harness import Case, Results, attempt, median, spread

NEEDS = ("submitit",)
TIMES = 5
STAGES = (
    "from the supervisor to the agent",
    "... until the worker is there",
    "... until the function runs",
    "... until the result is back",
)


def add(one: int, two: int) -> int:
    return one + two


def fail() -> None:
    raise KeyError("planted")


def ours() -> dict[str, Callable[[], object]]:
    import holdfast

    def failing() -> str:
        try:
            holdfast.submit(fail).result()
        except KeyError as error:
            return type(error).__name__
        return "nothing"

    return {
        "one worker": lambda: holdfast.submit(add, 1, 2).result(),
        "two workers": lambda: holdfast.submit(add, 1, 2, workers=2).results(),
        "an exception comes back": failing,
    }


def theirs(folder: str) -> dict[str, Callable[[], object]]:
    import submitit

    executor = submitit.LocalExecutor(folder=folder)
    pair = submitit.LocalExecutor(folder=folder)
    pair.update_parameters(tasks_per_node=2)

    def failing() -> str:
        try:
            executor.submit(fail).result()
        except Exception as error:  # noqa: BLE001 - which one it is, is the question
            return type(error).__name__
        return "nothing"

    return {
        "one worker": lambda: executor.submit(add, 1, 2).result(),
        "two workers": lambda: pair.submit(add, 1, 2).results(),
        "an exception comes back": failing,
    }


def stages() -> dict[str, float]:
    """Run as a job: say when this process, its agent and the job's supervisor began, and what the time is."""
    import psutil

    worker = psutil.Process()
    agent = worker.parent()
    supervisor = agent.parent() if agent is not None else None
    found = {"worker": worker, "agent": agent, "supervisor": supervisor}
    return {name: each.create_time() for name, each in found.items() if each is not None} | {"function": time.time()}


def stage_cases() -> list[Case]:
    """Return where the time of one call of ours goes."""
    import holdfast

    seen: dict[str, list[float]] = {}
    for _ in range(TIMES):
        found = holdfast.submit(stages).result()
        ended = time.time()
        marks = [found["supervisor"], found["agent"], found["worker"], found["function"], ended]
        for name, one, two in zip(STAGES, marks, marks[1:], strict=False):
            seen.setdefault(name, []).append(two - one)
    return [Case.seen(f"  {name}", median(values), "s") for name, values in seen.items()]


def cpu_case(our_call: Callable[[], object], their_call: Callable[[], object]) -> list[Case]:
    """Return the CPU time of one call, with all processes that it starts."""
    from holdfast.workers.linux import set_child_subreaper

    set_child_subreaper(True)  # a job's supervisor is detached; its time counts as a child's when it comes to us
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(TIMES):
        for side, call in (("ours", our_call), ("theirs", their_call)):
            began = _cpu_seconds()
            call()
            _reap()
            taken[side].append(_cpu_seconds() - began)
    note = spread(taken["ours"], "s")
    ours, theirs = median(taken["ours"]), median(taken["theirs"])
    return [Case.beside("one worker: CPU time of all processes", ours, theirs, "s", less_is_better=True, note=note)]


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _reap() -> None:
    """Wait for every process that a call has left to us."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def run(full: bool) -> Results:  # noqa: ARG001
    """Measure both, in turns."""
    import submitit

    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_HOME"] = f"{folder}/home"
        our_calls, their_calls = ours(), theirs(f"{folder}/submitit")
        for name in our_calls:
            taken: dict[str, list[float]] = {"ours": [], "theirs": []}
            said: dict[str, object] = {}
            for _ in range(TIMES):
                for side, calls in (("ours", our_calls), ("theirs", their_calls)):
                    began = time.monotonic()
                    said[side] = calls[name]()
                    taken[side].append(time.monotonic() - began)
            note = f"ours gave {said['ours']}, theirs {said['theirs']}; {spread(taken['ours'], 's')}"
            cases.append(
                Case.beside(name, median(taken["ours"]), median(taken["theirs"]), "s", less_is_better=True, note=note)
            )
        cases += attempt("CPU time", lambda: cpu_case(our_calls["one worker"], their_calls["one worker"]))
        cases += attempt("stages", stage_cases)
    return Results("functions as local jobs", cases, f"submitit=={submitit.__version__}")


def main() -> None:
    """Print the table."""
    print(run(full=False))


if __name__ == "__main__":
    main()
