"""The same functions as local jobs by `holdfast.submit` and by submitit: seconds from the call to the result.

python -m bench.submit            needs submitit
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

TIMES = 5


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
        "an exception comes back as": failing,
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
        "an exception comes back as": failing,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_HOME"] = f"{folder}/home"
        for name, cases in (("holdfast.submit", ours()), ("submitit", theirs(f"{folder}/submitit"))):
            for case, call in cases.items():
                taken, said = [], None
                for _ in range(TIMES):
                    began = time.monotonic()
                    said = call()
                    taken.append(time.monotonic() - began)
                print(f"{name:<16} {case:<28} {said!s:<16} {statistics.median(taken):6.2f} s, median of {TIMES}")


if __name__ == "__main__":
    main()
