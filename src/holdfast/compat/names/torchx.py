"""Which of our modules is behind each name of TorchX. Data only. Pure.

Programs also import, and tests also patch, what a module of TorchX has itself imported; these names are listed with
the module that they are of, or where our code looks them up.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.compat.names import Table, View, view

#: The version whose public names are kept.
TORCHX_VERSION = "0.7.0"

_ADAPTERS = "holdfast.compat.torchx"


def _of(module: str, names: str) -> dict[str, str]:
    """Names of one module."""
    return {name: f"{module}:{name}" for name in names.split()}


def _cli(own: str, more: Mapping[str, str] | None = None) -> View:
    """A module of TorchX's command line; its commands are all in one of ours."""
    return View(
        names={
            "SubCommand": f"{_ADAPTERS}.cli.cmd_base:SubCommand",
            **_of(f"{_ADAPTERS}.cli.commands", own),
            **(more or {}),
        }
    )


_RUNNER = _of("holdfast.runner.api", "Runner get_runner")
_SCHEDULERS = _of(f"{_ADAPTERS}.schedulers", "get_default_scheduler_name get_scheduler_factories")
_COLOURS = _of(f"{_ADAPTERS}.cli.colors", "BLUE ENDC GRAY GREEN ORANGE")
_HANDLES = _of("holdfast.specs", "make_app_handle parse_app_handle")
_TYPES = _of(f"{_ADAPTERS}.util.types", "decode decode_optional get_argparse_param_type is_bool none_throws to_dict")
_ENTRY_POINTS = _of(f"{_ADAPTERS}.util.entrypoints", "load_group")
_LINTER = _of(f"{_ADAPTERS}.file_linter", "TorchXArgumentHelpFormatter get_fn_docstring validate")
_FILES = _of(f"{_ADAPTERS}.util.io", "read_conf_file")
_CONFIG = _of(f"{_ADAPTERS}.config", "dump get_config get_configs load_sections")
_TRACKERS = _of("holdfast.runner.trackers", "get_configured_trackers")

_ERRORS = _of(
    "holdfast.compat.errors",
    "InvalidRunConfigException MalformedAppHandleException UnknownAppException UnknownSchedulerException",
)

_SPECS = View(
    ("holdfast.specs",),
    {
        "AWS_NAMED_RESOURCES": "holdfast.specs.named_resources_aws:NAMED_RESOURCES",
        "GENERIC_NAMED_RESOURCES": "holdfast.specs.named_resources_generic:NAMED_RESOURCES",
        **_ERRORS,
        **_of("holdfast.specs.runopts", "get_type_name"),
        **_of(f"{_ADAPTERS}.components", "materialize_appdef"),
        **_ENTRY_POINTS,
        **_TYPES,
    },
)

