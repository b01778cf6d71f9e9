"""What every test may rely on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.fork_server import ForkServer

# Started in the background, a shell may have made us ignore these, and what we start would inherit that.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    with contextlib.suppress(ValueError):  # not the main thread: then signals cannot reach us either
        if signal.getsignal(_number) is signal.SIG_IGN:
            signal.signal(_number, _handler)

# Tests start thousands of short processes. Where they may not keep bytecode, each compiles the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says more of the machine than of the code; no test asserts a time.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give each test the handlers that it began with: a command that runs in this process sets those of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Runs scripts that need torch without each of them importing it."""
    server = ForkServer("-W", "error")
    yield server
    server.close()
