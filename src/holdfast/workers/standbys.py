"""Hot standbys, the agent's side: forks of the template that wait to take the place of workers that end.

A worker that is forked from the template still has to open its GPU, and to load NCCL's kernels onto it. A standby has
done that already, where there is one standby for each GPU in use: it then serves the local ranks of its own GPU only,
so that no worker keeps memory on another's. With fewer standbys than GPUs none opens one.

When a standby is taken, another is prepared behind it a moment later. See `template_standby.py` for the standby itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from holdfast.errors import UnavailableError
from holdfast.facts import Fact, facts
from holdfast.workers.child import Child
from holdfast.workers.family import family
from holdfast.workers.linux import inherit_limits, memory_bytes
from holdfast.workers.variables import is_nccl_variable
from holdfast.workers.warm import Order, Template

#: What a standby may have opened before it becomes a worker.
Opened = Literal["gpu", "nccl"]
#: How long after one was taken the next is prepared: the worker that it became has the processors and the GPU to
#: itself until it steps.
REFILL_AFTER_S = 3.0
#: How many may be lost one after the other before no more are prepared.
LOST_MAX = 3
END_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class _Standby:
    """One process that waits; `report` is what it has said of itself once it was ready."""

    index: int
    child: Child
    seat: socket.socket
    report: dict[str, Any] = field(default_factory=dict)

    def serves(self, local_rank: int, env: Mapping[str, str]) -> bool:
        """Whether it may become the worker of this local rank with this environment."""
        if not self.report:
            return False
        device = self.report["device"]
        if device is None:
            return True
        fixed = {
            name for name in {*env, *os.environ} if name.startswith(("CUDA_", "CUBLAS_")) or is_nccl_variable(name)
        }
        same = all(env.get(name) == os.environ.get(name) for name in fixed)
        return same and local_rank % self.report["devices"] == device


class Standbys:
    """So many processes that wait, forked from one template."""

    def __init__(self, template: Template, number: int, *, workers: int, may_open: frozenset[Opened]) -> None:
        self._template = template
        self._number = number
        self._wanted = {"standbys": number, "workers": workers, "may_open": sorted(may_open)}
        self._waiting: dict[int, _Standby] = {}  # by index
        self._fill_at: float | None = 0.0
        self._lost = 0

    # -- preparing -----------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Take in what standbys say, and prepare those that are missing when it is time."""
        for standby in list(self._waiting.values()):
            if _readable(standby.seat):
                self._hear(standby, now)
        if self._fill_at is not None and now >= self._fill_at:
            self._fill_at = None
            self._fill(now)

    def _fill(self, now: float) -> None:
        for index in range(self._number):
            if index in self._waiting or self._lost >= LOST_MAX:
                continue
            try:
                self._waiting[index] = self._begin(index)
            except UnavailableError as error:
                self._note_lost(index, str(error), now)
                return

    def _begin(self, index: int) -> _Standby:
        pid, seat = self._template.fork_standby({**self._wanted, "index": index})
        child = self._template.child(pid)
        family().add(pid)
        return _Standby(index, child, seat)

    def _hear(self, standby: _Standby, now: float) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = standby.seat.recv(ANSWER_BYTES_MAX)
        report: dict[str, Any] = json.loads(data) if data else {"problem": "it died"}
        if report["problem"]:
            self._end(self._waiting.pop(standby.index))
            self._note_lost(standby.index, report["problem"], now)
            return
        standby.report = report
        self._lost = 0
        host = memory_bytes(standby.child.pid)
        costs = [f"{host / 1e6:.0f} MB of memory"] if host is not None else []
        if report["device"] is not None:
            size = "memory" if report["gpu_bytes"] is None else f"{report['gpu_bytes'] / 1e6:.0f} MB"
            costs.append(f"{size} on GPU {report['device']}")
        sentence = f"standby {standby.index + 1} of {self._number} is ready after {report['seconds']:.1f} s"
        told = f"{sentence}; it holds {' and '.join(costs)}" if costs else sentence
        facts.publish(
            Fact(
                "standby_ready", told, {**report, "index": standby.index, "pid": standby.child.pid, "host_bytes": host}
            )
        )

    def _note_lost(self, index: int, why: str, now: float) -> None:
        self._lost += 1
        sentence = f"standby {index + 1} of {self._number} was lost: {why}"
        if self._lost >= LOST_MAX:
            sentence += "; no more are prepared, and workers are forked from the template"
        else:
            self._fill_at = now + REFILL_AFTER_S
        facts.warn("standby_lost", sentence)

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, local_rank: int, order: Order, now: float) -> Child | None:
        """Have a standby become this worker; None where none can, and another way must be found."""
        for standby in list(self._waiting.values()):
            if not standby.serves(local_rank, order.env):
                continue
            del self._waiting[standby.index]
            self._fill_at = now + REFILL_AFTER_S
            if self._hand_over(standby, order):
                family().remove(standby.child.pid)  # it is a worker now, and its gang's own
                standby.seat.close()
                return standby.child
            self._end(standby)
        return None

    def _hand_over(self, standby: _Standby, order: Order) -> bool:
        content = os.memfd_create("holdfast-order", os.MFD_CLOEXEC)
        try:
            inherit_limits(standby.child.pid)  # they may have changed since it was forked
            with open(content, "wb", closefd=False) as file:
                file.write(json.dumps(asdict(order)).encode())
            os.lseek(content, 0, os.SEEK_SET)
            socket.send_fds(standby.seat, [b"become"], [content, *order.fds])
        except OSError:
            return False  # it has died
        finally:
            os.close(content)
        return True

    # -- waiting, and the end ------------------------------------------------------------------------------------------

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when `look` has something to do."""
        return tuple(standby.seat.fileno() for standby in self._waiting.values())

    def wakeup(self) -> float | None:
        """Say when to look in any case."""
        return self._fill_at

    def close(self) -> None:
        """End those that wait."""
        for standby in self._waiting.values():
            self._end(standby)
        self._waiting = {}
        self._fill_at = None

    def _end(self, standby: _Standby) -> None:
        standby.seat.close()
        with contextlib.suppress(OSError):
            os.kill(standby.child.pid, signal.SIGKILL)
        poll = select.poll()
        poll.register(standby.child.fd, select.POLLIN)
        poll.poll(END_TIMEOUT_S * 1000)
        standby.child.release()
        family().remove(standby.child.pid)


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
