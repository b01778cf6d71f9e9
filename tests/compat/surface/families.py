"""Whose names are compared, and which of them count. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Family:
    """One package of others: the modules that are walked, and the private names that programs import all the same."""

    title: str
    package: str
    roots: tuple[str, ...]
    #: Modules that are not walked, by the beginning of their names.
    skip: tuple[str, ...] = ()
    #: Names that count though nothing else says so, private ones most of all: `module.name` or `module.Class.name`.
    private: tuple[str, ...] = ()
    #: Names that are not compared, because their values depend on the machine.
    left_out: tuple[str, ...] = ()


FAMILIES = {
    "torch": Family(
        title="TorchElastic",
        package="torch",
        roots=(
            "torch.distributed.elastic",
            "torch.distributed.run",
            "torch.distributed.launch",
            "torch.distributed.launcher",
            "torch.distributed.argparse_util",
        ),
        skip=("torch.distributed.elastic.rendezvous._etcd_stub",),
        private=(
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._start_workers",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._stop_workers",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._monitor_workers",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._shutdown",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._rendezvous",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._assign_worker_ranks",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._initialize_workers",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._restart_workers",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._invoke_run",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._exit_barrier",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._record_worker_events",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._record_metrics",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._record_flakiness_metric",
            "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._construct_event",
            "torch.distributed.elastic.agent.server.api._RoleInstanceInfo",
            "torch.distributed.elastic.agent.server.api._get_fq_hostname",
            "torch.distributed.elastic.events.handlers._log_handlers",
            "torch.distributed.elastic.multiprocessing.api.PContext._start",
            "torch.distributed.elastic.multiprocessing.api.PContext._poll",
            "torch.distributed.elastic.multiprocessing.api.PContext._close",
            "torch.distributed.elastic.multiprocessing.redirects.redirect_stderr",
            "torch.distributed.elastic.multiprocessing.redirects.redirect_stdout",
            "torch.distributed.elastic.rendezvous.utils._parse_rendezvous_config",
            "torch.distributed.elastic.rendezvous.utils._matches_machine_hostname",
            "torch.distributed.elastic.rendezvous.utils._delay",
            "torch.distributed.elastic.rendezvous.utils._PeriodicTimer",
            "torch.distributed.elastic.timer.api.TimerServer._reap_worker",
            "torch.distributed.elastic.events._get_or_create_logger",
            "torch.distributed.elastic.metrics.api._get_metric_name",
            "torch.distributed.elastic.multiprocessing.api._get_default_signal",
            "torch.distributed.elastic.multiprocessing.api._get_kill_signal",
            "torch.distributed.elastic.multiprocessing.api._terminate_process_handler",
            "torch.distributed.elastic.multiprocessing.api._validate_full_rank",
            "torch.distributed.elastic.multiprocessing.api._wrap",
            "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend._create_file_store",
            "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend._create_tcp_store",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._BackendRendezvousStateHolder",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._DistributedRendezvousOpExecutor",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._NodeDesc",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._NodeDescGenerator",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousCloseOp",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousContext",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousExitOp",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousJoinOp",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousKeepAliveOp",
            "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousState",
            "torch.distributed.launcher.api._get_addr_and_port",
            "torch.distributed.launcher.api._get_entrypoint_name",
            "torch.distributed.run._get_logs_specs_class",
        ),
    ),
    "torchx": Family(
        title="TorchX",
        package="torchx",
        roots=("torchx",),
        # Its own tests and examples, and what needs packages that few have: kfp, mlflow, sagemaker, ray.
        skip=(
            "torchx.components.integration_tests",
            "torchx.examples",
            "torchx.pipelines",
            "torchx.schedulers.aws_sagemaker_scheduler",
            "torchx.schedulers.ray",
            "torchx.schedulers.test",
            "torchx.specs.test",
            "torchx.test",
            "torchx.tracker.mlflow",
        ),
        private=(
            "torchx.cli.cmd_log._prefix_line",
            "torchx.components.dist._TORCH_DEBUG_FLAGS",
            "torchx.components.dist._args_join",
            "torchx.components.dist._noquote",
            "torchx.runner.api.Runner._scheduler",
            "torchx.runner.api.Runner._scheduler_app_id",
            "torchx.schedulers.api.Scheduler._cancel_existing",
            "torchx.schedulers.api.Scheduler._run_opts",
            "torchx.schedulers.api.Scheduler._submit_dryrun",
            "torchx.schedulers.api.Scheduler._validate",
            "torchx.schedulers.local_scheduler.LocalScheduler._to_popen_request",
            "torchx.schedulers.local_scheduler._LocalAppDef",
            "torchx.schedulers.local_scheduler._LocalReplica",
            "torchx.schedulers.local_scheduler._join_PATH",
            "torchx.specs._named_resource_factories",
            "torchx.specs.finder._Component",
        ),
        left_out=("torchx.runner.config.DEFAULT_CONFIG_DIRS",),
    ),
}


def table_path(family: str) -> Path:
    """Where the surface of a family is kept."""
    return HERE / f"{family}.json"


def reasons_path(family: str) -> Path:
    """Where it is said why some of it is absent or different with us."""
    return HERE / f"{family}.toml"
