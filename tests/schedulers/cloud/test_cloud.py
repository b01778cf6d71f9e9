"""Requests for job services are what the services' own models allow, and their answers are read right.

None of these is the real service: requests are checked against botocore's models and Google's discovery document.
"""

import importlib.util
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.schedulers import create_scheduler
from holdfast.schedulers.cloud import aws_batch, clients, google, lsf, sagemaker
from holdfast.schedulers.cloud.common import Site, command, safe_name
from holdfast.schedulers.cloud.scheduler import CloudScheduler
from holdfast.specs import AppDef, AppState, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount, macros

SITE = Site("aws_batch", "s", "app-x7k2m")
RESOURCE = Resource(cpu=2, gpu=1, memMB=4096)


def role(name="main", count=1, **more):
    words = {"entrypoint": "python", "args": ["train.py", "--rank", macros.replica_id, "it's"], **more}
    return Role(
        name, words.pop("image", "img:1"), num_replicas=count, resource=words.pop("resource", RESOURCE), **words
    )


def app(*roles):
    return AppDef("app", list(roles) or [role()])


def run_shell(words, env):
    """Run the command of a replica, with `echo` in place of the app's program."""
    line = words[-1].replace("exec python", "exec printf '%s|'")
    base = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", line], env={**base, **env}, capture_output=True, text=True, check=True).stdout


# -- what all share ----------------------------------------------------------------------------------------------------


def test_a_replica_learns_its_number_when_it_runs():
    words = command(
        role(args=["-c", f"exec x --node-rank {macros.replica_id} 'q'"]), SITE, number="$(( $N - 2 ))", first="$F"
    )

    assert run_shell(words, {"N": "5", "F": "host"}) == "-c|exec x --node-rank 3 'q'|"


def test_names_are_short_and_keep_their_end():
    assert safe_name("App_1/x-abcde", 63, lower=True) == "app-1-x-abcde"
    long = safe_name("a" * 100 + "-x7k2m", 63)
    assert len(long) <= 63
    assert long.endswith("-x7k2m")


