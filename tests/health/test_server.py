"""The health server as its owner and its clients see it: real processes, real sockets."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.facts import Fact, facts
from holdfast.health import HealthCheckServer, LastProgress, Limits, address, create_healthcheck_server
from holdfast.health.health_process import __file__ as PROGRAM_FILE
from tests.health.conftest import PATIENCE_S, Owner, ask, ask_until, connect, read_all, wait_gone
from tests.processes import free_port

Serve = Callable[..., HealthCheckServer]
Own = Callable[..., Owner]


# -- endpoints -------------------------------------------------------------------------------------------------------


def test_health_is_200_while_the_alive_callback_is_recent(serve: Serve) -> None:
    server = serve(time.time)

    answer = ask(server.port)

    assert answer.status == 200
    assert answer.text.startswith("the agent's loop moved 0.")


def test_health_is_503_with_the_reason_once_the_callback_is_older_than_the_timeout(serve: Serve) -> None:
    server = serve(lambda: int(time.time()) - 75, timeout=60)

    answer = ask(server.port)

    assert answer.status == 503
    assert "the agent's loop last moved 75 s ago, 60 s are allowed" in answer.text.replace("76 s", "75 s")


def test_every_watched_part_must_move_and_is_named(serve: Serve) -> None:
    server = serve(time.time, watched={"the watchdog": lambda: time.time() - 90})

    assert ask(server.port).text.startswith("the watchdog last moved 90 s ago")


def test_health_comes_back_when_the_agent_moves_again(serve: Serve) -> None:
    silent_s = [1000.0]
    server = serve(lambda: time.time() - silent_s[0], timeout=1)
    assert ask(server.port).status == 503

    silent_s[0] = 0.0

    ask_until(server.port, 200)


def test_an_alive_callback_that_raises_is_told_without_its_text(serve: Serve) -> None:
    server = serve(lambda: float("my secret"))

    answer = ask(server.port)

    assert answer.status == 503
    assert "raised ValueError" in answer.text
    assert "my secret" not in answer.text


def test_ready_is_what_the_callback_says_at_that_moment(serve: Serve) -> None:
    state = [(False, "2 of 4 nodes; last call in 3 s")]
    server = serve(ready=lambda: state[0])
    waiting = ask(server.port, "/readyz")
    state[0] = (True, "in round 3")
    ready = ask(server.port, "/readyz", Accept="application/json")

    assert (waiting.status, waiting.text) == (503, "2 of 4 nodes; last call in 3 s\n")
    assert (ready.status, ready.data) == (200, {"ready": True, "reason": "in round 3"})


def test_metrics_are_passed_on_as_they_are(serve: Serve) -> None:
    page = b"# TYPE up gauge\nup 1.0\n" * 50_000  # more than any buffer between us holds
    server = serve(metrics=lambda: (page, "text/plain; version=0.0.4; charset=utf-8"))

    answer = ask(server.port, "/metrics")

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body == page


def test_metrics_that_are_missing_are_404_with_the_reason(serve: Serve) -> None:
    answer = ask(serve(no_metrics="pip install the client").port, "/metrics")

    assert answer.status == 404
    assert "pip install the client" in answer.text


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_page_whose_name_leads_here_reads_nothing(serve: Serve) -> None:
    """DNS rebinding: the browser connects to this address, and says the name that it resolved."""
    server = serve(status=lambda: {"secret_plan": 7})
    for path in ("/status", "/healthz", "/metrics"):
        answer = ask(server.port, path, Host="evil.example")
        assert answer.status == 421
        assert "evil.example" in answer.text
    with connect(server.port) as client:
        client.sendall(b"GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 421 Misdirected Request")
    with connect(server.port) as client:
        client.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 400 ")


def test_it_answers_to_its_address_to_the_hosts_names_and_to_what_the_user_adds(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HEALTH_HOSTS", "trainer.example, proxy.example")
    server = serve(names=["mine.example"])
    names = ["127.0.0.1", "localhost", "LOCALHOST:1", "10.9.8.7:80", "[::1]", socket.gethostname(), "trainer.example"]
    for name in [*names, "proxy.example:443", "mine.example"]:
        assert ask(server.port, Host=name).status == 200, name


def test_the_names_of_the_host_come_from_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = socket.gethostname().lower()
    (tmp_path / "hosts").write_text(
        f"127.0.0.1 localhost other # x\n10.0.0.7 {own}.pods.cluster {own}\n10.0.0.8 peer\n"
    )
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.1\nsearch cluster.example. lab\n")
    monkeypatch.setattr(address, "_HOSTS_FILE", tmp_path / "hosts")
    monkeypatch.setattr(address, "_RESOLVER_FILE", tmp_path / "resolv.conf")

    found = set(address.known_names("0.0.0.0", environ={}))

    assert {own, f"{own}.pods.cluster", f"{own}.cluster.example", f"{own}.lab", "localhost"} <= found
    assert not {"peer", "other"} & found
    monkeypatch.setattr(address, "_HOSTS_FILE", tmp_path / "missing")
    assert "localhost" in address.known_names("", environ={})


def test_status_is_json_with_health_and_without_secrets(serve: Serve) -> None:
    server = serve(
        status=lambda: {
            "round": 3,
            "ranks": {0: 8},
            "alive": "who knows",
            "rendezvous": {"secret": "hunter2", "endpoint": "http://me:hunter2@host:1"},
            "environment": {"HF_TOKEN": "hunter2"},
        }
    )

    answer = ask(server.port, "/status")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.data["alive"] is True
    assert answer.data["round"] == 3
    assert answer.data["ranks"] == {"0": 8}
    assert "hunter2" not in answer.text


def test_status_without_a_callback_still_tells_health(serve: Serve) -> None:
    assert set(ask(serve().port, "/status").data) == {"alive", "health"}


def test_a_callback_that_raises_costs_its_own_endpoint_and_is_reported_once(serve: Serve) -> None:
    seen: list[Fact] = []
    unlisten = facts.listen(seen.append)

    def broken() -> dict[str, object]:
        raise KeyError("my secret")

    server = serve(status=broken, ready=lambda: (True, "in round 1"))
    answers = [ask(server.port, "/status") for _ in range(3)]
    unlisten()

    assert {answer.status for answer in answers} == {500}
    assert "KeyError" in answers[0].text
    assert "my secret" not in answers[0].text
    assert ask(server.port, "/readyz").status == 200
    assert len([fact for fact in seen if fact.kind == "health_callback"]) == 1


@pytest.mark.parametrize("result", [None, "text", {1, 2}, SystemExit])
def test_a_callback_that_returns_nonsense_is_an_error_and_no_more(serve: Serve, result: object) -> None:
    def nonsense() -> object:
        if result is SystemExit:
            raise SystemExit
        return result

    server = serve(status=nonsense, ready=nonsense, metrics=nonsense)

    assert {ask(server.port, path).status for path in ("/status", "/metrics")} == {500}
    assert ask(server.port).status == 200


def test_a_callback_that_hangs_costs_only_its_own_endpoint(serve: Serve) -> None:
    release = threading.Event()
    server = serve(
        status=lambda: {"waited": release.wait(PATIENCE_S)},
        ready=lambda: (True, "in round 1"),
        limits=Limits(answer_timeout_s=0.2),
    )

    first, second = ask(server.port, "/status"), ask(server.port, "/status")

    assert (first.status, second.status) == (503, 503)
    assert "did not answer within 0.2 s" in first.data["error"]
    assert first.data["alive"] is True
    ask_until(server.port, 200, "/readyz")
    assert ask(server.port).status == 200
    release.set()
    ask_until(server.port, 200, "/status")


def test_many_clients_with_one_question_make_the_agent_answer_once(serve: Serve) -> None:
    calls: list[int] = []
    asked, release = threading.Event(), threading.Event()

    def status() -> dict[str, object]:
        calls.append(1)
        asked.set()
        release.wait(PATIENCE_S)
        return {"calls": len(calls)}

    server = serve(status=status, limits=Limits(answer_timeout_s=PATIENCE_S))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.port)) for _ in range(50)]
        for client in clients:
            client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        assert asked.wait(PATIENCE_S)
        for _ in range(3):  # by now the health process has come round and heard them all
            ask(server.port)
        release.set()
        answers = [read_all(client) for client in clients]

    assert all(b'"calls": 1' in answer for answer in answers)


def test_an_answer_over_the_limit_is_refused(serve: Serve) -> None:
    server = serve(metrics=lambda: (b"x" * 2000, "text/plain"), limits=Limits(answer_bytes_max=1000))

    answer = ask(server.port, "/metrics")

    assert answer.status == 500
    assert "over the limit of 1000 bytes" in answer.text


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/status", "/metrics", "/nothing"])
def test_head_is_answered_like_get_without_the_body(serve: Serve, path: str) -> None:
    server = serve(lambda: time.time() - 30)

    got, head = ask(server.port, path), ask(server.port, path, "HEAD")

    assert head.body == b""
    assert head.status == got.status
    assert head.headers["content-type"] == got.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


def test_other_methods_are_405(serve: Serve) -> None:
    answer = ask(serve().port, "/healthz", "DELETE")

    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


# -- where it listens ------------------------------------------------------------------------------------------------


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(UnavailableError, match=f"health port {port} on 127.0.0.1 is taken"):
            HealthCheckServer(LastProgress(), port, 60).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_this_one_is_a_usage_error(host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        HealthCheckServer(LastProgress(), 0, 60, host=host).start()


def test_only_loopback_is_listened_on_unless_told_otherwise(serve: Serve) -> None:
    near, wide = serve(), serve(host="0.0.0.0")

    assert near.endpoint.is_loopback
    with pytest.raises(ConnectionRefusedError):
        ask(near.port, host="127.0.0.2")
    assert ask(wide.port, host="127.0.0.2").status == 200


def test_it_listens_on_ipv6_loopback(serve: Serve) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    server = serve(host="::1")

    assert str(server.endpoint) == f"[::1]:{server.port}"
    assert ask(server.port, host="::1").status == 200


# -- its life --------------------------------------------------------------------------------------------------------


def test_stop_leaves_neither_process_nor_port_nor_thread() -> None:
    before = set(threading.enumerate())
    server = create_healthcheck_server(LastProgress(), 0, 60)
    server.start()
    port = server.port
    assert ask(port).status == 200

    server.stop()

    with pytest.raises(ConnectionRefusedError):
        connect(port)
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert set(threading.enumerate()) <= before


def test_start_and_stop_may_be_called_twice_and_again() -> None:
    server = HealthCheckServer(LastProgress(), 0, 60)
    server.stop()
    for _ in range(2):
        server.start()
        server.start()
        assert ask(server.port).status == 200
        server.stop()
        server.stop()


def test_stop_does_not_wait_for_clients_nor_for_callbacks_that_hang() -> None:
    asked, release = threading.Event(), threading.Event()

    def status() -> dict[str, object]:
        asked.set()
        release.wait(PATIENCE_S)
        return {}

    server = HealthCheckServer(LastProgress(), 0, 60, status=status)
    server.start()
    with connect(server.port) as client:
        client.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.wait(PATIENCE_S)
        server.stop()
        assert read_all(client) == b""
    release.set()


def test_a_health_process_that_is_stopped_does_not_hold_up_the_owner() -> None:
    server = HealthCheckServer(LastProgress(), 0, 60)
    server.start()
    assert ask(server.port).status == 200
    assert server._handle is not None
    os.kill(server._handle.pid, signal.SIGSTOP)

    server.stop()

    with pytest.raises(ConnectionRefusedError):
        connect(server.port)


def test_a_health_process_that_is_killed_is_replaced(serve: Serve) -> None:
    server = serve()
    assert ask(server.port).status == 200
    assert server._handle is not None
    first = server._handle.pid

    os.kill(first, signal.SIGKILL)

    until = time.monotonic() + PATIENCE_S
    while server._handle.pid == first:
        with contextlib.suppress(OSError):  # one that is answered by the dying one breaks
            ask(server.port)
        assert time.monotonic() < until
    assert ask(server.port).status == 200


def test_a_health_process_that_cannot_live_is_given_up_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "health_process.py"
    broken.write_text("raise RuntimeError('no room here')")
    monkeypatch.setattr("holdfast.health.handle.PROGRAM", str(broken))
    given_up = threading.Event()
    seen: list[Fact] = []

    def listener(fact: Fact) -> None:
        seen.append(fact)
        if fact.kind == "health_lost":
            given_up.set()

    unlisten = facts.listen(listener)

    with HealthCheckServer(LastProgress(), 0, 60) as server:
        assert given_up.wait(PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            connect(server.port)
    unlisten()

    assert "no room here" in seen[-1].sentence


#: A health process with two mistakes in it: one that a request comes upon, and one that its loop does.
MISTAKEN = """
import sys
sys.path.append({source!r})
from holdfast.health import health_process, routes

