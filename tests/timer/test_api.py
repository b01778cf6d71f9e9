"""`expires` and `configure`, and servers of one's own."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.timer import RequestQueue, TimerClient, TimerRequest, TimerServer, api, configure, expires


class RecordingClient(TimerClient):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.expirations: list[float] = []

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self.calls.append(("acquire", scope_id))
        self.expirations.append(expiration_time)

    def release(self, scope_id: str) -> None:
        self.calls.append(("release", scope_id))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> RecordingClient:
    monkeypatch.setattr(api, "_client", None)
    return RecordingClient()


def test_a_scope_is_acquired_on_entering_and_released_on_leaving(client: RecordingClient) -> None:
    configure(client)
    before = time.time()
    with expires(after=60, scope="step"):
        assert client.calls == [("acquire", "step")]
    after = time.time()

    assert client.calls == [("acquire", "step"), ("release", "step")]
    assert before + 60 <= client.expirations[0] <= after + 60


def test_an_exception_releases_too_and_goes_on(client: RecordingClient) -> None:
    with pytest.raises(ZeroDivisionError), expires(after=60, scope="step", client=client):
        _ = 1 / 0

    assert client.calls[-1] == ("release", "step")


def test_without_a_name_the_scope_is_the_callers_file_and_line(client: RecordingClient) -> None:
    with expires(60, client=client):
        line = sys._getframe().f_lineno - 1

    assert client.calls[0] == ("acquire", f"{__file__}#{line}")


def test_as_a_decorator_each_call_has_a_timer(client: RecordingClient) -> None:
    @expires(after=60, scope="train_step", client=client)
    def step(depth: int) -> int:
        return step(depth - 1) if depth else 7

    assert step(1) == 7
    assert [name for name, _ in client.calls] == ["acquire", "acquire", "release", "release"]


def test_the_client_of_a_call_goes_before_the_configured_one(client: RecordingClient) -> None:
    other = RecordingClient()
    configure(client)
    with expires(60, scope="step", client=other):
        pass

    assert (len(client.calls), len(other.calls)) == (0, 2)


def test_without_a_client_the_error_says_what_to_do(client: RecordingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)
    with pytest.raises(UsageError, match=r"holdfast\.timer\.configure.*TORCHELASTIC_ENABLE_FILE_TIMER=1"), expires(60):
        pass


def test_importing_timers_loads_nothing_heavy() -> None:
    code = (
        "import sys, holdfast.timer, holdfast.timer.file_client; from holdfast import heartbeat; "
        "heavy = {'multiprocessing', 'asyncio', 'subprocess', 'msgspec', 'holdfast.workers', 'holdfast.agent'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); heartbeat(3)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class ListQueue(RequestQueue):
    """A queue that is filled beforehand."""

    def __init__(self, requests: list[TimerRequest]) -> None:
        self.requests = requests
        self.waiting = threading.Event()

    def size(self) -> int:
        return len(self.requests)

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        taken, self.requests = self.requests[:size], self.requests[size:]
        if not taken:
            self.waiting.wait(min(timeout, 0.01))
        return taken


class MyServer(TimerServer):
    """As TorchElastic's documents have one write it; the first attempt to end a worker may fail."""

    def __init__(self, queue: ListQueue, failing: list[Any]) -> None:
        super().__init__(queue, max_interval=0.01)
        self.failing = failing
        self.timers: dict[tuple[Any, str], TimerRequest] = {}
        self.tried: list[Any] = []
        self.cleared = threading.Event()

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            self.timers[request.worker_id, request.scope_id] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        self.timers = {key: value for key, value in self.timers.items() if key[0] not in worker_ids}
        if not self.timers and self.tried:
            self.cleared.set()

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        expired: dict[Any, list[TimerRequest]] = {}
        for request in self.timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _reap_worker(self, worker_id: Any) -> bool:
        self.tried.append(worker_id)
        if self.failing:
            error = self.failing.pop()
            if isinstance(error, Exception):
                raise error
            return False
        return True


@pytest.mark.parametrize(("failing", "tries"), [([], 1), ([False], 2), ([ValueError("mine")], 1)])
def test_a_server_of_ones_own_fills_in_four_methods(failing: list[Any], tries: int) -> None:
    queue = ListQueue([TimerRequest("w", "step", time.time() - 1)])
    server = MyServer(queue, failing)
    server.start()
    try:
        assert server.cleared.wait(240)
    finally:
        server.stop()

    assert server.tried == ["w"] * tries


def test_setting_the_wall_clock_expires_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ListQueue([])
    server = MyServer(queue, [])
    real = time.time
    for jump_s in (-86_400.0, 86_400.0):  # what a worker says comes from the same wall clock
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        queue.requests = [TimerRequest(jump_s, "step", time.time() + 60)]
        server._run_watchdog()
    monkeypatch.undo()
    server._run_watchdog()

    assert server.tried == []
    assert len(server.get_expired_timers(server._steady_time() + 61)) == 2
