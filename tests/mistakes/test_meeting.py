"""Ports that are taken, coordinators that are not there, secrets that are not the same, runs that are others'."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mistakes.conftest import Invoke, Start, answered, finish

SECRET = "a secret that is long enough for everybody"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another program listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> int:
    """A port at which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def coordinator(start: Start) -> Iterator[str]:
    """The endpoint of a coordinator that wants a secret of its own."""
    write_secret("right.secret", SECRET)
    process = start("serve", "127.0.0.1:0", "--quiet", "--secret-file", "right.secret")
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.terminate()
    process.communicate()


def write_secret(name: str, text: str, mode: int = 0o600) -> None:
    Path(name).write_text(text)
    Path(name).chmod(mode)


def test_a_coordinator_on_a_port_that_is_taken(taken: int, invoke: Invoke) -> None:
    said = invoke("serve", f"127.0.0.1:{taken}")

    answered(said, "Address already in use; free the port, or give another one (port 0 takes any free one)")


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_coordinator_at_an_address_of_another_machine(
    host: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET", SECRET)

    answered(invoke("serve", f"{host}:29400"), "; name an address of this machine")


def test_a_health_port_that_is_taken(taken: int, start: Start) -> None:
    said = finish(start("launch", "--health-port", str(taken), "ok.py"))

    answered(said, f"health port {taken} on 127.0.0.1 is taken by another process; choose another one, or 0", 1)


def test_a_static_master_port_that_is_taken(taken: int, start: Start) -> None:
    said = finish(start("launch", "-q", "--master-port", str(taken), "--join-timeout", "1", "ok.py"))

    answered(said, "Address already in use; free the port, or give another one", 1)


def test_another_server_at_the_endpoint(taken: int, start: Start) -> None:
    said = finish(start("launch", "-q", "--rdzv-endpoint", f"127.0.0.1:{taken}", "--join-timeout", "1", "ok.py"))

    answered(said, "check the endpoint, or start one there with `holdfast serve`", 1)


def test_no_server_at_the_endpoint_of_a_question(free: int, invoke: Invoke) -> None:
    said = invoke("rounds", f"127.0.0.1:{free}")

    answered(said, f"Connection refused; is a coordinator running at 127.0.0.1:{free}? `holdfast serve` starts one")


@pytest.mark.parametrize(("host", "reason"), [("no.such.host.invalid", "Name or service not known"), ("192.0.2.1", "")])
def test_an_endpoint_that_cannot_be_reached(
    host: str, reason: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET", SECRET)
    said = finish(start("launch", "-q", "--rdzv-endpoint", f"{host}:29400", "--join-timeout", "1", "ok.py"))

    answered(said, f"no coordinator at {host}:29400 for run 'none': the coordinator is out of reach", 1)
    assert reason in said.err
    assert "; check the endpoint, or start one there with `holdfast serve`" in said.err
    assert "trying again" not in said.err


@pytest.mark.parametrize("options", [[], ["--secret-file", "wrong.secret"]])
def test_another_secret_than_the_coordinators(options: list[str], coordinator: str, invoke: Invoke) -> None:
    write_secret("wrong.secret", "another secret, which is not the right one")

    said = invoke("rounds", coordinator, *options)

    answered(
        said, f"holdfast: the shared secret is wrong: this node and the coordinator at {coordinator} have different"
    )
    assert "give every node the same --secret-file" in said.err


def test_a_node_with_another_secret(coordinator: str, start: Start) -> None:
    said = finish(start("launch", "--rdzv-endpoint", coordinator, "ok.py"))

    answered(said, "holdfast: the shared secret is wrong: this node and the coordinator at", 1)
    assert "give every node the same --secret-file" in said.err


def test_insecure_with_a_secret(invoke: Invoke) -> None:
    write_secret("job.secret", SECRET)

    words = ("--secret-file", "job.secret", "--insecure")
    answered(
        invoke("serve", "localhost:0", *words), "--insecure and --secret-file cannot be used together: leave one out"
    )
    answered(invoke("launch", *words, "ok.py"), "--insecure and --secret-file cannot be used together: leave one out")
    for command in (["serve", "localhost:0"], ["launch", "--insecure", "--require-secret", "ok.py"]):
        said = invoke(*command, *(["--insecure", "--require-secret"] if command[0] == "serve" else []))
        answered(said, "--require-secret and --insecure cannot be used together: leave one out")


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        (SECRET, 0o644, "can be read by other users: run chmod 600 job.secret"),
        ("sesame", 0o600, "the secret file job.secret holds 6 bytes and can be guessed: use at least 16"),
        ("", 0o600, "the secret file job.secret is empty: write a long random line into it"),
        ("x" * 5000, 0o600, "the secret file job.secret is over 4096 bytes; a secret is a short line"),
    ],
)
def test_secret_files(text: str, mode: int, sentence: str, invoke: Invoke) -> None:
    write_secret("job.secret", text, mode)

    answered(invoke("serve", "localhost:0", "--secret-file", "job.secret"), sentence)


def test_two_jobs_with_one_id_and_other_settings(coordinator: str, start: Start) -> None:
    meet = ["--rdzv-endpoint", coordinator, "--rdzv-id", "job", "--secret-file", "right.secret"]
    first = start("launch", "--nnodes", "2", *meet, "ok.py")
    assert first.stderr is not None
    assert "1 of 2 nodes" in first.stderr.readline()

    said = finish(start("launch", "--nnodes", "3", *meet, "ok.py"))

    answered(said, "asks for 3:3 nodes, but run 'job' was started with 2:2; start every node with the same --nnodes", 1)
    first.send_signal(subprocess.signal.SIGINT)  # type: ignore[attr-defined]
    assert finish(first).code == 130


def test_an_id_whose_run_is_over(coordinator: str, start: Start) -> None:
    meet = ["--rdzv-endpoint", coordinator, "--rdzv-id", "job", "--secret-file", "right.secret"]
    assert finish(start("launch", *meet, "ok.py")).code == 0

    said = finish(start("launch", *meet, "ok.py"))

    answered(said, "nothing was run here: the run was over (finished) before this node had a place in it", 0)
    assert "another --rdzv-id makes another run" in said.err
