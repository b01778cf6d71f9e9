"""From an app to a training job of SageMaker, and from its answers to a status. Pure.

A word of a container's command may have 256 letters there. So the line of shell that every replica runs is cut into
pieces, which a short shell program puts together again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.cloud import common
from holdfast.schedulers.cloud.common import JobInfo, Option, Site
from holdfast.specs.app import AppDef, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.states import AppState

NAME_CHARS_MAX, WORD_CHARS_MAX, WORDS_MAX, VALUE_CHARS_MAX = 63, 256, 100, 512
#: Puts the pieces of a line of shell together, and runs it.
JOIN = 'eval "$(printf %s "$@")"'
#: Where SageMaker tells a container which host it is; hosts are named algo-1, algo-2 and so on.
CONFIG = "/opt/ml/input/config/resourceconfig.json"
STATES = {
    "InProgress": AppState.PENDING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Stopping": AppState.RUNNING,
    "Stopped": AppState.CANCELLED,
}
RUNNING = ("Training", "Uploading", "Stopping", "Restarting", "Interrupted")
OPTIONS = (
    Option("role", str, "ARN of the role that the job has", required=True),
    Option("instance_type", str, "type of instances, as in ml.p4d.24xlarge", required=True),
    Option("output_path", str, "folder in S3 for what the job leaves in /opt/ml/model", required=True),
    Option("volume_size", int, "size of each instance's disk, in GB", 30),
    Option("max_run_s", int, "how long the job may run", 24 * 3600),
    Option("use_spot_instances", bool, "use spot instances", False),
    Option("max_wait_s", int, "how long the job may take with waiting for spot instances"),
    Option("checkpoint_s3_uri", str, "folder in S3 that is kept like /opt/ml/checkpoints"),
    Option("subnets", list[str], "subnets of the instances"),
    Option("security_group_ids", list[str], "security groups of the instances"),
    common.INSECURE,
)


def render(app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
    """Make the request of CreateTrainingJob."""
    common.check(app, "SageMaker", roles_max=1)
    common.check_options(cfg, "SageMaker", OPTIONS)
    role = app.roles[0]
    if role.mounts:
        raise UsageError(f"the role '{role.name}' has mounts, which SageMaker does not know: use its S3 channels")
    more = common.need_secret(
        app, cfg, "SageMaker has no place for one: put it into the image and set HOLDFAST_SECRET_FILE"
    )
    env = {**common.environment(role, site), **more}
    long = [name for name, value in env.items() if len(value) > VALUE_CHARS_MAX]
    if long:
        raise UsageError(f"the variable {long[0]} is longer than the {VALUE_CHARS_MAX} letters that SageMaker takes")
    spot = bool(cfg.get("use_spot_instances"))
    run_s = int(common.number_of(cfg.get("max_run_s"), 24 * 3600))
    wait = {"MaxWaitTimeInSeconds": int(common.number_of(cfg.get("max_wait_s"), run_s))} if spot else {}
    request: dict[str, Any] = {
        "TrainingJobName": common.safe_name(site.app_id, NAME_CHARS_MAX),
        "AlgorithmSpecification": {
            "TrainingImage": common.need_image(role),
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["sh", "-c", JOIN, "sh"],
            "ContainerArguments": pieces(_line(role, site)),
        },
        "RoleArn": str(cfg["role"]),
        "OutputDataConfig": {"S3OutputPath": str(cfg["output_path"])},
        "ResourceConfig": {
            "InstanceType": str(cfg["instance_type"]),
            "InstanceCount": role.num_replicas,
            "VolumeSizeInGB": int(common.number_of(cfg.get("volume_size"), 30)),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": run_s, **wait},
        "Environment": env,
        "EnableManagedSpotTraining": spot,
        "EnableInterContainerTrafficEncryption": role.num_replicas > 1,
        "Tags": [{"Key": key, "Value": value} for key, value in common.tags(app, site).items()],
    }
    if common.retries(app):
        request["RetryStrategy"] = {"MaximumRetryAttempts": common.retries(app)}
    if cfg.get("checkpoint_s3_uri"):
        request["CheckpointConfig"] = {"S3Uri": str(cfg["checkpoint_s3_uri"])}
    subnets, groups = cfg.get("subnets"), cfg.get("security_group_ids")
    if isinstance(subnets, list) and isinstance(groups, list):
        request["VpcConfig"] = {"Subnets": subnets, "SecurityGroupIds": groups}
    return request


def _line(role: Role, site: Site) -> str:
    found = f"""sed -n 's/.*"current_host" *: *"algo-\\([0-9]*\\)".*/\\1/p' {CONFIG}"""
    return common.command(role, site, number=f"$(( $({found}) - 1 ))", first="algo-1")[-1]


def pieces(line: str) -> list[str]:
    """Cut a line into words that SageMaker takes."""
    found = [line[at : at + WORD_CHARS_MAX] for at in range(0, len(line), WORD_CHARS_MAX)]
    if len(found) > WORDS_MAX:
        raise UsageError(f"the command is longer than the {WORDS_MAX * WORD_CHARS_MAX} letters that SageMaker takes")
    return found


def parse(detail: Mapping[str, Any], tags: Mapping[str, str]) -> JobInfo:
    """Read a job out of an answer of DescribeTrainingJob, and its tags."""
    state = STATES.get(str(detail.get("TrainingJobStatus")), AppState.UNKNOWN)
    if state is AppState.PENDING and detail.get("SecondaryStatus") in RUNNING:
        state = AppState.RUNNING
    algorithm, env = detail.get("AlgorithmSpecification") or {}, dict(detail.get("Environment") or {})
    role = Role(
        str(env.get("HOLDFAST_ROLE") or "main"),
        str(algorithm.get("TrainingImage") or ""),
        entrypoint="sh",
        args=["-c", "".join(algorithm.get("ContainerArguments") or ())],
        env=env,
        num_replicas=int((detail.get("ResourceConfig") or {}).get("InstanceCount") or 1),
    )
    changes = detail.get("SecondaryStatusTransitions") or ()
    last = str(changes[-1].get("StatusMessage") or "") if changes else ""
    return JobInfo(
        id=str(detail["TrainingJobName"]),
        name=str(tags.get(common.NAME_TAG) or detail["TrainingJobName"]),
        state=state,
        msg=str(detail.get("FailureReason") or "") or (last if state is AppState.PENDING else ""),
        session=str(tags.get(common.SESSION_TAG) or ""),
        submitted=_seconds(detail.get("CreationTime")),
        started=_seconds(detail.get("TrainingStartTime")),
        ended=_seconds(detail.get("TrainingEndTime")),
        roles=[role],
    )


def _seconds(moment: Any) -> float | None:
    return float(moment.timestamp()) if moment is not None else None
