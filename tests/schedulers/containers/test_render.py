"""Which containers an app becomes, and the commands that make them."""

import json

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers.containers.build import find_dockerfile
from holdfast.schedulers.containers.options import check_flags, check_pull, chosen_env
from holdfast.schedulers.containers.render import (
    Build,
    ContainerRequest,
    Site,
    box_name,
    build_words,
    create_words,
    image_tag,
    network_words,
    plan,
    show,
    split_env,
)
from holdfast.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount


def role(name="main", count=1, **more):
    return Role(name, more.pop("image", "img:1"), entrypoint="prog", args=["a b"], num_replicas=count, **more)


def request(*roles, cfg=None, engine="docker", **site):
    made, _ = plan(AppDef("app", list(roles)), cfg or {}, Site(engine, "s", "app-x", "/jobs/app-x", "/py", **site))
    return made


def words(*roles, **more):
    made = request(*roles, **more)
    return create_words(made, made.boxes[0])


def test_every_replica_is_a_container_that_its_labels_name():
    made = request(role(count=2), role("b"))

    assert [box.name for box in made.boxes] == ["app-x-main-0", "app-x-main-1", "app-x-b-0"]
    found = create_words(made, made.boxes[1])
    assert {"--label=holdfast.job=docker://s/app-x", "--label=holdfast.role=main", "--label=holdfast.replica=1"} <= set(
        found
    )
    assert found[-3:] == ["--entrypoint=prog", "img:1", "a b"]


def test_containers_share_a_network_of_their_own_and_know_the_first():
    made = request(role(count=2))

    assert network_words(made) == ["network", "create", "--label=holdfast.job=docker://s/app-x", "holdfast-app-x"]
    assert all("--network=holdfast-app-x" in create_words(made, box) for box in made.boxes)
    assert "--network-alias=app-x-main-1" in create_words(made, made.boxes[1])
    assert {box.env["TORCHX_RANK0_HOST"] for box in made.boxes} == {"app-x-main-0"}
    assert len({box.env["HOLDFAST_LOCAL_RDZV_PORT"] for box in made.boxes}) == 1


def test_the_hosts_network_needs_no_names():
    made = request(role(count=2), cfg={"network": "host"})

    assert not made.own_network
    assert made.boxes[1].env["TORCHX_RANK0_HOST"] == "localhost"
    assert not any("alias" in word or "hostname" in word for word in create_words(made, made.boxes[0]))


def test_values_of_variables_are_on_no_command_line():
    made = request(role(env={"TOKEN": "tok-123", "PATH": "/p"}), cfg={})
    found = create_words(made, made.boxes[0], env_file="/tmp/e")

    assert "--env=TOKEN" in found
    assert "--env-file=/tmp/e" in found
    assert not any("tok-123" in word for word in found)
    assert not any(word.startswith("--env=PATH") for word in found)


def test_variables_that_the_engine_would_heed_go_by_a_file():
    passed, heeded = split_env({"A": "1\n2", "HOME": "/x", "DOCKER_HOST": "d", "https_proxy": "p", "LD_PRELOAD": "l"})

    assert passed == {"A": "1\n2"}
    assert set(heeded) == {"HOME", "DOCKER_HOST", "https_proxy", "LD_PRELOAD"}
    with pytest.raises(UsageError, match="several lines"):
        split_env({"HOME": "a\nb"})


def test_the_images_own_path_stays():
    assert "PATH" not in request(role()).boxes[0].env
    assert request(role(env={"PATH": "/mine"})).boxes[0].env["PATH"] == "/mine"


def test_resources_are_limits_and_shared_memory_follows_them():
    found = words(role(resource=Resource(cpu=2, gpu=0, memMB=512)))

    assert {"--cpus=2", "--memory=512m", "--shm-size=512m"} <= set(found)
    assert "--shm-size=8g" in words(role(), cfg={"shm_size": "8g"})
    assert not any(word.startswith(("--cpus", "--memory", "--shm")) for word in words(role()))


@pytest.mark.parametrize(
    ("engine", "gpus", "wanted"),
    [
        ("docker", ["0", "1", "2"], ['--gpus="device=0,1"']),
        ("docker", None, ["--gpus=2"]),
        ("podman", ["0", "1"], ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]),
        ("podman", None, ["--device=nvidia.com/gpu=all"]),
    ],
)
def test_gpus_are_shared_out_where_they_are_known(engine, gpus, wanted):
    made = request(role(resource=Resource(cpu=1, gpu=2, memMB=1)), engine=engine, gpus=gpus)

    assert [word for word in create_words(made, made.boxes[0]) if "gpu" in word] == wanted
    assert "CUDA_VISIBLE_DEVICES" not in made.boxes[0].env


