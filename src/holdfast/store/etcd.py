"""Shared keys in etcd, with the methods that TorchElastic's store over etcd has.

For rendezvous backends of plugins; our own runs keep their keys with the coordinator, which pushes. Here a wait polls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.errors import StoreTimeoutError
from holdfast.quantities import to_seconds
from holdfast.store.api import TIMEOUT_S, to_bytes

if TYPE_CHECKING:
    from holdfast.rendezvous.etcd_gateway import Gateway

LOOK_S = 0.1


class EtcdStore:
    """Keys below a prefix; reading one that is not there yet waits for it."""

    def __init__(self, etcd_client: Gateway, etcd_store_prefix: str, timeout: timedelta | None = None) -> None:
        self.client = etcd_client
        self.prefix = etcd_store_prefix if etcd_store_prefix.endswith("/") else f"{etcd_store_prefix}/"
        self.timeout = timeout if timeout is not None else timedelta(seconds=TIMEOUT_S)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Wait this long for keys from now on."""
        self.timeout = timedelta(seconds=to_seconds(timeout))

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key, whatever it was before."""
        self.client.write(self.prefix + key, to_bytes(value))

    def get(self, key: str, timeout: timedelta | float | None = None) -> bytes:
        """Return a key's value once it is there."""
        return self._wait_for([key], timeout)[0]

    def multi_get(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> list[bytes]:
        """Return the values of several keys once all are there."""
        return self._wait_for(keys, timeout)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several keys, one after the other."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, num: int) -> int:
        """Add to a number that begins with 0; returns the sum."""
        while True:
            found = self.client.read(self.prefix + key)
            value, revision = found if found is not None else (b"0", 0)
            total = int(value) + num
            if self.client.write_if(self.prefix + key, str(total).encode(), revision) is not None:
                return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key that has the expected value, or that is missing while none is expected; return its value then."""
        while True:
            found = self.client.read(self.prefix + key)
            value, revision = found if found is not None else (b"", 0)
            if value != to_bytes(expected):
                return value or to_bytes(expected)
            if self.client.write_if(self.prefix + key, to_bytes(desired), revision) is not None:
                return to_bytes(desired)

    def wait(self, keys: Sequence[str], override_timeout: timedelta | float | None = None) -> None:
        """Return once all keys are there."""
        self._wait_for(keys, override_timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return all(self.client.read(self.prefix + key) is not None for key in keys)

    def _wait_for(self, keys: Sequence[str], timeout: timedelta | float | None) -> list[bytes]:
        timeout_s = to_seconds(self.timeout if timeout is None else timeout)
        until = time.monotonic() + timeout_s
        values: list[bytes] = []
        while len(values) < len(keys):
            found = self.client.read(self.prefix + keys[len(values)])
            if found is not None:
                values.append(found[0])
            elif time.monotonic() >= until:
                raise StoreTimeoutError(f"the key '{keys[len(values)]}' was not set within {timeout_s:g} s")
            else:
                time.sleep(LOOK_S)
        return values
