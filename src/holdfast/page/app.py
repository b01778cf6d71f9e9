"""The page's server: its addresses, and what each answers."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.errors import HoldfastError
from holdfast.page.access import COOKIE, HEADER, Access, Verdict, is_this_host
from holdfast.page.watcher import Watcher

STATIC = Path(__file__).with_name("static")
#: What the browser may load: files of this server and nothing else.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_REFUSALS = {
    Verdict.WRONG_HOST: (421, "this server answers to 127.0.0.1 and localhost only"),
    Verdict.NO_COOKIE: (403, "open the link that `holdfast page` has printed"),
    Verdict.NO_HEADER: (403, "only the page itself may ask for this"),
}
_FILES = {"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"}

Answer = Callable[[Request], Awaitable[Response]]


def make_app(watcher: Watcher, access: Access, on_used: Callable[[], None] = lambda: None) -> Starlette:
    """Make the server; `on_used` is called when the link was used, so that a new one can be told."""
    door = _Door(access, on_used)

    def told(ask: Callable[[Request], Any]) -> Answer:
        return door.guard(_answer(ask))

    # A run is named in the query: its id may hold anything, also a slash.
    return Starlette(
        routes=[
            Route("/", door.enter),
            Route("/static/{name}", door.guard(_static)),
            Route("/api/runs", told(lambda _: {"runs": watcher.runs(), "allow_kill": watcher.allow_kill})),
            Route("/api/jobs", told(lambda _: watcher.jobs())),
            Route("/api/run", told(lambda request: watcher.run(_run(request)))),
            Route("/api/run/logs", told(lambda request: watcher.logs(_run(request)))),
            Route("/api/run/log", told(lambda request: watcher.log(_run(request), _text(request, "file")))),
            Route("/api/run/stacks", told(lambda request: watcher.stacks(_run(request))), methods=["POST"]),
            Route("/api/run/kill", told(lambda request: _kill(watcher, request)), methods=["POST"]),
        ]
    )


class _Door:
    """Lets in those who opened the link."""

    def __init__(self, access: Access, on_used: Callable[[], None]) -> None:
        self._access = access
        self._on_used = on_used

    async def enter(self, request: Request) -> Response:
        """Answer the page, or exchange the token of a link for a cookie."""
        token = _text(request, "token")
        if not token:
            return await self.guard(_index)(request)
        if not is_this_host(request.headers.get("host", "")):
            return _refusal(*_REFUSALS[Verdict.WRONG_HOST])
        cookie = self._access.open(token)
        response = RedirectResponse("/", 303, HEADERS)
        if cookie:
            self._on_used()
            response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        elif self._judge(request) is not Verdict.LET_IN:
            used = "this link was used already" if self._access.was_used(token) else "this link is wrong"
            return _refusal(403, f"{used}; `holdfast page` prints a new one after each use")
        return response

    def guard(self, answer: Answer) -> Answer:
        """Return what answers only those who may see the page."""

        async def serve(request: Request) -> Response:
            verdict = self._judge(request)
            return await answer(request) if verdict is Verdict.LET_IN else _refusal(*_REFUSALS[verdict])

        return serve

    def _judge(self, request: Request) -> Verdict:
        return self._access.judge(
            request.headers.get("host", ""),
            request.cookies.get(COOKIE, ""),
            changes=request.method == "POST",
            header=request.headers.get(HEADER, ""),
        )


def _answer(ask: Callable[[Request], Any]) -> Answer:
    """Return what answers with data, asked for in a thread: it is read from files and processes."""

    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(ask, request), headers=HEADERS)
        except HoldfastError as error:
            return JSONResponse({"error": str(error)}, 404, HEADERS)
        except (OSError, ValueError) as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500, HEADERS)

    return answer


def _kill(watcher: Watcher, request: Request) -> dict[str, Any]:
    rank, agent = _text(request, "rank"), _text(request, "agent")
    return watcher.kill(_run(request), int(rank) if rank else None, int(agent) if agent else None)


def _run(request: Request) -> str:
    return _text(request, "run")


def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "")


def make_access() -> Access:
    """Return the access of a new server."""
    return Access(lambda: secrets.token_urlsafe(24))


async def _index(request: Request) -> Response:
    del request
    return FileResponse(STATIC / "index.html", headers=HEADERS, media_type="text/html; charset=utf-8")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        return _refusal(404, f"there is no {name} here")
    return FileResponse(STATIC / name, headers=HEADERS, media_type=_FILES[name])


def _refusal(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"holdfast: {sentence}\n", status, HEADERS)