@pytest.mark.parametrize("render", [aws_batch.render, sagemaker.render, google.render])
def test_retries_one_by_one_are_refused(render):
    one_by_one = role(count=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    cfg = {"queue": "q", "role": "r", "instance_type": "i", "output_path": "s3://o", "project": "p", "insecure": True}
    with pytest.raises(UsageError, match="starts whole jobs again"):
        render(app(one_by_one), cfg, SITE)


@pytest.mark.parametrize("render", [aws_batch.render, sagemaker.render, google.render])
def test_replicas_without_a_secret_must_say_so(render):
    cfg = {"queue": "q", "role": "r", "instance_type": "i", "output_path": "s3://o", "project": "p"}
    with pytest.raises(UsageError, match="insecure=True"):
        render(app(role(count=2)), cfg, SITE)
    assert "HOLDFAST_INSECURE" in json.dumps(render(app(role(count=2)), {**cfg, "insecure": True}, SITE))


@pytest.mark.parametrize("name", ["aws_batch", "aws_sagemaker", "gcp_batch", "lsf"])
def test_each_is_installed_and_explains_its_options(name):
    scheduler = create_scheduler(name, "s")

    assert scheduler.backend == name
    assert all(option.help for _, option in scheduler.run_opts())


# -- AWS ---------------------------------------------------------------------------------------------------------------


def validate(service, operation, request):
    """Check a request against botocore's model of a service."""
    session = pytest.importorskip("botocore.session").get_session()
    from botocore.validate import ParamValidator

    shape = session.get_service_model(service).operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()


MOUNTS = [BindMount("/a", "/b", True), VolumeMount("fs-1", "/c"), DeviceMount("/dev/x", "/dev/y", "rw")]
BATCH = {"queue": "q", "secret": "arn:s", "share_id": "x", "priority": 3, "job_role_arn": "r", "timeout_s": 60}


@pytest.mark.parametrize("roles", [[role()], [role(count=3, max_retries=2), role("reader", mounts=MOUNTS)]])
def test_requests_of_aws_batch_fit_its_model(roles):
    made = aws_batch.render(app(*roles), BATCH, SITE)

    validate("batch", "RegisterJobDefinition", made["register_job_definition"])
    validate("batch", "SubmitJob", made["submit_job"])


def test_a_job_of_several_nodes_has_a_range_for_each_role():
    definition = aws_batch.render(app(role(count=3, max_retries=2), role("b")), BATCH, SITE)["register_job_definition"]
    nodes = definition["nodeProperties"]

    assert [each["targetNodes"] for each in nodes["nodeRangeProperties"]] == ["0:2", "3"]
    assert nodes["numNodes"] == 4
    assert definition["retryStrategy"] == {"attempts": 3}, "max_retries does not count the first start, AWS does"
    second = nodes["nodeRangeProperties"][1]["container"]
    assert run_shell(second["command"], {"AWS_BATCH_JOB_NODE_INDEX": "3"}) == "train.py|--rank|0|it's|"
    assert second["secrets"] == [{"name": "HOLDFAST_SECRET", "valueFrom": "arn:s"}]
    assert not any(each["name"] == "HOLDFAST_SECRET" for each in second["environment"])


@pytest.mark.parametrize(
    ("detail", "wanted"),
    [
        ({"status": "RUNNABLE"}, AppState.PENDING),
        ({"status": "FAILED"}, AppState.FAILED),
        ({"status": "FAILED", "isTerminated": True}, AppState.CANCELLED),
        ({"status": "NEW"}, AppState.UNKNOWN),
    ],
)
def test_states_of_aws_batch_are_read(detail, wanted):
    assert aws_batch.parse({"jobId": "1", "jobName": "n", **detail}).state is wanted


SAGE = {
    "role": "arn:aws:iam::1:role/training",
    "instance_type": "ml.p4d.24xlarge",
    "output_path": "s3://b/o",
    "insecure": True,
}


def test_a_request_of_sagemaker_fits_its_model():
    spot = {"use_spot_instances": True, "checkpoint_s3_uri": "s3://b/c", "subnets": ["a"], "security_group_ids": ["g"]}
    made = sagemaker.render(app(role(count=2, max_retries=1, args=["x" * 700])), {**SAGE, **spot}, SITE)

    validate("sagemaker", "CreateTrainingJob", made)
    words = made["AlgorithmSpecification"]["ContainerArguments"]
    assert max(map(len, words)) <= 256
    assert made["ResourceConfig"]["InstanceCount"] == 2


def test_the_pieces_of_a_line_are_put_together_again():
    line = "printf '%s' 'a  b'" + "; :" * 200 + '; printf "%s" " $((1 + 1))"'
    words = ["sh", "-c", sagemaker.JOIN, "sh", *sagemaker.pieces(line)]

    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "a  b 2"


def test_an_answer_of_sagemaker_is_read():
    made = sagemaker.render(app(role()), SAGE, SITE)
    detail = {
        **made,
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Training",
        "CreationTime": datetime.now(UTC),
    }
    info = sagemaker.parse(detail, {"holdfast-session": "s"})

    assert (info.state, info.session, info.roles[0].name) == (AppState.RUNNING, "s", "main")
    assert sagemaker.parse({**detail, "TrainingJobStatus": "Stopped"}, {}).state is AppState.CANCELLED


@pytest.fixture
def batch(tmp_path):
    """Return a scheduler whose AWS is botocore's own stub: it checks what it gets and what it answers."""
    pytest.importorskip("botocore")
    from botocore.session import get_session
    from botocore.stub import Stubber

    session = get_session()
    session.set_credentials("a", "b")
    made = {name: session.create_client(name, region_name="us-east-1") for name in ("batch", "logs")}
    stubs = {name: Stubber(client) for name, client in made.items()}
    for stub in stubs.values():
        stub.activate()
    yield CloudScheduler("aws_batch", "s", clients.AwsBatch(made.__getitem__), 0.0, tmp_path), stubs
    for stub in stubs.values():
        stub.assert_no_pending_responses()


JOB = {"jobId": "j-1", "jobName": "app", "jobQueue": "q", "status": "RUNNING", "startedAt": 1000, "jobDefinition": "d"}


def test_a_job_of_aws_batch_is_submitted_and_described(batch):
    scheduler, stubs = batch
    stubs["batch"].add_response(
        "register_job_definition", {"jobDefinitionName": "app", "jobDefinitionArn": "arn:d", "revision": 1}
    )
    stubs["batch"].add_response("submit_job", {"jobName": "app", "jobId": "j-1"})
    container = {"image": "img:1", "exitCode": 3, "reason": "oh no"}
    ended = {**JOB, "status": "FAILED", "statusReason": "it failed", "container": container}
    stubs["batch"].add_response("describe_jobs", {"jobs": [ended]})

    assert scheduler.submit(app(), {"queue": "q"}) == "j-1"
    found = scheduler.describe("j-1")
    assert (found.state, found.msg, found.roles_statuses[0].replicas[0].exit_code) == (
        AppState.FAILED,
        "it failed oh no",
        3,
    )


def test_logs_of_aws_batch_are_followed_to_the_end(batch):
    scheduler, stubs = batch
    running = {**JOB, "container": {"image": "i", "logStreamName": "stream"}}
    for status in ("RUNNING", "RUNNING", "RUNNING"):
        stubs["batch"].add_response("describe_jobs", {"jobs": [{**running, "status": status}]})
    event = {"timestamp": 2000, "message": "one\n", "ingestionTime": 2000}
    stubs["logs"].add_response("get_log_events", {"events": [event], "nextForwardToken": "t"})
    for _ in range(2):
        stubs["batch"].add_response("describe_jobs", {"jobs": [{**running, "status": "SUCCEEDED"}]})
    stubs["logs"].add_response("get_log_events", {"events": [], "nextForwardToken": "t"})
    stubs["batch"].add_response("describe_jobs", {"jobs": [{**running, "status": "SUCCEEDED"}]})
    stubs["logs"].add_response("get_log_events", {"events": [], "nextForwardToken": "t"})

    assert list(scheduler.log_iter("j-1", "main", should_tail=True)) == ["one"]


def test_a_job_that_aws_does_not_know_is_none_and_a_refusal_is_told(batch):
    scheduler, stubs = batch
    stubs["batch"].add_response("describe_jobs", {"jobs": []})
    stubs["batch"].add_client_error("describe_jobs", "AccessDenied", "you may not")

    assert scheduler.describe("never-was") is None
    with pytest.raises(UnavailableError, match=r"AWS Batch refused: .*you may not"):
        scheduler.describe("j-1")


# -- Google ------------------------------------------------------------------------------------------------------------


def check_google(schemas, name, data):
    """Check data against a schema of Google's discovery document: unknown fields and wrong types are errors."""
    schema = schemas[name] if isinstance(name, str) else name
    if "$ref" in schema:
        check_google(schemas, schema["$ref"], data)
    elif schema["type"] == "object" and "properties" in schema:
        assert isinstance(data, dict), (schema.get("id"), data)
        for key, value in data.items():
            assert key in schema["properties"], f"{schema.get('id')} has no field {key}"
            check_google(schemas, schema["properties"][key], value)
    elif schema["type"] == "object":
        for value in data.values():
            check_google(schemas, schema["additionalProperties"], value)
    elif schema["type"] == "array":
        for value in data:
            check_google(schemas, schema["items"], value)
    else:
        kinds = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}
        assert isinstance(data, kinds[schema["type"]]), (schema, data)
        assert "enum" not in schema or data in schema["enum"], (schema, data)


