"""What the page's server answers, on journals of a home of the test's own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from holdfast.errors import UsageError
from holdfast.events.index import note_journal
from holdfast.page.app import make_access, make_app
from holdfast.page.watcher import Watcher

RUN = "job/7"  # a run's id may hold anything


def lines(*facts: tuple[str, dict[str, Any]]) -> str:
    begin = time.time() - 100
    told = [
        {
            "version": 1,
            "time": begin + number,
            "kind": kind,
            "level": "info",
            "sentence": kind,
            "data": data,
            "run": RUN,
        }
        | {"host": "h", "node": "n", "pid": 1}
        for number, (kind, data) in enumerate(facts)
    ]
    return "".join(json.dumps(each) + "\n" for each in told)


@pytest.fixture
def folder(environ: dict[str, str], tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    (logs / "attempt_0" / "0").mkdir(parents=True)
    (logs / "attempt_0" / "0" / "stdout.log").write_text("<script>alert(1)</script>\n")
    (tmp_path / "secret.log").write_text("not yours")
    journal = logs / "journal.jsonl"
    failure = {"rank": 0, "host": "h", "pid": 5, "exit_code": 1, "round": 1, "traceback": "Traceback: planted"}
    journal.write_text(
        lines(
            ("agent_started", {"workers": 1}),
            ("rendezvous", {"round": 1}),
            ("workers_started", {"round": 1, "ranks": [0], "pids": [5], "world_size": 1}),
            ("round_broken", {"failure": failure, "reason": "rank 0: planted"}),
            ("run_ended", {"outcome": "failed", "reason": "rank 0: planted"}),
            ("journal_closed", {}),
        )
    )
    note_journal(RUN, journal, "h", pid=1)
    return logs


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    access = make_access()
    with TestClient(make_app(Watcher(), access), base_url="http://127.0.0.1") as made:
        made.get(f"/?token={access.token}")
        yield made


def test_without_the_link_nothing_is_told(folder: Path) -> None:
    access = make_access()
    stranger = TestClient(make_app(Watcher(), access), base_url="http://127.0.0.1", follow_redirects=False)

    for path in ("/", "/static/page.js", "/api/runs", "/api/jobs", "/?token=wrong"):
        assert stranger.get(path).status_code == 403
    link = f"/?token={access.token}"
    opened = stranger.get(link)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert "httponly" in opened.headers["set-cookie"].lower()
    assert "samesite=strict" in opened.headers["set-cookie"].lower()
    other = TestClient(make_app(Watcher(), access), base_url="http://127.0.0.1")
    assert "used already" in other.get(link).text
    assert stranger.get("/api/runs", headers={"host": "evil.example"}).status_code == 421


def test_the_page_and_its_files_come_from_the_package_alone(client: TestClient) -> None:
    page = client.get("/")

    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("<!doctype", "")  # no address of any other server
    for name in ("page.js", "page.css", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/../app.py").status_code == 404


def test_a_run_is_told_in_full(client: TestClient) -> None:
    (run,) = client.get("/api/runs").json()["runs"]
    assert (run["run"], run["outcome"], run["workers"]) == (RUN, "failed", 1)

    told = client.get("/api/run?run=job/7").json()

    assert told["failure"]["traceback"] == "Traceback: planted"
    assert told["seconds"].keys() == {"waiting", "starting", "stepping", "redone", "idle"}
    assert {span[1] for span in told["spans"]} == {"waiting", "starting", "stepping"}
    assert told["reason"] == "rank 0: planted"
    assert client.get("/api/run?run=nothing").status_code == 404
    assert client.get("/api/jobs").json() == []


def test_logs_are_those_of_the_run_alone(client: TestClient) -> None:
    (log,) = client.get("/api/run/logs?run=job/7").json()

    assert log["file"] == "attempt_0/0/stdout.log"
    assert client.get("/api/run/log", params={"run": RUN, "file": log["file"]}).json()["text"].startswith("<script>")
    for file in ("../secret.log", "/etc/passwd", "journal.jsonl", "missing.log"):
        assert client.get("/api/run/log", params={"run": RUN, "file": file}).status_code == 404


def test_a_run_of_two_agents_shows_none_of_the_logs_beside_its_own(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("job_a", "job_b", "another_run"):
        logs = tmp_path / name / "attempt_0" / "0"
        logs.mkdir(parents=True)
        (logs / "stdout.log").write_text(f"written by {name}\n")
        if name.startswith("job"):
            journal = tmp_path / name / "journal.jsonl"
            journal.write_text(lines(("agent_started", {"workers": 1})))
            note_journal(RUN, journal, "h", pid=os.getpid())
    watcher = Watcher()

    files = [log["file"] for log in watcher.logs(RUN)]

    assert files == ["job_b/attempt_0/0/stdout.log", "job_a/attempt_0/0/stdout.log"]
    assert watcher.log(RUN, files[0])["text"] == "written by job_b\n"
    with pytest.raises(UsageError, match="this run has no log"):
        watcher.log(RUN, "another_run/attempt_0/0/stdout.log")


def test_nothing_is_killed_unless_that_was_allowed(client: TestClient, folder: Path) -> None:
    header = {"x-holdfast-page": "1"}

    assert client.get("/api/run/kill?run=job/7&rank=0").status_code == 405
    assert client.post("/api/run/kill?run=job/7&rank=0").status_code == 403
    assert "read-only" in client.post("/api/run/kill?run=job/7&rank=0", headers=header).json()["error"]
    access = make_access()
    allowed = TestClient(make_app(Watcher(allow_kill=True), access), base_url="http://127.0.0.1")
    allowed.get(f"/?token={access.token}")
    for what in ("rank=0", f"agent={os.getppid()}", "rank=9"):
        answer = allowed.post(f"/api/run/kill?run=job/7&{what}", headers=header)
        assert "no such process" in answer.json()["error"]


def test_stacks_of_a_run_that_is_over_are_refused_in_words(client: TestClient) -> None:
    answer = client.post("/api/run/stacks?run=job/7", headers={"x-holdfast-page": "1"})

    assert "no workers on this host" in answer.json()["error"]
