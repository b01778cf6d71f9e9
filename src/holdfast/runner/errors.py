"""What can go wrong between an app and its job, beyond the errors that every room shares."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class JobTimeoutError(HoldfastError, TimeoutError):
    """A job did not end in time; it goes on."""