MODULES: Table = {
    "torchx": View(
        names={"__version__": f"{__name__}:TORCHX_VERSION", "IMAGE": f"{_ADAPTERS}.version:TORCHX_IMAGE"},
        doc="TorchX's names, answered by Holdfast.",
    ),
    "torchx.cli": View(doc="TorchX's command line, answered by Holdfast."),
    "torchx.cli.argparse_util": f"{_ADAPTERS}.cli.argparse_util",
    "torchx.cli.cmd_base": f"{_ADAPTERS}.cli.cmd_base",
    "torchx.cli.cmd_cancel": _cli("CmdCancel", _RUNNER),
    "torchx.cli.cmd_configure": _cli("CmdConfigure", {**_SCHEDULERS, **_CONFIG}),
    "torchx.cli.cmd_describe": _cli("CmdDescribe", {**_RUNNER, **_HANDLES}),
    "torchx.cli.cmd_list": _cli("CmdList HANDLE_HEADER STATUS_HEADER", {**_RUNNER, **_SCHEDULERS}),
    "torchx.cli.cmd_log": _cli(
        "CmdLog ID_FORMAT",
        {
            **_of(f"{_ADAPTERS}.cli.logs", "Runner _prefix_line find_role_replicas get_logs get_runner validate"),
            **_of("holdfast.schedulers", "Stream"),
            **_of("holdfast.specs", "is_started"),
            **_HANDLES,
            **_TYPES,
            **_COLOURS,
        },
    ),
    "torchx.cli.cmd_run": _cli(
        "CmdBuiltins CmdRun",
        {
            **_of("holdfast.cli.run", "Runner get_runner"),
            **_of(f"{_ADAPTERS}.cli.argparse_util", "ArgOnceAction torchxconfig_run"),
            **_of("holdfast.components.finder", "get_builtin_source get_components"),
            **_of("holdfast.compat.errors", "ComponentNotFoundException ComponentValidationException"),
            **_of(f"{_ADAPTERS}.cli.logs", "get_logs"),
            **_SCHEDULERS,
            **_CONFIG,
            **_TYPES,
        },
    ),
    "torchx.cli.cmd_runopts": _cli("CmdRunopts", {**_RUNNER, **_COLOURS}),
    "torchx.cli.cmd_status": _cli("CmdStatus", {**_RUNNER, **_HANDLES}),
    "torchx.cli.cmd_tracker": _cli(
        "CmdTracker", {**_of("holdfast.tracker.api", "TrackerBase build_trackers"), **_TRACKERS}
    ),
    "torchx.cli.colors": f"{_ADAPTERS}.cli.colors",
    "torchx.cli.main": f"{_ADAPTERS}.cli.main",
    "torchx.components": "holdfast.components",
    "torchx.components.structured_arg": f"{_ADAPTERS}.structured_arg",
    "torchx.distributed": View(("holdfast.torch.ranks",), _of(f"{_ADAPTERS}.util.cuda", "has_cuda_devices")),
    "torchx.notebook": f"{_ADAPTERS}.notebook",
    "torchx.runner": View(("holdfast.runner",), _of(f"{_ADAPTERS}.runner", "Runner get_runner")),
    "torchx.runner.api": View(
        ("holdfast.runner.api", "holdfast.runner.trackers"),
        {
            **_of(f"{_ADAPTERS}.runner", "get_component materialize_appdef"),
            **_of("holdfast.schedulers", "ListAppResponse Scheduler SchedulerFactory Stream"),
            **_of("holdfast.specs", "AppStatus NONE"),
            **_of("holdfast.compat.errors", "UnknownAppException UnknownSchedulerException"),
            **_of(
                "holdfast.tracker.api",
                "ENV_TORCHX_JOB_ID ENV_TORCHX_PARENT_RUN_ID ENV_TORCHX_TRACKERS tracker_config_env_var_name",
            ),
            **_of("holdfast.workspace", "WorkspaceMixin"),
            **_of(f"{_ADAPTERS}.runner", "Runner get_runner get_scheduler_factories"),
            **_of(f"{_ADAPTERS}.events", "log_event"),
            **_CONFIG,
            **_TYPES,
        },
    ),
    "torchx.runner.config": f"{_ADAPTERS}.config",
    "torchx.runner.events": view(f"{_ADAPTERS}.events"),
    "torchx.runner.events.api": f"{_ADAPTERS}.events",
    "torchx.runner.events.handlers": f"{_ADAPTERS}.events",
    "torchx.runtime": View(),
    "torchx.runtime.tracking": view("holdfast.tracker.results"),
    "torchx.runtime.tracking.api": "holdfast.tracker.results",
    "torchx.schedulers": view(f"{_ADAPTERS}.schedulers"),
    "torchx.schedulers.api": View(
        ("holdfast.schedulers.api", f"{_ADAPTERS}.lines"),
        {
            **_of(f"{_ADAPTERS}.structured_opts", "StructuredOpts"),
            **_of("holdfast.specs", "AppState NONE Role RoleStatus"),
            **_of("holdfast.workspace", "WorkspaceMixin"),
        },
    ),
    "torchx.schedulers.devices": f"{_ADAPTERS}.devices",
    "torchx.schedulers.docker_scheduler": View(
        (f"{_ADAPTERS}.docker_scheduler",),
        {
            **_of(f"{_ADAPTERS}.lines", "filter_regex split_lines"),
            **_of(f"{_ADAPTERS}.ids", "make_unique"),
            **_of(f"{_ADAPTERS}.devices", "get_device_mounts"),
            **_of("holdfast.schedulers", "DescribeAppResponse ListAppResponse Scheduler Stream"),
            **_of(
                "holdfast.specs",
                "AppDef AppDryRunInfo AppState BindMount DeviceMount ReplicaStatus Role RoleStatus VolumeMount "
                "is_terminal macros runopts",
            ),
        },
    ),
    **{
        f"torchx.schedulers.{module}_scheduler": View(
            names={
                name: f"{_ADAPTERS}.cloud_schedulers:{name}",
                "create_scheduler": f"{_ADAPTERS}.cloud_schedulers:create_{factory}",
                **_of("holdfast.schedulers", "DescribeAppResponse ListAppResponse Scheduler Stream"),
                **_of("holdfast.specs", "AppDef AppDryRunInfo AppState Role macros runopts"),
                **more,
            }
        )
        for module, name, factory, more in (
            (
                "aws_batch",
                "AWSBatchScheduler",
                "aws_batch",
                {"JOB_STATE": "holdfast.schedulers.cloud.aws_batch:STATES"},
            ),
            ("aws_sagemaker", "AWSSageMakerScheduler", "sagemaker", {}),
            ("gcp_batch", "GCPBatchScheduler", "gcp_batch", {}),
            ("lsf", "LsfScheduler", "lsf", {"JOB_STATE": "holdfast.schedulers.cloud.lsf:STATES"}),
            ("ray", "RayScheduler", "ray", _of(f"{_ADAPTERS}.cloud_schedulers", "has_ray")),
        )
    },
    "torchx.schedulers.ids": f"{_ADAPTERS}.ids",
    "torchx.schedulers.kubernetes_scheduler": View(
        (f"{_ADAPTERS}.kubernetes_scheduler",),
        {
            **_of(f"{_ADAPTERS}.lines", "filter_regex split_lines"),
            **_of(f"{_ADAPTERS}.ids", "make_unique"),
            **_of(f"{_ADAPTERS}.util.strings", "normalize_str"),
            **_of("holdfast.schedulers", "DescribeAppResponse ListAppResponse Scheduler Stream"),
            **_of(
                "holdfast.specs",
                "AppDef AppDryRunInfo AppState BindMount DeviceMount ReplicaState ReplicaStatus RetryPolicy Role "
                "RoleStatus VolumeMount macros runopts",
            ),
        },
    ),
    "torchx.schedulers.slurm_scheduler": View(
        (f"{_ADAPTERS}.slurm_scheduler",),
        {
            **_of(f"{_ADAPTERS}.lines", "filter_regex split_lines_iterator"),
            **_of(f"{_ADAPTERS}.local_scheduler", "LogIterator"),
            **_of("holdfast.workspace.dir_workspace", "DirWorkspaceMixin"),
            **_of("holdfast.schedulers", "DescribeAppResponse ListAppResponse Scheduler Stream"),
            **_of("holdfast.specs", "NONE AppDef AppDryRunInfo AppState ReplicaStatus Role RoleStatus macros runopts"),
        },
    ),
    "torchx.schedulers.local_scheduler": View(
        (f"{_ADAPTERS}.local_scheduler",),
        {
            "ENV_CUDA_VISIBLE_DEVICES": "holdfast.schedulers.local.render:GPUS_VARIABLE",
            **_of(f"{_ADAPTERS}.lines", "filter_regex split_lines_iterator"),
            **_of(f"{_ADAPTERS}.ids", "make_unique"),
            **_of("holdfast.compat.errors", "SignalException"),
            **_of("holdfast.schedulers", "DescribeAppResponse ListAppResponse Scheduler Stream"),
            **_of("holdfast.specs", "AppState NONE is_terminal macros"),
            **_TYPES,
        },
    ),
    "torchx.specs": _SPECS,
    "torchx.specs.api": _SPECS,
    "torchx.specs.builders": View(
        (
            f"{_ADAPTERS}.components",
            "holdfast.specs.builders",
            "holdfast.specs.handles",
        ),
        {**_LINTER, **_TYPES},
    ),
    "torchx.specs.file_linter": View((f"{_ADAPTERS}.file_linter",), {**_FILES, **_TYPES}),
    "torchx.specs.finder": View(
        ("holdfast.components.finder", f"{_ADAPTERS}.components"),
        {
            **_of("holdfast.compat.errors", "ComponentNotFoundException ComponentValidationException"),
            **_of("holdfast.specs", "AppDef"),
            **_LINTER,
            **_FILES,
            **_TYPES,
        },
    ),
    "torchx.specs.named_resources_aws": "holdfast.specs.named_resources_aws",
    "torchx.specs.named_resources_generic": "holdfast.specs.named_resources_generic",
    "torchx.specs.serialize": "holdfast.specs.serialize",
    "torchx.tracker": view("holdfast.tracker"),
    "torchx.tracker.api": View(
        ("holdfast.tracker.api",), {**_ENTRY_POINTS, **_of(f"{_ADAPTERS}.util.modules", "load_module")}
    ),
    "torchx.tracker.backend": "holdfast.tracker.backend",
    "torchx.util": f"{_ADAPTERS}.util",
    "torchx.util.colors": f"{_ADAPTERS}.cli.colors",
    "torchx.version": f"{_ADAPTERS}.version",
    "torchx.workspace": view("holdfast.workspace"),
    "torchx.workspace.api": View(
        ("holdfast.workspace.api", "holdfast.workspace.dir_workspace"), _of("holdfast.specs", "AppDef Role runopts")
    ),
    "torchx.workspace.docker_workspace": View(
        (f"{_ADAPTERS}.docker_workspace",),
        {
            **_of("holdfast.specs", "AppDef Role runopts"),
            **_of("holdfast.workspace.api", "WorkspaceMixin"),
            "walk_workspace": "holdfast.workspace:walk_workspace",
        },
    ),
    "torchx.workspace.dir_workspace": View(("holdfast.workspace.dir_workspace",), _of("holdfast.specs", "Role")),
}
