"""OpenSSH's own client: orders to hosts, each a call of the program there.

The first call to a host opens a connection that the following ones share, also those of other commands, until it was
not used for a while. ssh never asks for a password here: a host must let the user in by a key or an agent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import holdfast
from holdfast.errors import UnavailableError, UsageError
from holdfast.private import make_private, user_folder_name
from holdfast.schedulers.ssh import boot, packages
from holdfast.schedulers.ssh.render import Access

#: How long a shared connection is kept after its last use.
PERSIST_S = 60
#: How long a host may take to answer an order, beyond the time to connect; sending code takes longer.
ANSWER_S, SEND_S = 60.0, 600.0
SSH_FAILED, NOT_FOUND = 255, (126, 127)
_PLAIN = re.compile(r"[\w./~+@%=-]+")


class SshClient:
    """Sends orders to hosts; safe to use from several threads."""

    def __init__(self, access: Access, home: Path) -> None:
        self._access = access
        # Not below the state folder: the name of a socket may not be long.
        name = hashlib.sha256(str(home).encode()).hexdigest()[:8]
        with make_private(Path("/tmp"), user_folder_name(), "ssh", name) as folder:
            self._sockets = folder.path
        self._hosts: set[str] = set()
        self._packing = threading.Lock()
        self._packed: bytes | None = None

    def call(self, host: str, order: Mapping[str, Any], body: Path | None = None) -> dict[str, Any]:
        """Give an order and return the answer; `body` is a file that follows it. Sends Holdfast where it is missing.

        Raises `UnavailableError` where the host cannot be reached, `UsageError` where it cannot serve.
        """
        code, out, said = self._run(host, order, body)
        if code == boot.NEEDS_PACKAGES:
            self._send_packages(host, _facts(out))
            code, out, said = self._run(host, order, body)
        answer = self._checked(host, code, out, said)
        if "error" in answer:
            kind = UnavailableError if answer.get("kind") == "UnavailableError" else UsageError
            raise kind(f"{host}: {answer['error']}")
        return answer

    def lines(self, host: str, order: Mapping[str, Any]) -> Iterator[Any]:
        """Give an order and yield the lines of its answer as they come, read from JSON; the last one is an object."""
        self._hosts.add(host)
        with tempfile.TemporaryFile() as errors:
            words = self._words(host)
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(boot.opening(self._complete(order)))
                process.stdin.close()
                for line in process.stdout:
                    yield json.loads(line)
                code = process.wait(ANSWER_S)
                if code:
                    self._checked(host, code, b"{}", _said(errors))
            except BrokenPipeError:
                self._checked(host, process.wait(ANSWER_S), b"", _said(errors))
            finally:
                process.terminate()
                process.stdout.close()
                process.wait(ANSWER_S)

    def address_of(self, host: str) -> str:
        """Return the name or address that ssh connects to for a host."""
        done = subprocess.run(
            ["ssh", *self._settings(), "-G", host], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        found = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        return found[1] if found else host.rpartition("@")[2]

    def disconnect(self) -> None:
        """End the shared connections at once; jobs go on."""
        for host in self._hosts:
            words = ["ssh", *self._flags(), "-O", "exit", host]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False)
        self._hosts.clear()
        with contextlib.suppress(OSError):  # another command has connections there
            self._sockets.rmdir()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _run(self, host: str, order: Mapping[str, Any], body: Path | None) -> tuple[int, bytes, str]:
        self._hosts.add(host)
        limit = self._access.timeout_s + (ANSWER_S if body is None else SEND_S)
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as errors:
            stdin.write(boot.opening(self._complete(order)))
            if body is not None:
                _copy(body, stdin)
            stdin.seek(0)
            try:
                # Errors go to a file: the shared connection, which goes on, would keep a pipe open.
                done = subprocess.run(
                    self._words(host), stdin=stdin, stdout=subprocess.PIPE, stderr=errors, timeout=limit
                )
            except FileNotFoundError:
                raise UnavailableError("the command ssh was not found: install OpenSSH's client") from None
            except subprocess.TimeoutExpired:
                raise UnavailableError(f"{host} did not answer within {limit:g} s") from None
            return done.returncode, done.stdout, _said(errors)

    def _complete(self, order: Mapping[str, Any]) -> dict[str, object]:
        return {**order, "packages": packages.digest(), "version": holdfast.__version__}

    def _send_packages(self, host: str, facts: Mapping[str, Any]) -> None:
        """Send Holdfast to a host that does not have it; one where our files do not run is told to install it."""
        theirs, ours = tuple(facts["python"]), sys.version_info[:2]
        if theirs != ours or facts["machine"] != _machine():
            raise UsageError(
                f"{host} has no Holdfast {holdfast.__version__}, and its {facts['executable']} is Python "
                f"{theirs[0]}.{theirs[1]} on {facts['machine']}, where ours does not run (it is for Python "
                f"{ours[0]}.{ours[1]} on {_machine()}): install it there, or name another Python with -cfg python=PATH"
            )
        with tempfile.NamedTemporaryFile(prefix="holdfast-packages-") as file:
            with self._packing:
                self._packed = self._packed or packages.pack()
            file.write(self._packed)
            file.flush()
            code, out, said = self._run(host, {"verb": "unpack"}, Path(file.name))
        answer = self._checked(host, code, out, said)
        if "error" in answer:
            raise UnavailableError(f"{host} cannot keep Holdfast: {answer['error']}")

    def _checked(self, host: str, code: int, out: bytes, said: str) -> dict[str, Any]:
        """Return an answer, or raise what its absence means."""
        last = said.strip().splitlines()[-1].strip() if said.strip() else ""
        if code == SSH_FAILED:
            raise UnavailableError(f"{host} cannot be reached: {last or 'ssh says no more'}")
        if code == boot.TOO_OLD:
            facts = _facts(out)
            raise UsageError(
                f"{facts['executable']} on {host} is Python {facts['python'][0]}.{facts['python'][1]}, and Holdfast "
                f"needs {boot.PYTHON_MIN[0]}.{boot.PYTHON_MIN[1]} or newer: name another with -cfg python=PATH"
            )
        if code in NOT_FOUND:
            raise UsageError(f"{host} has no '{self._access.python}' ({last}): name its Python with -cfg python=PATH")
        try:
            return _facts(out)
        except ValueError:
            detail = said.strip() or f"exit code {code}"
            raise UnavailableError(f"the program on {host} broke: {detail[-2000:]}") from None

    # -- command lines -----------------------------------------------------------------------------------------------

    def _words(self, host: str) -> list[str]:
        python = self._access.python
        program = python if _PLAIN.fullmatch(python) else shlex.quote(python)
        return ["ssh", *self._flags(), "-T", "--", host, f"{program} -c '{boot.LINE}'"]

    def _flags(self) -> list[str]:
        return [
            *self._settings(),
            "-oBatchMode=yes",
            f"-oConnectTimeout={max(1, round(self._access.timeout_s))}",
            "-oServerAliveInterval=5",  # a host that lost power is noticed within 20 s
            "-oServerAliveCountMax=4",
            "-oControlMaster=auto",
            f"-oControlPath={self._sockets}/%C",
            f"-oControlPersist={PERSIST_S}",
        ]

    def _settings(self) -> list[str]:
        return [*(["-F", self._access.config] if self._access.config else []), *self._access.flags]


def _facts(out: bytes) -> dict[str, Any]:
    """Read the last line of an answer: a login shell may have written before it."""
    lines = out.strip().splitlines()
    found = json.loads(lines[-1]) if lines else None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _said(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")


def _copy(body: Path, stdin: IO[bytes]) -> None:
    with body.open("rb") as file:
        shutil.copyfileobj(file, stdin)


def _machine() -> str:
    return os.uname().machine
