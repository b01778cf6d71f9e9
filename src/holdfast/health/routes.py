"""Routes: the answer to each request. Pure.

The health process itself knows whether the agent moves, and answers that at once. Its status, its metrics and whether
it is in a round only the agent knows: such a request becomes a question to the agent, and is refused if the agent does
not answer in time.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast.health.http import JSON, TEXT, Reply, Request
from holdfast.health.liveness import Liveness
from holdfast.health.protocol import ANY_HOST, Policy

METHODS = "GET, HEAD"
ENDPOINTS = {
    "/healthz": "200 while the agent moves, 503 and the reason otherwise",
    "/readyz": "200 in a round, 503 and what the agent waits for otherwise",
    "/metrics": "metrics for Prometheus",
    "/status": "the agent's state as JSON",
}
#: The paths that only the agent can answer, and the name of each question.
QUESTIONS = {"/readyz": "ready", "/metrics": "metrics", "/status": "status"}


class Question(NamedTuple):
    """A question to the agent that must be answered first."""

    kind: str


def answer(request: Request, liveness: Liveness, policy: Policy, now: float) -> Reply | Question:
    """Return the reply to a request, or the question to ask the agent."""
    if not is_known(request.host, policy.names):
        # The names are not listed: the web page that led the client here could read them.
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
    # A server without a `ready` callback is ready while it is alive.
    return _say(request, not liveness.trouble(now), "ready" if kind else "alive", liveness.sentence(now))


def is_known(host: str, names: frozenset[str]) -> bool:
    """Whether the host that a client names is this one: by address, by a known name, or without a name."""
    if not host or ANY_HOST in names or host.startswith("["):
        return True
    parts = host.split(".")
    is_address = len(parts) == 4 and all(part.isdecimal() and len(part) <= 3 and int(part) <= 255 for part in parts)
    return is_address or host.rstrip(".") in names


def agents_reply(request: Request, head: dict[str, Any], body: bytes) -> Reply:
    """Return the reply that the agent's answer makes."""
    if "error" in head:
        return refusal(request, 500, head["error"])
    if head["answer"] == "ready":
        return _say(request, head["ok"], "ready", head["sentence"])
    return Reply(200, head["type"], body)


def unanswered(request: Request, liveness: Liveness, timeout_s: float, now: float) -> Reply:
    """Return the refusal of a request that the agent did not answer in time."""
    trouble = liveness.trouble(now)
    sentence = f"the agent did not answer within {timeout_s:g} s" + (f": {trouble}" if trouble else "")
    if request.path == "/status":
        content = {"alive": not trouble, "health": liveness.sentence(now), "error": sentence}
        return Reply(503, JSON, _json(content))
    return refusal(request, 503, sentence)


def refusal(request: Request | None, status: int, sentence: str, allow: str = "") -> Reply:
    """Return a refusal with its reason, as JSON where the client wants that."""
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
