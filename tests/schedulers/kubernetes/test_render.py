"""From an app to objects of Kubernetes."""

import json
import re

import pytest

from holdfast.components.dist import elastic
from holdfast.errors import UsageError
from holdfast.schedulers import cluster
from holdfast.schedulers.kubernetes import names, render
from holdfast.schedulers.kubernetes.options import check_options, toleration
from holdfast.schedulers.kubernetes.pod import merge
from holdfast.schedulers.kubernetes.scheduler import KubernetesScheduler
from holdfast.schedulers.kubernetes.show import show, to_yaml
from holdfast.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount

SECRET = "a-value-that-only-the-app-may-see"
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def role(name="main", **changes):
    known = {"image": "img:1", "entrypoint": "prog", "resource": Resource(2, 0, 1024), "env": {"K": SECRET}}
    return Role(name, **{**known, **changes})


def make(*roles, name="my app", pieces=(), affinity=None, pod_patch=None, **cfg):
    app = AppDef(name, list(roles))
    documents = {key: value for key, value in (("affinity", affinity), ("pod_patch", pod_patch)) if value}
    options = check_options(cfg, "team", documents)
    job_name = names.make_name(app.name, "x7k2m")
    site = cluster.Site("kubernetes", "s", f"team:{job_name}", {each.name: render.WORK_FOLDER for each in roles})
    return render.render(app, cluster.plan(app, {}, site), job_name, options, pieces)


def jobs_of(request):
    return [each for each in request.objects if each["kind"] == "Job"]


def pod_of(request, number=0):
    return jobs_of(request)[number]["spec"]["template"]["spec"]


