"""The client against a real server that loses connections, answers and its memory."""

import os
import signal
import ssl
import subprocess
import sys
import threading
import time

import pytest
import trustme

from holdfast.errors import ConnectionLostError, HandshakeError, StoreTimeoutError, UnavailableError, UsageError
from holdfast.store.client import StoreClient
from holdfast.store.machine import SpaceDropped
from holdfast.testing.store_server import StoreServer
from holdfast.wire.channel import Channel

PATIENCE_S = 240.0


@pytest.fixture
def server():
    with StoreServer() as server:
        yield server


@pytest.fixture
def client(server):
    with StoreClient.connect(server.endpoint, "run/1", secret=b"", timeout=PATIENCE_S) as client:
        yield client


class Asking(threading.Thread):
    """A thread that asks; its result or its error is kept."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function = function
        self.start()

    def run(self):
        try:
            self.result = self.function()
        except BaseException as error:  # noqa: BLE001 - kept for the caller that asks
            self.result = error

    def answer(self):
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it still waits"
        return self.result


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def test_a_broken_connection_is_mended_unnoticed(server, client):
    client.set("k", "1")
    for _ in range(3):
        server.cut()
        assert client.get("k") == b"1"
        assert client.add("n", 1) > 0

    assert client.get("n") == b"3"


@pytest.mark.parametrize(
    ("ask", "result", "left"),
    [
        (lambda client: client.add("n", 1), 1, b"1"),
        (lambda client: client.append("n", "x"), None, b"x"),
        (lambda client: client.compare_set("n", "", "x"), b"x", b"x"),
        (lambda client: client.set("n", "x"), None, b"x"),
    ],
    ids=["add", "append", "compare_set", "set"],
)
def test_a_write_whose_answer_was_lost_happens_once(server, client, ask, result, left):
    client.check(["n"])
    server.lose_answers()
    asking = Asking(lambda: ask(client))
    wait_until(lambda: server.snapshot()["keys"] == 1)
    server.cut()

    assert asking.answer() == result
    assert client.get("n") == left


def test_a_value_popped_with_a_lost_answer_is_not_lost(server, client):
    client.queue_push("q", "1")
    client.queue_push("q", "2")
    server.lose_answers()
    asking = Asking(lambda: client.queue_pop("q"))
    wait_until(lambda: server.snapshot()["keys"] == 1)
    server.cut()

    assert asking.answer() == b"1"
    assert client.queue_pop("q") == b"2"


def test_a_question_that_waits_survives_a_broken_connection(server, client):
    asking = Asking(lambda: client.get("k"))
    wait_until(lambda: server.snapshot()["waiters"] == 1)
    server.cut()
    client.set("k", "1")

    assert asking.answer() == b"1"


def test_a_question_that_waits_is_asked_again_of_a_restarted_coordinator(server, client):
    asking = Asking(lambda: client.multi_get(["a", "b"]))
    wait_until(lambda: server.snapshot()["waiters"] == 1)
    server.restart("second")
    wait_until(lambda: server.snapshot()["waiters"] == 1)
    client.multi_set(["a", "b"], ["1", "2"])

    assert asking.answer() == [b"1", b"2"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.add("n", 1),
        lambda client: client.append("n", "x"),
        lambda client: client.compare_set("n", "", "x"),
        lambda client: client.queue_push("n", "x"),
    ],
    ids=["add", "append", "compare_set", "queue_push"],
)
def test_after_a_restart_it_is_unknown_whether_a_write_was_done(server, client, ask):
    client.check(["n"])
    server.lose_answers()
    asking = Asking(lambda: ask(client))
    wait_until(lambda: server.snapshot()["keys"] == 1)
    server.restart("second")
    error = asking.answer()

    assert type(error) is UnavailableError
    assert "the coordinator was restarted" in str(error)
    assert "'n'" in str(error)
    assert client.num_keys() == 0
    assert client.add("n", 1) == 1


def test_a_set_is_simply_done_again_after_a_restart(server, client):
    client.check(["k"])
    server.restart("second")
    client.set("k", "1")

    assert client.get("k") == b"1"


def test_a_coordinator_that_comes_late_is_waited_for(server):
    server.stop()
    client = StoreClient.connect(server.endpoint, "run", secret=b"", timeout=PATIENCE_S)
    asking = Asking(lambda: client.add("n", 1))
    server.start()

    assert asking.answer() == 1
    client.close()


def test_a_coordinator_that_stays_away_is_reported_when_the_time_is_up(server, client):
    client.set("k", "1")
    server.stop()
    client.set_timeout(0.1)
    started = time.monotonic()

    with pytest.raises(ConnectionLostError, match=f"cannot reach {server.endpoint}"):
        client.get("k")
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_wrong_secret_is_told_at_once():
    with StoreServer(secret=b"right") as server:
        client = StoreClient.connect(server.endpoint, "run", secret=b"wrong", timeout=PATIENCE_S)
        with pytest.raises(HandshakeError, match="the shared secret is wrong"):
            client.get("k")


def test_a_thread_that_waits_blocks_no_other(server, client):
    """Ten threads wait over their own connections; when all are answered only a few are kept."""
    asking = [Asking(lambda key=key: client.get(f"k{key}")) for key in range(10)]
    wait_until(lambda: server.snapshot()["waiters"] == 10)
    client.multi_set([f"k{key}" for key in range(10)], [str(key) for key in range(10)])

    assert [each.answer() for each in asking] == [str(key).encode() for key in range(10)]
    wait_until(lambda: server.snapshot()["channels"] <= 4)
    assert server.snapshot()["channels_away"] == 0


def test_a_dropped_round_ends_what_waits_in_it(server, client):
    asking = Asking(lambda: client.get("k"))
    wait_until(lambda: server.snapshot()["waiters"] == 1)
    server.tell(SpaceDropped("run/", "round 1 was broken"))
    error = asking.answer()

    assert type(error) is UnavailableError
    assert str(error) == "round 1 was broken"


def test_a_timeout_is_the_coordinators_answer_and_costs_no_connection(server, client):
    client.check(["k"])
    with pytest.raises(StoreTimeoutError, match=r"the key 'k' did not appear within 0\.01 s"):
        client.get("k", 0.01)
    client.set("k", "1")

    assert server.snapshot()["channels"] == 1


def test_large_values_travel_whole(client):
    value = os.urandom(8 * 1024 * 1024)
    client.set("large", value)
    client.multi_set(["a", "b"], [value, value[::-1]])

    assert client.get("large") == value
    assert client.multi_get(["b", "a"]) == [value[::-1], value]


def test_a_closed_client_asks_no_more(server, client):
    client.set("k", "1")
    client.close()

    with pytest.raises(UsageError, match="closed"):
        client.get("k")
    wait_until(lambda: server.snapshot()["channels"] == 0)
    assert server.snapshot()["channels_away"] == 0


def test_a_client_without_references_says_bye(server):
    client = StoreClient.connect(server.endpoint, "run", secret=b"")
    client.set("k", "1")
    del client

    wait_until(lambda: server.snapshot()["channels"] == 0)
    assert server.snapshot()["channels_away"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_connections_of_its_own(server):
    """Parent and child ask at the same time and neither reads the other's answers."""
    program = f"""
import os, sys
from holdfast.store.client import StoreClient
client = StoreClient.connect("{server.endpoint}", "run", secret=b"")
client.set("before", "1")
child = os.fork()
name = "parent" if child else "child"
for number in range(200):
    client.set(name, str(number))
    assert client.get(name) == str(number).encode()
    client.add("both", 1)
if not child:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert client.get("both") == b"400", client.get("both")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)

    assert done.stderr == ""
    assert done.returncode == 0
    wait_until(lambda: server.snapshot()["channels"] == 0)


def test_ctrl_c_ends_a_question_that_waits(server, client):
    program = f"""