answer = routes.answer
def mistaken(request, *rest):
    if request.path == "/boom":
        raise RuntimeError("planted in a request")
    if request.path == "/die":
        health_process.HealthProcess._sweep = lambda self, now: 1 / 0
    return answer(request, *rest)
routes.answer = mistaken
health_process.main(sys.argv[1])
"""


@pytest.fixture
def mistaken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "health_process.py"
    path.write_text(MISTAKEN.format(source=str(Path(PROGRAM_FILE).parents[2])))
    monkeypatch.setattr("holdfast.health.handle.PROGRAM", str(path))


class Told:
    """What was published, and a way to wait for more."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._changed = threading.Condition()

    def take(self, fact: Fact) -> None:
        with self._changed:
            self.facts.append(fact)
            self._changed.notify_all()

    def wait(self, kind: str, count: int = 1) -> Fact:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE_S), self.facts
            return self.of(kind)[count - 1]

    def of(self, kind: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.kind == kind]


@pytest.fixture
def told() -> Iterator[Told]:
    found = Told()
    unlisten = facts.listen(found.take)
    yield found
    unlisten()


@pytest.mark.usefixtures("mistaken")
def test_a_mistake_in_one_request_costs_that_client_alone_and_is_told(serve: Serve, told: Told) -> None:
    server = serve()
    assert server._handle is not None
    pid = server._handle.pid
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        ask(server.port, "/boom")
    assert ask(server.port).status == 200

    trouble = told.wait("health_trouble").sentence
    assert "Traceback" in trouble
    assert "RuntimeError: planted in a request" in trouble
    assert server._handle.pid == pid
    for _ in range(30):
        with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError):
            ask(server.port, "/boom")
    assert ask(server.port).status == 200
    assert len(told.of("health_trouble")) <= 10


