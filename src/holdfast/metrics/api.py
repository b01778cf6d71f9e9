"""The API for programs: streams to add values to, handlers that take them, and `configure`, which connects the two.

Where values go is decided in two places. The *program* calls `configure`, for one group or for all. The *launch* has
`--metrics` or `HOLDFAST_METRICS`, which a worker reads when it adds its first value. The program's choice for a group
comes first. `_routes` holds both choices and is replaced as a whole, so a stream knows by one comparison whether the
handler that it remembers is still the right one.

A program's handler is called on the thread that adds the value. Its first exception is reported and none of them
reaches the caller: metrics must never disturb training.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from holdfast.sinks import Guarded

P = ParamSpec("P")
R = TypeVar("R")

#: The group of the platform's own metrics.
PLATFORM_GROUP = "torchelastic"


class MetricData(NamedTuple):
    """One value: when it was added (seconds since 1970), to which group, under which name."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricHandler(ABC):
    """Takes the values of the groups that it is configured for.

    A handler may also have `flush()`, to send what it has gathered, and `close()`; both are called only if the handler
    was chosen by name, never if a program configured it.
    """

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one value."""


class NullMetricHandler(MetricHandler):
    """Drops every value."""

    def emit(self, metric_data: MetricData) -> None:
        """Do nothing."""


class ConsoleMetricHandler(MetricHandler):
    """Prints every value to standard output as `[timestamp][group]: name=value`."""

    def emit(self, metric_data: MetricData) -> None:
        timestamp, group, name, value = metric_data
        sys.stdout.write(f"[{timestamp}][{group}]: {name}={value}\n")
        sys.stdout.flush()


#: The first torchelastic's spelling.
ConsoleMetricsHandler = ConsoleMetricHandler


class MetricsConfig:
    """Parameters for `initialize_metrics`: `sinks` names the sinks as `--metrics` does."""

    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params: dict[str, str] = params or {}


class MetricStream:
    """Adds values to one group; every later `configure` takes effect.

    A stream that was given a handler always uses that one.
    """

    __slots__ = ("_own", "_route", "group_name")

    def __init__(self, group_name: str, handler: MetricHandler | None = None) -> None:
        self.group_name = group_name
        self._own = None if handler is None else _guarded(handler)
        self._route: tuple[_Routes | None, _Emit | None] = (None, None)

    def add_value(self, metric_name: str, metric_value: float) -> None:
        """Add one value, stamped with the time."""
        routes, emit = self._route
        if routes is not _routes:
            emit = self._find_emit()
        if emit is not None:
            emit(MetricData(time.time(), self.group_name, metric_name, metric_value))

    def _find_emit(self) -> _Emit | None:
        routes = _routes
        emit = self._own or routes.emit_for(self.group_name)
        self._route = (routes, emit)
        return emit


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Send the values of `group`, or of every group without a handler, to `handler`."""
    global _routes
    guarded = _guarded(handler)
    with _changing:
        if group is None:
            _routes = _Routes(_routes.groups, guarded, _routes.launch)
        else:
            _routes = _Routes({**_routes.groups, group: guarded}, _routes.default, _routes.launch)


def getStream(group: str) -> MetricStream:
    """Return a stream that adds values to `group`."""
    return MetricStream(group)


def put_metric(metric_name: str, metric_value: float, metric_group: str = PLATFORM_GROUP) -> None:
    """Add one value to a group."""
    getStream(metric_group).add_value(metric_name, metric_value)