def discovery(name):
    spec = importlib.util.find_spec("googleapiclient")
    if spec is None:
        pytest.skip("google-api-python-client is not installed here")
    return json.loads(Path(spec.submodule_search_locations[0], "discovery_cache/documents", name).read_text())


GOOGLE = {"project": "p", "secret": "projects/p/secrets/s/versions/1", "service_account": "a@b", "timeout_s": 60}


def test_a_request_of_google_batch_fits_its_discovery_document():
    made = google.render(app(role(count=2, max_retries=1, mounts=[BindMount("/a", "/b")])), GOOGLE, SITE)
    document = discovery("batch.v1.json")
    jobs = document["resources"]["projects"]["resources"]["locations"]["resources"]["jobs"]["methods"]

    check_google(document["schemas"], "Job", made["body"])
    assert {"parent", "jobId"} <= set(jobs["create"]["parameters"])
    assert {"create", "get", "list", "cancel"} <= set(jobs)
    states = document["schemas"]["JobStatus"]["properties"]["state"]["enum"]
    assert set(states) == set(google.STATES)


def test_a_job_of_google_batch_is_read_again():
    made = google.render(app(role(count=2)), GOOGLE, SITE)
    name = "projects/p/locations/l/jobs/app"
    info = google.parse({**made["body"], "name": name, "status": {"state": "QUEUED"}})

    assert (info.id, info.state, info.session) == ("p:l:app", AppState.PENDING, "s")
    assert (info.roles[0].name, info.roles[0].num_replicas) == ("main", 2)
    assert google.split_id(info.id) == name
    assert google.split_id("x") is None
    container = made["body"]["taskGroups"][0]["taskSpec"]["runnables"][0]["container"]
    assert run_shell(container["commands"], {"BATCH_TASK_INDEX": "1"}) == "train.py|--rank|1|it's|"


