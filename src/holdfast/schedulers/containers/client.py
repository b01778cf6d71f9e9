"""The engine's own command, `docker` or `podman`, which knows where its daemon is and how to get in."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.errors import UnavailableError
from holdfast.schedulers.containers.parse import Outcome, is_gone, parse_state, trouble, user_ids
from holdfast.schedulers.containers.render import INSIDE, JOB_LABEL, LOGS, SECRET, WORKERS

#: How long a command may take; one that moves images takes longer.
ANSWER_S, IMAGE_S = 120.0, 3600.0
#: How often a container is tried to be removed, and the wait between.
REMOVE_TRIES, REMOVE_PAUSE_S = 10, 0.5


class Engine:
    """Docker or Podman."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, *words: str) -> list[str]:
        """Return the words of a command."""
        return [self.name, *words]

    def popen(self, words: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start a command."""
        try:
            return subprocess.Popen(self.command(*words), **more)
        except FileNotFoundError:
            said = f"the command {self.name} was not found: install it, or use another scheduler"
            raise UnavailableError(said) from None

    def call(
        self,
        words: Sequence[str],
        what: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = ANSWER_S,
    ) -> bytes:
        """Run a command and return what it prints; raises what its failure means, with `what` went wrong."""
        code, out, said = self._run(words, env, stdin, timeout_s)
        if code:
            raise trouble(self.name, what, said)
        return out

    def _run(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = ANSWER_S,
    ) -> tuple[int, bytes, str]:
        pipe = subprocess.PIPE
        environ = {**os.environ, **(env or {})}
        with self.popen(words, env=environ, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                out, said = process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise UnavailableError(f"`{self.name} {words[0]}` did not end within {timeout_s:g} s") from None
            except BaseException:
                process.kill()
                raise
        return process.returncode, out, said.decode(errors="replace")

    def attempt(self, *words: str) -> str:
        """Run a command that may fail because what it names is gone; returns why else it failed, or nothing."""
        code, _, said = self._run(words)
        return "" if code == 0 or is_gone(said) else said.strip()

    # -- images --------------------------------------------------------------------------------------------------------

    def ensure_image(self, image: str, pull: str) -> None:
        """Have an image here; raises `UsageError` where it is not to be had."""
        what = f"the image {image} cannot be used"
        if pull == "always":
            self.call(["pull", "--quiet", image], what, timeout_s=IMAGE_S)
            return
        code, _, said = self._run(["image", "inspect", image])
        if code == 0:
            return
        found = trouble(self.name, what, said)
        if pull == "never" or not ("no such" in said.lower() or "not known" in said.lower()):
            raise found
        self.call(["pull", "--quiet", image], what, timeout_s=IMAGE_S)

    # -- containers ----------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Remove a container, also one that runs; does nothing if there is none."""
        now = ["--time=0"] if self.name == "podman" else []
        for left in reversed(range(REMOVE_TRIES)):  # one that is just being started or removed cannot be
            said = self.attempt("rm", "--force", "--volumes", *now, name)
            if not said:
                return
            if not left:
                raise trouble(self.name, f"the container {name} cannot be removed", said)
            time.sleep(REMOVE_PAUSE_S)

    def state(self, name: str) -> Outcome:
        """Say how a container is."""
        words = ["inspect", "--type=container", "--format={{json .State}}", name]
        return parse_state(self.call(words, f"the container {name} is gone").decode())

    def put(self, name: str, secret: bytes | None) -> None:
        """Put a replica's files into a container that is not started yet: the secret, and a folder for logs."""
        uid, gid = self._user(name)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for folder in (INSIDE, LOGS, WORKERS):
                _add(tar, folder, None, uid, gid)
            if secret is not None:
                _add(tar, SECRET, secret, uid, gid)
        # Docker keeps the owners that the files say; Podman has to be told.
        keep = ["--archive=false"] if self.name == "podman" else []
        words = ["cp", *keep, "-", f"{name}:/"]
        self.call(words, f"the secret cannot be put into {name}", stdin=buffer.getvalue())

    def _user(self, name: str) -> tuple[int, int]:
        words = ["inspect", "--type=container", "--format={{.Config.User}}", name]
        user = self.call(words, f"the container {name} is gone").decode().strip()
        bare = user.partition(":")[0]
        return user_ids(user, "" if not bare else self._read(name, "/etc/passwd"))

    def _read(self, name: str, path: str) -> str:
        code, out, _ = self._run(["cp", f"{name}:{path}", "-"])
        if code:
            return ""
        with tarfile.open(fileobj=io.BytesIO(out)) as tar:
            file = tar.extractfile(tar.getmembers()[0])
            return file.read().decode(errors="replace") if file is not None else ""

    @contextmanager
    def fetch(self, name: str, path: str) -> Iterator[tarfile.TarFile]:
        """Open what lies at a path in a container as a stream of files."""
        process = self.popen(["cp", f"{name}:{path}", "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                yield tar
        finally:
            process.stdout.close()
            process.kill()
            process.wait()

    # -- what is left --------------------------------------------------------------------------------------------------

    def sweep(self, handle: str, *, images: bool = False) -> None:
        """Remove every container and network of a job, and its images too where that is asked for."""
        label = f"label={JOB_LABEL}={handle}"
        for each in self._ids("ps", "--all", "--quiet", f"--filter={label}"):
            self.remove(each)
        for each in self._ids("network", "ls", "--quiet", f"--filter={label}"):
            if said := self.attempt("network", "rm", each):
                raise trouble(self.name, f"the network of {handle} cannot be removed", said)
        for each in self._ids("image", "ls", "--quiet", f"--filter={label}") if images else []:
            if said := self.attempt("rmi", "--force", each):
                raise trouble(self.name, f"the image of {handle} cannot be removed", said)

    def _ids(self, *words: str) -> list[str]:
        return self.call(words, "what a job has left cannot be looked for").decode().split()


def _add(tar: tarfile.TarFile, path: str, content: bytes | None, uid: int, gid: int) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.uid, entry.gid, entry.mode = uid, gid, 0o600 if content is not None else 0o700
    if content is None:
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
        return
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
