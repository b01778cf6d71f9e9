"""GMAC, the quick code of long frames, from the package `cryptography` where that is installed; see `session`."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from holdfast.errors import FrameError
from holdfast.wire.session import Gmac, MakeGmac

_broken: list[str] = []


def find_gmac() -> MakeGmac | None:
    """Return what makes a GMAC in this process, or None. It is not imported before it is used."""
    return make_gmac if not _broken and _is_installed() else None


@cache
def _is_installed() -> bool:
    return find_spec("cryptography") is not None


def make_gmac(key: bytes) -> Gmac:
    """Return AES-GCM, which is a GMAC where nothing is encrypted."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except Exception as error:
        # This connection ends, and the next one goes without.
        _broken.append(str(error))
        raise FrameError(f"the package cryptography is installed and cannot be imported: {error}") from error
    return AESGCM(key).encrypt