from holdfast.store.client import StoreClient
client = StoreClient.connect("{server.endpoint}", "run", secret=b"")
try:
    client.get("never")
except KeyboardInterrupt:
    client.set("stopped", "1")
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: server.snapshot()["waiters"] == 1)
    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_S) == 0
    assert client.within("run").get("stopped") == b"1"


def test_a_peer_that_is_no_store_is_reported(server, client, monkeypatch):
    """An answer to another question is the other side's fault and costs the connection."""
    client.set("k", "1")
    ask = Channel.ask

    def confused(self, message, deadline=None):
        ask(self, message, deadline)
        return message

    monkeypatch.setattr(Channel, "ask", confused)
    with pytest.raises(Exception, match="the coordinator answered"):
        client.get("k")


def test_it_works_over_tls(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate.configure_cert(serving)
    authority.configure_trust(asking)
    value = os.urandom(3 * 1024 * 1024)
    with StoreServer(secret=b"s", tls=serving) as server:
        client = StoreClient.connect(server.endpoint, "run", secret=b"s", tls=asking, timeout=PATIENCE_S)
        waiting = Asking(lambda: client.get("k"))
        wait_until(lambda: server.snapshot()["waiters"] == 1)
        server.cut()
        client.set("k", value)

        assert waiting.answer() == value
        with pytest.raises(StoreTimeoutError):
            client.get("absent", 0.01)
        client.close()


def test_the_core_does_not_import_torch():
    program = "import sys, holdfast.store.client, holdfast.torch; assert 'torch' not in sys.modules"

    assert subprocess.run([sys.executable, "-c", program], timeout=240).returncode == 0
