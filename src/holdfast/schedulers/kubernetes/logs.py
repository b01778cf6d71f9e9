"""The lines of a replica, over all the pods that it has had and that are still there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.errors import UnavailableError
from holdfast.schedulers.kubernetes.client import KubernetesClient
from holdfast.schedulers.kubernetes.names import CONTAINER
from holdfast.schedulers.kubernetes.parse import seconds
from holdfast.schedulers.local.logs import Wanted

#: How long to wait before a log that broke off, or a pod that has not begun, is looked at again.
LOOK_S = 0.3

Pod = Mapping[str, Any]


class PodLog:
    """One pod's log, read as far as it goes, again and again; no line comes twice."""

    def __init__(self, client: KubernetesClient, namespace: str, pod: str) -> None:
        self._client = client
        self._namespace = namespace
        self._pod = pod
        #: The time of the last line, as it was written, and how many lines had it.
        self._last = ""
        self._same = 0

    def read(self, *, follow: bool) -> Iterator[tuple[float, str]]:
        """Yield the lines that have not come yet; with `follow` also those to come, as long as the connection holds."""
        before, to_skip = self._last, self._same
        # The server takes whole seconds only, so some lines come again.
        since = f"{before[:19]}Z" if before else ""
        with self._client.log(self._namespace, self._pod, follow=follow, since=since, container=CONTAINER) as lines:
            for line in lines:
                stamp, _, text = line.decode("utf-8", "backslashreplace").partition(" ")
                at = seconds(stamp)
                if at is None:
                    continue  # what the runtime itself says, as when the log is gone
                if before and _key(stamp) < _key(before):
                    continue
                if stamp == before and to_skip:
                    to_skip -= 1
                    continue
                self._same = self._same + 1 if stamp == self._last else 1
                self._last = stamp
                yield at, text.removesuffix("\r")


def follow(
    wanted: Wanted,
    pods: Callable[[], list[Pod]],
    open_log: Callable[[str], PodLog],
    ended: Callable[[], bool] | None,
) -> Iterator[tuple[float, str]]:
    """Yield the wanted lines of a replica.

    `pods` returns its pods, the oldest first. With `ended`, which says whether the replica can write no more, it goes
    on until then. The order matters: what is read after the end has been seen is all there will be.
    """
    logs: dict[str, PodLog] = {}
    over: set[str] = set()
    while True:
        is_over = ended is None or ended() or time.time() > wanted.until
        for pod in pods():
            name = str(pod["metadata"]["name"])
            phase = pod["status"].get("phase")
            if name in over or phase == "Pending":
                continue
            log = logs.setdefault(name, open_log(name))
            try:
                for at, text in log.read(follow=not is_over and phase == "Running"):
                    if wanted.takes(at, "h", text):
                        yield at, text
                    if at > wanted.until:
                        break
            except UnavailableError as error:  # its node does not answer; the other pods can be read
                if is_over:
                    yield time.time(), f"[holdfast: the log of {name} cannot be read: {error}]"
                continue
            if phase in ("Succeeded", "Failed"):
                over.add(name)
        if is_over:
            return
        time.sleep(LOOK_S)


def _key(stamp: str) -> tuple[str, str]:
    """Order times as they are written: fractions have as many digits as they need."""
    head, _, fraction = stamp.rstrip("Z").partition(".")
    return head, fraction.ljust(9, "0")