def test_mounts_of_every_kind_are_made():
    mounts = [BindMount("/a", "/b", True), VolumeMount("v", "/c"), DeviceMount("/dev/x", "/dev/y", "rw")]

    assert [word for word in words(role(mounts=mounts)) if "mount" in word or "device" in word] == [
        "--mount=type=bind,source=/a,target=/b,readonly",
        "--mount=type=volume,source=v,target=/c",
        "--device=/dev/x:/dev/y:rw",
    ]


def test_an_app_without_an_image_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match="names no image: give one with --image"):
        request(role(image=""))
    assert request(role(image=""), cfg={"image": "other"}).boxes[0].image == "other"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["cap-add:IPC_LOCK", "tty-less:"], ["--cap-add=IPC_LOCK", "--tty-less"]),
        (["--ulimit=memlock=-1"], ["--ulimit=memlock=-1"]),
        (None, []),
    ],
)
def test_other_flags_are_passed_on(flags, wanted):
    assert check_flags(flags) == wanted


@pytest.mark.parametrize("flag", ["--name=x", "restart:always", "word", "network:a"])
def test_flags_that_are_ours_are_refused(flag):
    with pytest.raises(UsageError):
        check_flags([flag])


def test_options_give_variables_to_the_app():
    cfg = {"copy_env": ["AWS_*", "B"], "env": {"B": "2", "C": "3"}}

    assert chosen_env(cfg, {"AWS_X": "x", "B": "1", "D": "4"}) == {"AWS_X": "x", "B": "2", "C": "3"}
    with pytest.raises(UsageError, match="missing, always, never"):
        check_pull("sometimes")


def test_the_supervisor_gives_a_container_time_beyond_its_grace():
    made = request(role(max_retries=2, retry_policy=RetryPolicy.REPLICA), cfg={"cancel_grace_s": 5.0})

    assert made.grace_s == 5.0
    assert made.job.cancel_grace_s > 5.0
    assert made.job.role_plans[0].max_retries == 2
    assert made.job.replicas[0].argv[0] == "/py"
    assert made.job.replicas[0].argv[-3:] == ["/jobs/app-x", "main", "0"]
    assert not made.job.replicas[0].env, "the app's variables are for the container alone"


def test_names_fit_into_a_label_of_dns():
    long = box_name("app-x", "a" * 80, 3)

    assert len(long) == 63
    assert long != box_name("app-x", "a" * 80, 4)
    assert box_name("App_X", "role.1", 0) == "app-x-role-1-0"
    assert image_tag("App-X", "r/1") == "holdfast-workspace:app-x-r-1"


def test_a_request_can_be_read_again_and_shown():
    build = Build("t:1", "img:1", {"/code": ""}, ["main"])
    made = request(role(), builds={"main": build})

    assert ContainerRequest.from_json(json.loads(json.dumps(made.to_json())), made.job) == made
    text = show(made, {"/code": (3, 1000)})
    assert "builds t:1 from img:1" in text
    assert "/code (3 files, 1 kB) as /workspace" in text
    assert "$ docker create --name=app-x-main-0" in text
    assert made.boxes[0].image == "t:1"


def test_an_image_is_built_with_the_base_as_an_argument():
    build = Build("t:1", "img:1", {"/code": ""}, ["main"])
    found = build_words(request(role(), builds={"main": build}), build, "/context", "/context/D")

    assert found[0] == "build"
    assert {"--tag=t:1", "--build-arg=IMAGE=img:1", "--file=/context/D"} <= set(found)
    assert found[-1] == "/context"


def test_a_workspace_may_have_a_dockerfile(tmp_path):
    assert find_dockerfile({str(tmp_path): ""}, "") == ""
    (tmp_path / "Dockerfile.torchx").touch()
    assert find_dockerfile({str(tmp_path): ""}, "") == "Dockerfile.torchx"
    (tmp_path / "Dockerfile.holdfast").touch()
    assert find_dockerfile({str(tmp_path): ""}, "") == "Dockerfile.holdfast"
    with pytest.raises(UsageError, match="has no file My"):
        find_dockerfile({str(tmp_path): ""}, "My")
