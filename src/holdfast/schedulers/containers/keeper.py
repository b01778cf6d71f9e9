"""The keeper of one container: it makes it, puts the secret into it, starts it, and removes it when it has ended.

It is a process of its own beside the replica's program, to which it is tied by a socket. A byte on the socket says that
the container is to end; when the socket is closed, the program was killed, and the container is removed at once. So a
container never outlives its job, however that ends. The engine's commands are the keeper's children, and are not
signalled with the replica's processes.

What the replica has left (its error file, the logs and journals of its workers) is copied out before the container is
removed. The last keeper of a job removes the job's network.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.failures.errorfile import ERROR_FILE_VARIABLE
from holdfast.schedulers.containers.client import Engine
from holdfast.schedulers.containers.parse import Outcome
from holdfast.schedulers.containers.render import (
    ERROR,
    LOGS,
    SECRET,
    Box,
    ContainerRequest,
    create_words,
    error_file,
    network_words,
    split_env,
)
from holdfast.schedulers.local.folders import JobFolder, read_record
from holdfast.schedulers.local.supervisor import RESTARTS_VARIABLE
from holdfast.wire.secret import INSECURE_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE

RECORD = "containers.json"
#: How long an engine that restarts may be silent while its containers go on.
SILENT_S, LOOK_S = 120.0, 0.5
#: How often a container that is to end is told again: it may not have been started the first time.
AGAIN_S = 2.0
#: What of a replica's files is copied out at most.
BYTES_MAX = 1 << 30


def read_request(folder: Path) -> ContainerRequest:
    """Read a job's request."""
    job = JobFolder(folder).read_request()
    found = (
        read_record(folder / RECORD, lambda data: ContainerRequest.from_json(data, job)) if job is not None else None
    )
    if found is None:
        raise UnavailableError(f"the job in {folder} is gone")
    return found


