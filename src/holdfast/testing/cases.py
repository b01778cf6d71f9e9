"""What contract suites are made of: a list of cases, and threads whose errors are not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

#: How long a case waits for another thread before it fails.
PATIENCE_S = 120.0

C = TypeVar("C", bound=Callable[..., None])


class Cases(Generic[C]):
    """The cases of one suite, in the order in which they are written; used as a decorator."""

    def __init__(self) -> None:
        self._cases: list[C] = []

    def __call__(self, case: C) -> C:
        """Add a case."""
        self._cases.append(case)
        return case

    def all(self) -> list[C]:
        """Return every case, in a fixed order."""
        return list(self._cases)


def raises(kind: type[BaseException], function: Callable[..., object], *args: Any) -> str:
    """Return the message of the error that the function raises; fails where it raises none."""
    try:
        result = function(*args)
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, got {result!r}")


class Background(threading.Thread):
    """A function in a thread; `result` waits for its end, and returns or raises what the function did."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Run the function."""
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error

    def result(self) -> Any:
        """Wait for the end."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it still waits"
        if self._error is not None:
            raise self._error
        return self._result
