"""The desk: what each request is answered with. Pure.

What the porter knows itself (whether the agent moves) is answered at once. What only the agent knows (its status,
whether it is in a round, its metrics) becomes a question to it, answered when the agent has, refused when it has not in
time.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast.health.http import JSON, TEXT, Reply, Request
from holdfast.health.vitals import Vitals

METHODS = "GET, HEAD"
ENDPOINTS = {
    "/healthz": "200 while the agent moves, 503 and the reason otherwise",
    "/readyz": "200 in a round, 503 and what is waited for otherwise",
    "/metrics": "metrics for Prometheus",
    "/status": "the agent's state as JSON",
}
#: Where the agent must be asked, and the name of the question.
QUESTIONS = {"/readyz": "ready", "/metrics": "metrics", "/status": "status"}
NO_METRICS = "there are no metrics here: this server was given none"
ANY_HOST = "*"


class Question(NamedTuple):
    """What must be asked of the agent before the request can be answered."""

    kind: str


class Policy(NamedTuple):
    """What the agent has decided for its server at the start."""

    #: The questions that the agent takes.
    asked: frozenset[str] = frozenset()
    #: The names that are answered to; `*` for all.
    names: frozenset[str] = frozenset([ANY_HOST])
    #: Why there are no metrics, where there are none.
    no_metrics: str = NO_METRICS


def answer(request: Request, vitals: Vitals, policy: Policy, now: float) -> Reply | Question:
    """Answer a request or say what to ask of the agent."""
    if not is_known(request.host, policy.names):
        # The names are not listed: a page that was led here could read them.
        return refusal(
            request,
            421,
            f"this server does not answer to the name {request.host}: use its address or localhost, "
            "or add the name to HOLDFAST_HEALTH_HOSTS where the agent runs",
        )
    if request.method not in ("GET", "HEAD"):
        return refusal(request, 405, f"only {METHODS} are answered here", allow=METHODS)
    if request.path == "/":
        return _index(request)
    if request.path not in ENDPOINTS:
        return refusal(request, 404, f"there is no {request.path[:80]} here, only {', '.join(ENDPOINTS)}")
    kind = QUESTIONS.get(request.path)
    if kind in policy.asked:
        return Question(kind)
    if kind == "metrics":
        return refusal(request, 404, policy.no_metrics)
    # Who was given no way to say when it is ready is ready while it is alive.
    return _say(request, not vitals.trouble(now), "ready" if kind else "alive", vitals.sentence(now))


def is_known(host: str, names: frozenset[str]) -> bool:
    """Whether a host that a client names is this one: by address, by a known name, or by none at all."""
    if not host or ANY_HOST in names or host.startswith("["):
        return True
    parts = host.split(".")
    is_address = len(parts) == 4 and all(part.isdecimal() and len(part) <= 3 and int(part) <= 255 for part in parts)
    return is_address or host.rstrip(".") in names


def told(request: Request, head: dict[str, Any], body: bytes) -> Reply:
    """Turn what the agent answered into a reply."""
    if "error" in head:
        return refusal(request, 500, head["error"])
    if head["answer"] == "ready":
        return _say(request, head["ok"], "ready", head["sentence"])
    return Reply(200, head["type"], body)


def unanswered(request: Request, vitals: Vitals, timeout_s: float, now: float) -> Reply:
    """Refuse what the agent did not answer in time."""
    trouble = vitals.trouble(now)
    sentence = f"the agent did not answer within {timeout_s:g} s" + (f": {trouble}" if trouble else "")
    if request.path == "/status":
        content = {"alive": not trouble, "health": vitals.sentence(now), "error": sentence}
        return Reply(503, JSON, _json(content))
    return refusal(request, 503, sentence)


def refusal(request: Request | None, status: int, sentence: str, allow: str = "") -> Reply:
    """Say no in a sentence, in the form that the client wants."""
    if request is not None and request.wants_json:
        return Reply(status, JSON, _json({"error": sentence}), allow)
    return Reply(status, TEXT, f"{sentence}\n".encode(errors="backslashreplace"), allow)


def _say(request: Request, yes: bool, key: str, sentence: str) -> Reply:
    status = 200 if yes else 503
    if request.wants_json:
        return Reply(status, JSON, _json({key: yes, "reason": sentence}))
    return Reply(status, TEXT, f"{sentence}\n".encode(errors="backslashreplace"))


def _index(request: Request) -> Reply:
    if request.wants_json:
        return Reply(200, JSON, _json(ENDPOINTS))
    width = max(map(len, ENDPOINTS))
    lines = [f"{path.ljust(width)}  {what}" for path, what in ENDPOINTS.items()]
    return Reply(200, TEXT, "\n".join([*lines, ""]).encode(errors="backslashreplace"))


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