class Replica:
    """One start of one replica."""

    def __init__(self, folder: Path, request: ContainerRequest, box: Box, program: socket.socket) -> None:
        self._folder = folder
        self._request = request
        self._box = box
        self._program = program
        self._engine = Engine(request.engine)
        plan = next(each for each in request.job.replicas if (each.role, each.id) == (box.role, box.number))
        self._logs = Path(plan.log_dir)
        #: Whether the container is to end, and whether at once: then there is no one to tell how it ended.
        self._ending = self._at_once = False

    def run(self) -> int:
        """Run the container to its end; returns its exit code, negative for a signal."""
        with (self._folder / "network.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # while it is held the network stays
            try:
                self._create()
                self._hear()
                ended = Outcome(False, -signal.SIGTERM) if self._ending else self._follow()
                if not self._at_once:
                    self._collect(ended)
            finally:
                self._engine.remove(self._box.name)
                self._remove_network(lock.fileno())
        return ended.exit_code

    def _hear(self) -> None:
        """Hear whether the container is to end."""
        while select.select([self._program], [], [], 0)[0]:
            self._ending = True
            if not self._program.recv(64):
                self._at_once = True
                return

    # -- the beginning -------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        """Make the container with all that it needs, but do not start it."""
        name, restarts = self._box.name, os.environ.get(RESTARTS_VARIABLE, "0")
        if restarts != "0":
            self._engine.remove(name)  # of a start whose program was killed
        env = {**self._box.env, ERROR_FILE_VARIABLE: ERROR, RESTARTS_VARIABLE: restarts}
        secret = self._take_secret(env)
        passed, heeded = split_env(env)
        with tempfile.NamedTemporaryFile("w", prefix="holdfast-env-") as file:
            file.writelines(f"{key}={value}\n" for key, value in heeded.items())
            file.flush()
            words = create_words(self._request, self._box, sorted(env), file.name if heeded else "")
            self._ensure_network()
            self._engine.call(words, f"the container of {self._box.role}/{self._box.number} cannot be made", env=passed)
        self._engine.put(name, secret)
        if self._engine.name == "podman":
            # The network is made now, and not when output is already that of the replica.
            self._engine.call(["init", name], f"the container {name} cannot be started")

    def _take_secret(self, env: dict[str, str]) -> bytes | None:
        """Take the secret out of what the engine is told, and say where the replica finds it."""
        chosen = env.pop(SECRET_VARIABLE, "")
        path = self._folder / "secret"
        if INSECURE_VARIABLE in env or SECRET_FILE_VARIABLE in env:
            return None
        secret = chosen.encode() if chosen else path.read_bytes() if path.exists() else None
        if secret is not None:
            env[SECRET_FILE_VARIABLE] = SECRET
        return secret

    def _ensure_network(self) -> None:
        if not self._request.own_network:
            return
        name = self._request.network
        with (self._folder / "network.making").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Docker makes two of one name where it is asked twice at once
            said = self._engine.attempt(*network_words(self._request))
        if said and "exist" not in said.lower():
            raise UnavailableError(f"the network {name} cannot be made: {said.splitlines()[-1]}")

    # -- the life ------------------------------------------------------------------------------------------------------

    def _follow(self) -> Outcome:
        """Start the container and pass its output on until it has ended."""
        words = ["start", "--attach", self._box.name]
        while True:
            viewer = self._engine.popen(words, stdin=subprocess.DEVNULL)
            self._wait(viewer)
            state = Outcome(False, -signal.SIGKILL) if self._at_once else self._look()
            if not state.running:
                return state
            words = ["attach", "--no-stdin", "--sig-proxy=false", self._box.name]  # the engine was started again

    def _wait(self, viewer: subprocess.Popen[bytes]) -> None:
        """Wait until the output is over; end the container when that is asked for."""
        descriptor = os.pidfd_open(viewer.pid)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._program, select.POLLIN)
        try:
            while viewer.poll() is None:
                self._hear()
                if self._at_once:
                    poll.unregister(self._program)
                    self._engine.remove(self._box.name)
                    viewer.wait(AGAIN_S)
                    return
                if self._ending:
                    self._engine.attempt("stop", f"--time={round(self._request.grace_s)}", self._box.name)
                poll.poll(AGAIN_S * 1000 if self._ending else None)
        finally:
            os.close(descriptor)

    def _look(self) -> Outcome:
        """Ask how the container is; an engine that restarts is given time."""
        deadline = time.monotonic() + SILENT_S
        while True:
            try:
                return self._engine.state(self._box.name)
            except UnavailableError:
                self._hear()
                if time.monotonic() > deadline or self._ending:
                    raise
                time.sleep(LOOK_S)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _collect(self, ended: Outcome) -> None:
        """Copy out what the replica has left, and say why it ended where it could not."""
        wanted = os.environ.get(ERROR_FILE_VARIABLE, "")
        left, total = False, 0
        try:
            with self._engine.fetch(self._box.name, LOGS) as tar:
                for member in tar:
                    total += member.size
                    where = Path(*Path(member.name).parts[1:])  # without the name of the folder itself
                    if where.parts[:1] == ("workers",) and total <= BYTES_MAX:
                        tar.extract(member.replace(name=str(where), deep=False), self._logs, filter="data")
                    elif str(where) == "error.json" and wanted and (file := tar.extractfile(member)) is not None:
                        with Path(wanted).open("wb") as target:
                            shutil.copyfileobj(file, target)
                        left = True
        except (tarfile.TarError, OSError) as error:
            print(f"[holdfast: not all that the replica left could be copied: {error}]", file=sys.stderr)
        if ended.out_of_memory and wanted and not left:
            limit = next((flag.partition("=")[2] for flag in self._box.flags if flag.startswith("--memory=")), "")
            sentence = f"out of memory: the container used more than {limit or 'the machine has'}"
            Path(wanted).write_text(error_file(sentence))

    def _remove_network(self, lock: int) -> None:
        """Remove the job's network if no other replica uses it."""
        if not self._request.own_network:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if said := self._engine.attempt("network", "rm", self._request.network):
            print(f"[holdfast: the network is left behind: {said.splitlines()[-1]}]", file=sys.stderr)


def main(path: str, role: str, number: str, descriptor: str) -> None:
    """Keep the container of one replica of the job in this folder."""
    folder = Path(path)
    with socket.socket(fileno=int(descriptor)) as program:
        try:
            request = read_request(folder)
            code = Replica(folder, request, request.box(role, int(number)), program).run()
        except (HoldfastError, OSError) as error:
            print(f"[holdfast: {error}]", file=sys.stderr, flush=True)
            code = 1
        try:
            program.sendall(json.dumps({"code": code}).encode())
        except OSError:
            pass  # the program was killed


if __name__ == "__main__":
    main(*sys.argv[1:])