@pytest.mark.usefixtures("mistaken")
def test_a_mistake_in_the_loop_is_told_with_its_traceback_and_the_process_is_replaced(serve: Serve, told: Told) -> None:
    server = serve()
    for number in (1, 2):
        with contextlib.suppress(http.client.HTTPException, OSError):
            ask(server.port, "/die")
        restarted = told.wait("health_restarted", number).sentence
        assert "Traceback" in restarted
        assert "ZeroDivisionError" in restarted
        assert restarted.count("Traceback") == 1  # not those of earlier ones again
        assert ask_until(server.port, 200).status == 200


def test_health_answers_again_after_each_kill(serve: Serve, told: Told) -> None:
    server = serve()
    assert server._handle is not None
    for number in (1, 2, 3):
        assert ask_until(server.port, 200).status == 200
        os.kill(server._handle.pid, signal.SIGKILL)
        told.wait("health_restarted", number)
    assert ask_until(server.port, 200).status == 200


def test_a_mistake_on_the_agents_side_is_told_and_health_answers_again(
    serve: Serve, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(timeout=1)
    ask_until(server.port, 200)
    parts, failed = HealthCheckServer._parts, threading.Event()

    def mistaken(self: HealthCheckServer) -> object:
        if not failed.is_set():
            failed.set()
            raise KeyError("planted in the agent")
        return parts(self)

    monkeypatch.setattr(HealthCheckServer, "_parts", mistaken)

    restarted = told.wait("health_restarted").sentence
    assert "Traceback" in restarted
    assert "KeyError: 'planted in the agent'" in restarted
    assert ask_until(server.port, 200).status == 200


def test_a_mistake_that_does_not_go_away_is_given_up_with_its_traceback(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(self: HealthCheckServer) -> object:
        raise SystemExit("planted in the agent")

    monkeypatch.setattr(HealthCheckServer, "_parts", mistaken)
    with HealthCheckServer(LastProgress(), 0, 60) as server:
        assert "planted in the agent" in told.wait("health_lost").sentence
        with pytest.raises(ConnectionRefusedError):
            connect(server.port)
    assert len(told.of("health_restarted")) == 4


def test_an_alive_callback_that_exits_is_told_like_any_other(serve: Serve, told: Told) -> None:
    def alive() -> float:
        sys.exit("the callback had enough")

    server = serve(alive)

    assert ask(server.port).status == 503
    assert "had enough" in told.wait("health_callback").sentence


def test_a_process_that_cannot_be_started_for_a_moment_is_started_later(
    serve: Serve, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    assert server._handle is not None
    start, refused = subprocess.Popen, threading.Event()

    def busy(*args: Any, **kwargs: Any) -> Any:
        if not refused.is_set():
            refused.set()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(*args, **kwargs)

    monkeypatch.setattr("holdfast.health.handle.subprocess.Popen", busy)
    os.kill(server._handle.pid, signal.SIGKILL)

    assert "temporarily unavailable" in told.wait("health_restarted").sentence
    assert ask_until(server.port, 200).status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_processes_of_a_job_does_not_end_the_handle(serve: Serve, number: signal.Signals) -> None:
    server = serve()
    assert ask(server.port).status == 200
    assert server._handle is not None
    pid = server._handle.pid

    os.kill(pid, number)

    assert ask(server.port).status == 200
    assert server._handle.pid == pid


def test_the_health_process_imports_little_and_sees_no_environment(own: Own) -> None:
    owner = own(60, env={"HF_TOKEN": "hunter2"})
    assert ask(owner.port).status == 200
    script = (
        f"import sys; sys.path.append({str(Path(PROGRAM_FILE).parents[2])!r})\n"
        "import holdfast.health.health_process\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True).stdout

    heavy = {"logging", "subprocess", "threading", "dataclasses", "asyncio", "msgspec", "holdfast.health.server"}
    assert not heavy & set(loaded.split())
    assert b"hunter2" not in Path(f"/proc/{owner.server_process}/environ").read_bytes()


# -- an agent that hangs or dies -------------------------------------------------------------------------------------


def test_a_stopped_agent_turns_health_to_503_and_back(own: Own) -> None:
    owner = own(0.5)
    ask_until(owner.port, 200)

    owner.process.send_signal(signal.SIGSTOP)
    answer = ask_until(owner.port, 503)
    status = ask(owner.port, "/status")
    owner.process.send_signal(signal.SIGCONT)

    assert "the agent's loop last moved" in answer.text
    assert "the agent's process is stopped" in answer.text
    assert status.status == 503
    assert status.data["alive"] is False
    assert "did not answer" in status.data["error"]
    ask_until(owner.port, 200)
    ask_until(owner.port, 200, "/status")


def test_an_agent_stuck_in_c_code_that_holds_the_interpreter_turns_health_to_503(own: Own) -> None:
    owner = own(0.5)
    ask_until(owner.port, 200)

    owner.tell("grab")

    assert "the agent's loop last moved" in ask_until(owner.port, 503).text


def test_an_agent_whose_loop_hangs_turns_health_to_503_while_its_status_is_still_told(own: Own) -> None:
    owner = own(0.5)
    ask_until(owner.port, 200)

    owner.tell("hang")
    ask_until(owner.port, 503)
    status = ask(owner.port, "/status")

    assert status.status == 200
    assert status.data["alive"] is False
    assert status.data["pid"] == owner.process.pid


def test_the_health_process_ends_with_an_agent_that_is_killed(own: Own) -> None:
    owner = own()
    ask_until(owner.port, 200)

    owner.process.kill()
    owner.process.wait()

    wait_gone(owner.server_process)
    with socket.create_server(("127.0.0.1", owner.port)):
        pass


def test_the_health_process_ends_with_its_agent_even_where_a_fork_holds_its_sockets(own: Own) -> None:
    owner = own(60, "fork")
    ask_until(owner.port, 200)

    owner.process.kill()
    owner.process.wait()

    wait_gone(owner.server_process)
    assert Path(f"/proc/{owner.child}").exists()


# -- extending it ----------------------------------------------------------------------------------------------------


def test_a_subclass_runs_a_server_of_its_own_on_the_port_it_was_given() -> None:
    class MyServer(HealthCheckServer):
        def start(self) -> None:
            alive = time.time() - self._alive_callback() < self._timeout

            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.send_response(200 if alive else 503)
                    self.end_headers()

                def log_message(self, *args: object) -> None: ...

            self._server = http.server.HTTPServer(("127.0.0.1", self._port), Handler)
            self._thread = threading.Thread(target=self._server.serve_forever)
            self._thread.start()

        def stop(self) -> None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    port = free_port()
    server = MyServer(lambda: int(time.time()) - 100, port, 60)
    server.start()
    answer = ask(port)
    server.stop()

    assert answer.status == 503
    assert server.port == port
    assert server.alive_callback() < time.time() - 99


# -- the pulse -------------------------------------------------------------------------------------------------------


def test_a_pulse_counts_as_alive_until_its_first_beat_and_while_it_is_excused() -> None:
    pulse = LastProgress()
    before = time.time()
    assert pulse() >= before

    pulse.beat()
    beaten_by = time.time()
    while time.time() <= beaten_by + 0.001:  # let the clock move on
        pass

    assert pulse() <= beaten_by + 0.001
    with pulse.excused(), pulse.excused():
        assert pulse() > beaten_by