def test_gpus_without_a_machine_of_google_are_told():
    with pytest.raises(UsageError, match="machine_type"):
        google.render(app(role(resource=Resource(cpu=1, gpu=3, memMB=1))), {"project": "p"}, SITE)


# -- LSF ---------------------------------------------------------------------------------------------------------------


class Commands:
    """A pretend LSF: remembers what it is asked, and answers as its commands do."""

    def __init__(self):
        self.jobs, self.asked = {}, []

    def __call__(self, words, stdin):
        self.asked.append((words, stdin))
        if words[0] == "bsub":
            self.jobs["77"] = {"STAT": "RUN", "words": words}
            return 0, "Job <77> is submitted to default queue <normal>.\n", ""
        if words[0] == "bkill":
            self.jobs[words[1]] |= {"STAT": "EXIT", "EXIT_REASON": "TERM_OWNER: job killed by owner"}
            return 0, "", ""
        rows = [self._row(each) for each in self.jobs if words[-1] in (each, lsf.FIELDS)]
        rows = rows or [{"ERROR": "Job <1> is not found"}]
        return 0, json.dumps({"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows}), ""

    def _row(self, number):
        job = self.jobs[number]
        after = dict(zip(job["words"], job["words"][1:], strict=False))
        known = {"JOBID": number, "JOB_NAME": after["-J"], "PROJ_NAME": after["-P"], "JOB_DESCRIPTION": after["-Jd"]}
        return {**known, "STAT": job["STAT"], "EXIT_REASON": job.get("EXIT_REASON", "-"), "EXIT_CODE": ""}


def test_a_job_of_lsf_from_its_submission_to_its_end(tmp_path):
    commands = Commands()
    scheduler = CloudScheduler("lsf", "s", clients.Lsf(commands, tmp_path), 0.0, tmp_path)
    assert scheduler.list() == []
    assert commands.asked == [], "a service that is not in use is not asked"
    app_id = scheduler.submit(app(role(count=2)), {"lsf_queue": "gpu"})
    words, script = commands.asked[0]
    (folder,) = (tmp_path / "lsf").iterdir()

    assert app_id == "77"
    assert words[words.index("-n") + 1] == "2"
    assert "span[ptile=1]" in words
    assert "blaunch" in script
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600
    assert scheduler.describe("77").state is AppState.RUNNING
    assert scheduler.describe("78") is None
    (folder / "logs" / "main").mkdir(parents=True)
    (folder / "logs" / "main" / "1.log").write_text("one\ntwo\n")
    assert list(scheduler.log_iter("77", "main", 1)) == ["one", "two"]
    scheduler.cancel("77")
    assert scheduler.describe("77").state is AppState.CANCELLED
    assert [each.app_id for each in scheduler.list()] == ["77"]


def test_a_replica_of_lsf_runs_its_command(tmp_path):
    made = lsf.render(app(role(entrypoint="echo", args=["rank", macros.replica_id])), {}, SITE, str(tmp_path))
    env = {"PATH": "/usr/bin:/bin", "LSF_PM_TASKID": "3", "LSB_HOSTS": "a b c"}
    subprocess.run(["sh", "-c", made["replica"]], env=env, check=True)

    assert (tmp_path / "logs" / "main" / "2.log").read_text() == "rank 2\n"