def test_every_replica_is_a_job_of_one_pod_that_the_service_names():
    request = make(role(num_replicas=2), role("other"))
    service, *jobs = request.objects

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"], "a replica must find the first one before that is ready"
    assert [job["metadata"]["name"] for job in jobs] == [
        f"my-app-x7k2m-{end}" for end in ("main-0", "main-1", "other-0")
    ]
    for job in jobs:
        template = job["spec"]["template"]
        assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (1, 1)
        assert template["spec"]["hostname"] == job["metadata"]["name"]
        assert template["spec"]["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["restartPolicy"] == "Never"


def test_replicas_meet_at_the_name_of_the_first():
    request = make(role(num_replicas=2, args=["${rank0_env}"]))

    env = request.job.replicas[1].env
    assert env["TORCHX_RANK0_HOST"] == "my-app-x7k2m-main-0.my-app-x7k2m"
    assert env["HOLDFAST_LOCAL_RDZV_PORT"].isdecimal()
    assert env["HOLDFAST_JOB_ID"] == "kubernetes://s/team:my-app-x7k2m"


def test_nothing_of_the_app_stands_where_it_can_be_read():
    request = make(role(args=["--token", SECRET]), pieces=[b"code"])

    assert SECRET not in json.dumps(request.objects)
    assert pod_of(request)["containers"][0]["command"][-3:] == ["holdfast.schedulers.kubernetes.node", "main", "0"]
    assert pod_of(request)["automountServiceAccountToken"] is False


def test_code_travels_in_secrets_that_the_pod_mounts():
    pieces = [b"a" * render.CODE_BYTES, b"b"]
    request = make(role(), pieces=pieces)

    assert request.codes == ["my-app-x7k2m-code-0", "my-app-x7k2m-code-1"]
    sources = pod_of(request)["volumes"][0]["projected"]["sources"]
    assert [each["secret"]["name"] for each in sources] == ["my-app-x7k2m", *request.codes]
    made = render.code_secrets(request)
    assert [list(each["data"]) for each in made] == [["code-000"], ["code-001"]]
    with pytest.raises(UsageError, match="holdfastignore"):
        render.code_names("n", render.CODE_BYTES * render.CODES_MAX + 1)


def test_lost_pods_are_not_counted_among_the_failures():
    spec = jobs_of(make(role(max_retries=3, retry_policy=RetryPolicy.REPLICA)))[0]["spec"]

    assert spec["backoffLimit"] == 3
    rules = spec["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore"]
    assert rules[1]["onExitCodes"]["values"] == [143]
    assert jobs_of(make(role()))[0]["spec"]["backoffLimit"] == 0


def test_resources_are_asked_for_and_limited():
    asked = Resource(1.5, 2, 512, devices={"vpc.amazonaws.com/efa": 1})
    found = pod_of(make(role(resource=asked)))["containers"][0]["resources"]
    whole = {"cpu": "1500m", "memory": "512M", "vpc.amazonaws.com/efa": "1", "nvidia.com/gpu": "2"}

    assert found == {"requests": whole, "limits": whole}
    found = pod_of(make(role(resource=asked), limits=False, gpu_resource="amd.com/gpu"))["containers"][0]["resources"]
    assert found["limits"] == {"vpc.amazonaws.com/efa": "1", "amd.com/gpu": "2"}
    assert "resources" not in json.dumps(found)
    assert pod_of(make(role(resource=Resource(-1, -1, -1))))["containers"][0]["resources"] == {}


def test_options_of_the_pod():
    found = pod_of(
        make(
            role(),
            service_account="me",
            priority_class="high",
            node_selector={"pool": "gpu"},
            tolerations=["gpu", "a=b:NoSchedule"],
            image_pull_secrets=["reg"],
            image_pull_policy="Always",
            shm_mb=2048,
            grace_s=45.5,
            spread="required",
            host_network=True,
            lost_after_s=7,
        )
    )

    assert found["serviceAccountName"] == "me"
    assert found["automountServiceAccountToken"]
    assert found["priorityClassName"] == "high"
    assert found["nodeSelector"] == {"pool": "gpu"}
    assert found["tolerations"][:2] == [
        {"key": "gpu", "operator": "Exists"},
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"},
    ]
    assert {each["tolerationSeconds"] for each in found["tolerations"][2:]} == {7}
    assert found["imagePullSecrets"] == [{"name": "reg"}]
    assert found["containers"][0]["imagePullPolicy"] == "Always"
    assert found["volumes"][2] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2048M"}}
    assert found["terminationGracePeriodSeconds"] == 46
    assert "requiredDuringSchedulingIgnoredDuringExecution" in found["affinity"]["podAntiAffinity"]
    assert (found["hostNetwork"], found["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_labels_and_annotations_reach_all_objects():
    request = make(role(), labels={"team": "a"}, annotations={"note": "b"}, queue="q")

    service, job = request.objects
    for meta in (service["metadata"], job["metadata"], job["spec"]["template"]["metadata"]):
        assert meta["labels"]["team"] == "a"
        assert meta["annotations"] == {"note": "b"}
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"


def test_a_patch_changes_anything_of_the_pod():
    patch = {
        "runtimeClassName": "nvidia",
        "containers": [{"name": "main", "securityContext": {"runAsUser": 1000}}, {"name": "side", "image": "s"}],
        "volumes": [{"name": "shm", "emptyDir": None, "hostPath": {"path": "/x"}}],
        "enableServiceLinks": None,
    }
    found = pod_of(make(role(), pod_patch=patch))

    assert found["runtimeClassName"] == "nvidia"
    assert [each["name"] for each in found["containers"]] == ["main", "side"]
    assert found["containers"][0]["image"] == "img:1"
    assert found["containers"][0]["securityContext"] == {"runAsUser": 1000}
    assert found["volumes"][2] == {"name": "shm", "hostPath": {"path": "/x"}}
    assert "enableServiceLinks" not in found
    assert merge([1], [2]) == [2]


def test_mounts():
    mounts = [BindMount("/a", "/b", True), VolumeMount("claim", "/c"), DeviceMount("/dev/x", "/dev/y", "r")]
    found = pod_of(make(role(mounts=mounts)))

    assert found["volumes"][3:] == [
        {"name": "mount-0", "hostPath": {"path": "/a"}},
        {"name": "mount-1", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "mount-2", "hostPath": {"path": "/dev/x"}},
    ]
    assert [(each["mountPath"], each.get("readOnly")) for each in found["containers"][0]["volumeMounts"][3:]] == [
        ("/b", True),
        ("/c", None),
        ("/dev/y", True),
    ]
    assert found["containers"][0]["securityContext"] == {"privileged": True}


def test_agents_are_probed_and_other_programs_are_not():
    agent = elastic(script="train.py", image="img", j="1:2x1").roles[0]
    found = pod_of(make(agent, health_port=9000))["containers"][0]

    assert found["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 9000}
    assert found["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert make(agent).settings == {"health_port": 8090}
    assert "livenessProbe" not in pod_of(make(agent, health_port=0))["containers"][0]
    assert "livenessProbe" not in pod_of(make(role()))["containers"][0]
    own = elastic(script="train.py", image="img", j="1x1", health_port="1234").roles[0]
    assert "livenessProbe" not in pod_of(make(own))["containers"][0]


@pytest.mark.parametrize("text", ["train", "Ünï_code//", "9lives", "", "a" * 200, "x" * 29 + "-" + "y" * 9])
def test_names_are_allowed_whatever_the_app_is_called(text):
    roles = [role(f"{text}{end}" or "r", num_replicas=2) for end in ("", "_", "-")]
    for kind in ("jobs", "jobset", "volcano"):
        request = make(*roles, name=text, kind=kind)
        found = [each["metadata"]["name"] for each in request.objects]
        first = request.job.replicas[0].env["TORCHX_RANK0_HOST"].partition(".")[0]
        for name in [*found, first]:
            assert NAME.fullmatch(name), name
            assert len(name) <= 63
        for label in request.labels.values():
            assert LABEL.fullmatch(label), label
            assert len(label) <= 63
        assert len(set(found)) == len(found)


def test_a_jobset_starts_all_again():
    app = [role(num_replicas=2, max_retries=2), role("b", max_retries=1, retry_policy=RetryPolicy.REPLICA)]
    (found,) = make(*app, kind="jobset", queue="q").objects

    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert found["spec"]["failurePolicy"] == {"maxRestarts": 2}
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    entries = found["spec"]["replicatedJobs"]
    assert [(each["name"], each["replicas"]) for each in entries] == [("main-0", 1), ("main-1", 1), ("b-0", 1)]
    assert [each["template"]["spec"]["backoffLimit"] for each in entries] == [0, 0, 1]
    assert "hostname" not in entries[0]["template"]["spec"]["template"]["spec"], "JobSet gives pods their names"
    env = make(*app, kind="jobset").job.replicas[0].env
    assert env["TORCHX_RANK0_HOST"] == "my-app-x7k2m-main-0-0-0.my-app-x7k2m"


def test_a_volcano_job_is_a_gang():
    (found,) = make(role(num_replicas=3, min_replicas=2, max_retries=1), kind="volcano", queue="q").objects

    assert found["apiVersion"] == "batch.volcano.sh/v1alpha1"
    assert found["spec"]["minAvailable"] == 2
    assert found["spec"]["queue"] == "q"
    assert found["spec"]["schedulerName"] == "volcano"
    assert {"event": "PodFailed", "action": "RestartJob"} in found["spec"]["tasks"][0]["policies"]
    assert [each["name"] for each in found["spec"]["tasks"]] == ["main-0", "main-1", "main-2"]


@pytest.mark.parametrize(
    ("roles", "cfg", "match"),
    [
        ([role(num_replicas=2, max_retries=1)], {}, "dist.elastic"),
        ([role(), role("b", max_retries=1, retry_policy=RetryPolicy.ROLE)], {}, "retry policy ROLE"),
        ([role(image="")], {}, "names no image"),
        ([role(image="/some/folder")], {}, "names no image"),
        ([role(num_replicas=2)], {"queue": "q"}, "kind=jobset"),
        ([role()], {"grace_s": 0.0}, "grace_s"),
        ([role()], {"tolerations": ["a:Never"]}, "NoSchedule"),
        ([role()], {"kind": "swarm"}, "kind=swarm"),
        ([], {}, "no roles"),
    ],
)
def test_what_would_not_run_as_promised_is_refused(roles, cfg, match):
    with pytest.raises(UsageError, match=match):
        make(*roles, **cfg)


def test_a_replica_alone_may_be_tried_again_whatever_the_policy_says():
    assert jobs_of(make(role(max_retries=2)))[0]["spec"]["backoffLimit"] == 2


def test_tolerations():
    assert toleration("*") == {"operator": "Exists"}
    assert toleration("spot:NoExecute") == {"key": "spot", "operator": "Exists", "effect": "NoExecute"}


def test_a_dry_run_is_yaml_that_says_what_it_means(tmp_path):
    yaml = pytest.importorskip("yaml")
    request = make(
        role(num_replicas=2, args=["a: b", "#c", "d\ne: f"]),
        annotations={"on": "yes", "n": "1.0", "e": "", "t": "a\nb"},
    )
    documents = list(yaml.safe_load_all(show(request)))

    assert documents == request.objects
    assert "$ prog 'a: b' '#c' 'd\n# e: f'" in show(request)
    assert yaml.safe_load(to_yaml({"a": [], "b": {}, "c": [[1], {"d": None}]})) == {
        "a": [],
        "b": {},
        "c": [[1], {"d": None}],
    }


def test_a_dry_run_needs_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')")
    (tmp_path / "patch.json").write_text('{"runtimeClassName": "nvidia"}')
    scheduler = KubernetesScheduler("s", tmp_path / "home")
    app = AppDef("a", [role(workspace=str(tmp_path / "code"))])
    cfg = {"pod_patch": str(tmp_path / "patch.json"), "affinity": '{"nodeAffinity": {"x": 1}}'}
    request = scheduler.submit_dryrun(app, cfg).request

    assert request.namespace == "default"
    assert len(request.pieces) == 1
    assert request.job.replicas[0].cwd == f"{render.JOB_FOLDER}/workspace/main"
    assert pod_of(request)["runtimeClassName"] == "nvidia"
    assert set(pod_of(request)["affinity"]) == {"podAntiAffinity", "nodeAffinity"}
    pytest.importorskip("yaml")
    assert pod_of(scheduler.submit_dryrun(app, {"pod_patch": "a: 1\nb: c\n"}).request)["b"] == "c"
    with pytest.raises(UsageError, match="neither an object nor a file"):
        scheduler.submit_dryrun(app, {"pod_patch": "/no/such"})