def publish_metric(metric_group: str, metric_name: str, metric_value: float) -> None:
    """Add one value to a group; deprecated, `put_metric` does the same."""
    warnings.warn("publish_metric is deprecated; use put_metric", FutureWarning, stacklevel=2)
    put_metric(metric_name, metric_value, metric_group)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since a moment that `time.time()` gave."""
    return int((time.time() - start_time_in_seconds) * 1000)


@overload
def prof(fn: Callable[P, R], group: str = ...) -> Callable[P, R]: ...
@overload
def prof(fn: None = None, group: str = ...) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def prof(fn: Callable[P, R] | None = None, group: str = PLATFORM_GROUP) -> Any:
    """Measure every call of a function: `<name>.success` or `<name>.failure`, and `<name>.duration.ms`.

    Used bare (`@prof`) or with a group (`@prof(group="my_app")`). The name is the qualified one of a method and
    `<module>.<function>` of a plain function.
    """
    if fn is None:
        return lambda function: _measured(function, _metric_name(function), group)
    return _measured(fn, _metric_name(fn), group)


def profile(group: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Measure every call of a function under its bare name; deprecated, use `prof`."""
    warnings.warn("profile is deprecated; use prof", FutureWarning, stacklevel=2)
    return lambda function: _measured(function, function.__name__, group or PLATFORM_GROUP)


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Choose sinks in a launcher of your own: those of `cfg.params["sinks"]`, else of `HOLDFAST_METRICS`."""
    sinks = cfg.params.get("sinks", "") if cfg is not None else ""
    sinks = sinks or os.environ.get("HOLDFAST_METRICS", "")
    if sinks:
        from holdfast.metrics.chosen import configure_from

        configure_from([sinks])


# -- measuring calls -----------------------------------------------------------------------------------------


def _metric_name(fn: Callable[..., Any]) -> str:
    qualified = fn.__qualname__
    if "." in qualified or not fn.__module__:
        return qualified
    return f"{fn.__module__.rpartition('.')[2]}.{qualified}"


def _measured(function: Callable[P, R], name: str, group: str) -> Callable[P, R]:
    @wraps(function)
    def measured(*args: P.args, **kwargs: P.kwargs) -> R:
        start = time.monotonic()
        outcome = "failure"
        try:
            result = function(*args, **kwargs)
            outcome = "success"
            return result
        finally:
            put_metric(f"{name}.{outcome}", 1, group)
            put_metric(f"{name}.duration.ms", int((time.monotonic() - start) * 1000), group)

    return measured


# -- who gets what -------------------------------------------------------------------------------------------

_Emit = Callable[[MetricData], None]


class _Routes:
    """Which handler gets the values of which group; never changed, only replaced."""

    __slots__ = ("default", "groups", "launch")

    def __init__(
        self, groups: dict[str, Guarded[MetricData]], default: Guarded[MetricData] | None, launch: Launch | None
    ) -> None:
        self.groups = groups
        self.default = default
        #: The sinks of the launch; None until the environment was read.
        self.launch = launch

    def emit_for(self, group: str) -> _Emit | None:
        """Return what takes the values of a group, or None if they are dropped."""
        own = self.groups.get(group, self.default)
        if own is not None:
            return None if type(own.handler) is NullMetricHandler else own
        if self.launch is None:
            return _emit_first
        handler = self.launch.handler_for(group)
        return None if handler is None or type(handler) is NullMetricHandler else handler.emit


_changing = threading.RLock()
_routes = _Routes({}, None, None)


def _guarded(handler: MetricHandler) -> Guarded[MetricData]:
    """Return the guard of a handler; each handler has one, so that it is reported once for all its groups."""
    from holdfast.sinks import Guarded  # a program that configures nothing does not need it

    known = (*_routes.groups.values(), _routes.default)
    found = (guard for guard in known if guard is not None and guard.handler is handler)
    return next(found, None) or Guarded("metric handler", handler, handler.emit)


class Launch(Protocol):
    """The sinks of a launch, such as `holdfast.metrics.chosen.Metrics`."""

    def handler_for(self, group: str) -> MetricHandler | None:
        """Return the handler of a group's values, or None if there is none."""


class _NoSinks:
    def handler_for(self, group: str) -> None:
        """Return None."""


#: A launch without sinks.
NO_SINKS: Launch = _NoSinks()


def install(launch: Launch | None) -> None:
    """Use the sinks of a launch for groups that the program did not configure; None: read the environment again."""
    global _routes
    with _changing:
        _routes = _Routes(_routes.groups, _routes.default, launch)


def installed() -> Launch | None:
    """Return the sinks of the launch, or None if the environment was not read yet."""
    return _routes.launch


def _emit_first(data: MetricData) -> None:
    """Take the first value: read which sinks the launch chose for this process, and pass the value on."""
    trouble = ""
    with _changing:
        if _routes.launch is None:
            launch: Launch | None = None
            if "HOLDFAST_METRICS" in os.environ:
                try:
                    from holdfast.metrics.chosen import chosen_for_worker

                    launch = chosen_for_worker()
                except Exception as error:  # noqa: BLE001 - any error: training goes on
                    trouble = f"HOLDFAST_METRICS cannot be read, so no metrics are kept: {error}"
            install(launch or NO_SINKS)
    if trouble:
        _warn(trouble)  # after the routes are set, because a listener may add values too
    emit = _routes.emit_for(data.group_name)
    if emit is not None:
        emit(data)


def _warn(sentence: str) -> None:
    from holdfast.facts import facts

    facts.warn("metrics_trouble", sentence)


def _forget_launch() -> None:
    """In a forked child, forget the parent's sinks; the environment is read again with the next value."""
    global _changing
    _changing = threading.RLock()
    install(None)


os.register_at_fork(after_in_child=_forget_launch)
