"""Which of our modules is behind each name of TorchElastic. Data only. Pure."""

from __future__ import annotations

from holdfast.compat.names import Table, View, view

_ELASTIC = "torch.distributed.elastic"
_ADAPTERS = "holdfast.compat.elastic"
_LOGGER = f"{_ADAPTERS}.logging"
_SIGNAL = "holdfast.compat.errors:SignalException"
_UTILS = f"{_ADAPTERS}.utils"
_PROCESSES = f"{_ADAPTERS}.processes"
_MEETING = (
    "holdfast.rendezvous",
    f"{_ADAPTERS}.dynamic",
    "holdfast.events",
    f"{_ADAPTERS}.rendezvous_utils",
)

#: Packages are views, so that no module of ours gets a child of theirs as an attribute.
MODULES: Table = {
    _ELASTIC: View(doc="TorchElastic's names, answered by Holdfast."),
    # -- agent
    f"{_ELASTIC}.agent": View(),
    f"{_ELASTIC}.agent.server": view("holdfast.agent"),
    f"{_ELASTIC}.agent.server.api": view(
        "holdfast.agent.api",
        f"{_ADAPTERS}.agent",
        f"{_ADAPTERS}.classic_rounds",
        "holdfast.events",
        "holdfast.metrics",
        _LOGGER,
        _RoleInstanceInfo=f"{_ADAPTERS}.classic_rounds:RoleInstanceInfo",
        _get_fq_hostname="socket:getfqdn",
        RendezvousGracefulExitError="holdfast.rendezvous:RendezvousGracefulExitError",
        SignalException=_SIGNAL,
    ),
    f"{_ELASTIC}.agent.server.local_elastic_agent": view(
        f"{_ADAPTERS}.agent",
        "holdfast.agent.local",
        "holdfast.agent",
        _PROCESSES,
        "holdfast.health",
        "holdfast.metrics",
        _LOGGER,
        _UTILS,
        SignalException=_SIGNAL,
        TORCHELASTIC_HEALTH_CHECK_PORT="holdfast.health:PORT_VARIABLE",
    ),
    f"{_ELASTIC}.agent.server.health_check_server": view("holdfast.health.server", _LOGGER),
    # -- rendezvous
    f"{_ELASTIC}.rendezvous": view("holdfast.rendezvous"),
    f"{_ELASTIC}.rendezvous.api": view(
        "holdfast.rendezvous.api", "holdfast.rendezvous.registry", "holdfast.rendezvous", "holdfast.wire.ports"
    ),
    f"{_ELASTIC}.rendezvous.registry": view(
        "holdfast.rendezvous.registry", "holdfast.rendezvous", f"{_ADAPTERS}.dynamic"
    ),
    f"{_ELASTIC}.rendezvous.dynamic_rendezvous": view(f"{_ADAPTERS}.dynamic", *_MEETING),
    f"{_ELASTIC}.rendezvous.c10d_rendezvous_backend": view(
        f"{_ADAPTERS}.c10d", f"{_ADAPTERS}.store_backend", *_MEETING
    ),
    f"{_ELASTIC}.rendezvous.static_tcp_rendezvous": view(
        "holdfast.rendezvous.static",
        *_MEETING,
        StaticTCPRendezvous=f"{_ADAPTERS}.rendezvous_utils:StaticTCPRendezvous",
        create_rdzv_handler=f"{_ADAPTERS}.rendezvous_utils:create_static_handler",
    ),
    f"{_ELASTIC}.rendezvous.etcd_rendezvous": view(
        "holdfast.rendezvous.etcd",
        "holdfast.store.etcd",
        *_MEETING,
        create_rdzv_handler="holdfast.rendezvous.etcd:create_handler",
    ),
    f"{_ELASTIC}.rendezvous.etcd_rendezvous_backend": view(f"{_ADAPTERS}.etcd_backend", *_MEETING),
    f"{_ELASTIC}.rendezvous.etcd_server": view(
        f"{_ADAPTERS}.etcd_server", find_free_port="holdfast.wire.ports:get_socket_with_port"
    ),
    f"{_ELASTIC}.rendezvous.etcd_store": "holdfast.store.etcd",
    f"{_ELASTIC}.rendezvous.utils": f"{_ADAPTERS}.rendezvous_utils",
    # -- what is told
    f"{_ELASTIC}.metrics": view("holdfast.metrics"),
    f"{_ELASTIC}.metrics.api": view("holdfast.metrics.api", _get_metric_name="holdfast.metrics.api:_metric_name"),
    f"{_ELASTIC}.events": view(
        "holdfast.events", _LOGGER, _get_or_create_logger=f"{_ADAPTERS}.event_handlers:_get_or_create_logger"
    ),
    f"{_ELASTIC}.events.api": "holdfast.events.api",
    f"{_ELASTIC}.events.handlers": f"{_ADAPTERS}.event_handlers",
    # -- timers
    f"{_ELASTIC}.timer": view("holdfast.timer"),
    f"{_ELASTIC}.timer.api": view("holdfast.timer.api", "holdfast.timer.requests"),
    f"{_ELASTIC}.timer.local_timer": view("holdfast.timer.local_timer", "holdfast.timer"),
    f"{_ELASTIC}.timer.file_based_local_timer": view(
        "holdfast.timer.file_client",
        "holdfast.timer.file_server",
        "holdfast.timer.requests",
        "holdfast.timer",
        f"{_ADAPTERS}.debug_info",
    ),
    f"{_ELASTIC}.timer.debug_info_logging": f"{_ADAPTERS}.debug_info",
    # -- processes
    f"{_ELASTIC}.multiprocessing": view(_PROCESSES, "holdfast.failures", _LOGGER),
    f"{_ELASTIC}.multiprocessing.api": _PROCESSES,
    f"{_ELASTIC}.multiprocessing.errors": view(
        "holdfast.failures", "holdfast.failures.handler", "holdfast.failures.process", _LOGGER
    ),
    f"{_ELASTIC}.multiprocessing.errors.error_handler": "holdfast.failures.handler",
    f"{_ELASTIC}.multiprocessing.errors.handlers": "holdfast.failures.handler",
    f"{_ELASTIC}.multiprocessing.redirects": f"{_ADAPTERS}.redirects",
    f"{_ELASTIC}.multiprocessing.subprocess_handler": view(f"{_ADAPTERS}.subprocess_handler"),
    f"{_ELASTIC}.multiprocessing.subprocess_handler.handlers": f"{_ADAPTERS}.subprocess_handler",
    f"{_ELASTIC}.multiprocessing.subprocess_handler.subprocess_handler": f"{_ADAPTERS}.subprocess_handler",
    f"{_ELASTIC}.multiprocessing.tail_log": f"{_ADAPTERS}.tail_log",
    f"{_ELASTIC}.control_plane": f"{_ADAPTERS}.control_plane",
    # -- helpers
    f"{_ELASTIC}.utils": view(_UTILS),
    f"{_ELASTIC}.utils.api": _UTILS,
    f"{_ELASTIC}.utils.data": view("holdfast.torch.data"),
    f"{_ELASTIC}.utils.data.cycling_iterator": "holdfast.torch.data",
    f"{_ELASTIC}.utils.data.elastic_distributed_sampler": "holdfast.torch.data",
    f"{_ELASTIC}.utils.distributed": view(
        "holdfast.wire.ports",
        "holdfast.store.agree",
        _LOGGER,
        create_c10d_store=f"{_ADAPTERS}.c10d:create_c10d_store",
    ),
    f"{_ELASTIC}.utils.log_level": _LOGGER,
    f"{_ELASTIC}.utils.logging": _LOGGER,
    f"{_ELASTIC}.utils.process_state": _UTILS,
    f"{_ELASTIC}.utils.store": "holdfast.store.agree",
    # -- launching
    "torch.distributed.launcher": view("holdfast.launcher"),
    "torch.distributed.launcher.api": view(
        "holdfast.launcher.api",
        "holdfast.health",
        _LOGGER,
        f"{_ADAPTERS}.rendezvous_utils",
        f"{_ADAPTERS}.launch_helpers",
        LocalElasticAgent=f"{_ADAPTERS}.agent:LocalElasticAgent",
        TORCHELASTIC_HEALTH_CHECK_PORT="holdfast.health:PORT_VARIABLE",
        SignalException=_SIGNAL,
    ),
    "torch.distributed.run": f"{_ADAPTERS}.run",
    "torch.distributed.launch": f"{_ADAPTERS}.launch",
    "torch.distributed.argparse_util": f"{_ADAPTERS}.argparse_util",
}
