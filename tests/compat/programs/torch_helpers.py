"""Metrics, events, timers, endpoints and stores: names and values that programs match on."""

import logging
import multiprocessing
import socket
import tempfile
from typing import Any
from unittest import mock

import torch.distributed.elastic.metrics as metrics
from torch.distributed.elastic.events import (
    Event,
    EventSource,
    NodeState,
    RdzvEvent,
    _get_or_create_logger,
    construct_and_record_rdzv_event,
    record,
    record_rdzv_event,
)
from torch.distributed.elastic.events.handlers import _log_handlers, get_logging_handler
from torch.distributed.elastic.metrics.api import MetricData, MetricHandler, _get_metric_name
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
    C10dRendezvousBackend,
    _create_file_store,
    _create_tcp_store,
    create_backend,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler
from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    _parse_rendezvous_config,
    parse_rendezvous_endpoint,
)
from torch.distributed.elastic.timer import TimerRequest
from torch.distributed.elastic.timer.local_timer import LocalTimerServer, MultiprocessingRequestQueue


def raises(kind: type[BaseException], call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        return f"returned {call(*args, **kwargs)!r}"
    except kind:
        return kind.__name__


class Kept(MetricHandler):
    def __init__(self) -> None:
        self.names: list[str] = []

    def emit(self, metric_data: MetricData) -> None:
        self.names.append(f"{metric_data.group_name}/{metric_data.name}")


class Measured:
    @metrics.prof
    def run(self) -> int:
        return 1

    @metrics.prof(group="mine")
    def fail(self) -> None:
        raise ValueError


@metrics.prof
def plain() -> None:
    pass


def show_metrics() -> None:
    kept = Kept()
    metrics.configure(kept)
    metrics.configure(kept, "mine")
    Measured().run()
    print(raises(ValueError, Measured().fail))
    plain()
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "mine")
    metrics.profile("old")(Measured().run)()
    print([name.replace("__main__", "main") for name in kept.names])
    print(_get_metric_name(Measured.run), _get_metric_name(plain).replace("__main__", "main"))
    with mock.patch("torch.distributed.elastic.metrics.api.getStream") as patched:
        metrics.put_metric("c", 3)
        plain()
    print(patched.return_value.add_value.call_count, patched.call_args.args)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def show_events() -> None:
    lines = Lines()
    _log_handlers["dynamic_rendezvous"] = lines
    _log_handlers["mine"] = lines
    event = RdzvEvent("n", "run", "m", "h", 1, NodeState.INIT)
    record_rdzv_event(event)
    print(lines.lines == [event.serialize()])
    construct_and_record_rdzv_event("run", "message", NodeState.RUNNING, name="n", hostname="h", pid=1)
    print(RdzvEvent.deserialize(lines.lines[-1]).message if hasattr(RdzvEvent, "deserialize") else "", len(lines.lines))
    record(Event("hello", EventSource.AGENT, 5), "mine")
    print(lines.lines[-1])
    logger = _get_or_create_logger("mine")
    logger.info("by the logger")
    print(lines.lines[-1], logger.propagate, logger.name, type(get_logging_handler("null")).__name__)


def show_endpoints() -> None:
    for endpoint in ("host", "host:1", "~", "a:b:c", "host:x", "[::1]:5", "host:0", "host:70000"):
        print(endpoint, raises(ValueError, parse_rendezvous_endpoint, endpoint, 7))
    for config in ("a=1", "a=1,b=2", " a = 1 ", "a=1,", "a", "=1", ""):
        print(repr(config), raises(ValueError, _parse_rendezvous_config, config))
    names = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "no-such-host.invalid", socket.gethostname(), "8.8.8.8")
    print([_matches_machine_hostname(name) for name in names])
    for params in (
        RendezvousParameters("static", "host:1", "r", 1, 1),
        RendezvousParameters("static", "host", "r", 1, 1, rank=0),
        RendezvousParameters("static", "", "r", 1, 1, rank=0),
        RendezvousParameters("static", "host:1", "r", 2, 2, rank=1),
    ):
        print(raises(ValueError, create_rdzv_handler, params).split(" ")[0])


def show_stores() -> None:
    with tempfile.TemporaryDirectory() as folder:
        params = RendezvousParameters("c10d", f"{folder}/store", "run", 1, 1, store_type="file")
        store = _create_file_store(params)
        store.set("key", "value")
        print(type(store).__name__, store.get("key"))
        backend, again = create_backend(params)
        print(isinstance(backend, C10dRendezvousBackend), type(again).__name__, backend.name, backend.get_state())
        print(backend.set_state(b"one")[2], backend.get_state()[0])
    params = RendezvousParameters("c10d", "localhost:0", "run", 1, 1, is_host=True)
    store = _create_tcp_store(params)
    print(type(store).__name__, store.port > 0, raises(ValueError, _create_tcp_store, wrong_timeout()))


def wrong_timeout() -> RendezvousParameters:
    return RendezvousParameters("c10d", "localhost:0", "run", 1, 1, read_timeout=0)


class Server(LocalTimerServer):
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        print([(type(each).__name__, each.worker_id, each.scope_id) for each in timer_requests])
        super().register_timers(timer_requests)


def show_timers() -> None:
    requests = multiprocessing.get_context("spawn").Queue()
    queue = MultiprocessingRequestQueue(requests)
    for name in ("a", "b", "c"):
        requests.put(TimerRequest(1, name, 2.0**40))
    while not queue.size():
        pass
    print([each.scope_id for each in queue.get(2, 20)], [each.scope_id for each in queue.get(1, 20)], queue.get(5, 0.1))
    server = Server(multiprocessing.get_context("spawn").Queue(), max_interval=0.01)
    server.register_timers([TimerRequest(1, "x", 2.0**40), TimerRequest(2, "y", 2.0**40)])


if __name__ == "__main__":
    show_metrics()
    show_events()
    show_endpoints()
    show_stores()
    show_timers()
