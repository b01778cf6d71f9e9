"""Errors by their names in 0.1.0, TorchElastic and TorchX; each is the same class as in `holdfast.errors`."""

from __future__ import annotations

import warnings

from holdfast import errors
from holdfast.errors import ComponentNotFoundError as ComponentNotFoundException
from holdfast.errors import ComponentValidationError as ComponentValidationException
from holdfast.errors import ConnectionLostError as ConnectionLost
from holdfast.errors import CorruptShardError as Torn
from holdfast.errors import InvalidRunConfigError as InvalidRunConfigException
from holdfast.errors import LogUnwrittenError as LogEndedUnwritten
from holdfast.errors import MalformedAppHandleError as MalformedAppHandleException
from holdfast.errors import NotRetryableError as NonRetryableException
from holdfast.errors import PluginBrokenError as PluginBroken
from holdfast.errors import RoundOverError as RoundOver
from holdfast.errors import ShardMissingError as Gone
from holdfast.errors import SignalError as SignalException
from holdfast.errors import StopTrainingError as StopException
from holdfast.errors import UnavailableError as Unavailable
from holdfast.errors import UnknownAppError as UnknownAppException
from holdfast.errors import UnknownMessageError as UnknownMessage
from holdfast.errors import UnknownSchedulerError as UnknownSchedulerException

__all__ = [
    "ComponentNotFoundException",
    "ComponentValidationException",
    "ConnectionLost",
    "Gone",
    "InvalidRunConfigException",
    "LogEndedUnwritten",
    "MalformedAppHandleException",
    "NonRetryableException",
    "PluginBroken",
    "RoundOver",
    "SignalException",
    "StopException",
    "Torn",
    "Unavailable",
    "UnknownAppException",
    "UnknownMessage",
    "UnknownSchedulerException",
]


def find(name: str) -> type[errors.HoldfastError]:
    """Return the error that 0.1.0 had under this name in `holdfast.errors`, with a warning that names the new one."""
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.errors' has no attribute {name!r}")
    found: type[errors.HoldfastError] = globals()[name]
    warnings.warn(f"holdfast.errors.{name} is now called {found.__name__}", DeprecationWarning, stacklevel=3)
    return found
