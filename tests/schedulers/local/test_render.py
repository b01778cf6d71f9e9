"""From an app to the local request."""

import pytest

from holdfast.errors import UsageError
from holdfast.filenames import file_name
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.local.render import Surroundings, deal, make_id, render, show
from holdfast.specs import AppDef, BindMount, Resource, RetryPolicy, Role


def around(**changes):
    known = {
        "backend": "local",
        "session": "s",
        "app_id": "app-x",
        "cwds": {"a": "/code", "b": "/b"},
        "log_root": "/logs",
    }
    return Surroundings(**{**known, **changes})


def role(name="a", **changes):
    return Role(name, "image", **{"entrypoint": "prog", **changes})


def test_macros_are_filled_in_for_each_replica():
    args = ["--id", "${replica_id}", "--app=${app_id}", "${img_root}/x", "$${${rank0_env}}:1"]
    request, _ = render(AppDef("app", [role(args=args, num_replicas=2, env={"K": "${replica_id}"})]), {}, around())

    assert [replica.argv for replica in request.replicas] == [
        ["prog", "--id", str(k), "--app=app-x", "/code/x", "${TORCHX_RANK0_HOST}:1"] for k in range(2)
    ]
    assert [replica.env["K"] for replica in request.replicas] == ["0", "1"]
    assert [replica.log_dir for replica in request.replicas] == ["/logs/a/0", "/logs/a/1"]
    assert request.replicas[0].env["TORCHX_RANK0_HOST"] == "localhost"


def test_the_users_environment_wins_over_our_defaults_but_not_over_the_replicas_own():
    env = {"PYTHONUNBUFFERED": "", "PET_LOG_DIR": "/mine", "HOLDFAST_REPLICA_ID": "99"}
    request, _ = render(AppDef("app", [role(env=env)]), {}, around())

    found = request.replicas[0].env
    assert (found["PYTHONUNBUFFERED"], found["PET_LOG_DIR"], found["HOLDFAST_REPLICA_ID"]) == ("", "/mine", "0")


def test_prepend_cwd_goes_before_everything_else_in_path():
    surroundings = around(environ={"PATH": "/usr/bin"}, python_folder="/venv/bin")
    request, _ = render(AppDef("app", [role(), role("b", env={"PATH": "/own"})]), {"prepend_cwd": True}, surroundings)

    assert [each.env["PATH"] for each in request.replicas] == ["/code:/venv/bin:/usr/bin", "/b:/own"]


def test_gpus_are_shared_out_in_order():
    two = Resource(cpu=1, gpu=2, memMB=1)
    app = AppDef("app", [role(resource=two, num_replicas=2), role("b", resource=Resource(cpu=1, gpu=1, memMB=1))])
    request, warnings = render(app, {}, around(gpus=["0", "1", "2", "3", "GPU-5"]))

    assert warnings == []
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in request.replicas] == ["0,1", "2,3", "GPU-5"]
    assert request.replicas[0].gpus == ["0", "1"]


def test_more_gpus_than_there_are_is_warned_of_and_nothing_is_set():
    app = AppDef("app", [role(resource=Resource(cpu=1, gpu=4, memMB=1), num_replicas=2)])
    request, warnings = render(app, {}, around(gpus=["0"]))

    assert len(warnings) == 1
    assert "ask for 8 GPUs and this machine has 1" in warnings[0]
    assert not any("CUDA_VISIBLE_DEVICES" in each.env for each in request.replicas)


def test_gpus_are_left_alone_where_the_user_says_so():
    asks = Resource(cpu=1, gpu=1, memMB=1)
    app = AppDef("app", [role(resource=asks), role("b", resource=asks, env={"CUDA_VISIBLE_DEVICES": "7"})])
    off, _ = render(app, {"auto_set_cuda_visible_devices": False}, around(gpus=["0", "1"]))
    on, _ = render(app, {"auto_set_cuda_visible_devices": True}, around(gpus=["0", "1"]))

    assert "CUDA_VISIBLE_DEVICES" not in off.replicas[0].env
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in on.replicas] == ["0", "7"]


@pytest.mark.parametrize(
    ("wanted", "gpus", "dealt"),
    [
        ([0.5, 0.5, 0.5], "ab", [["a"], ["a"], ["b"]]),
        ([0.5, 1, 0.5], "ab", [["a"], ["b"], ["a"]]),
        ([0.25] * 5, "a", None),
        ([1.5], "ab", [["a", "b"]]),
        ([1.5], "a", None),
        ([1, 1], "a", None),
    ],
)
def test_parts_of_gpus_share_one_where_they_fit(wanted, gpus, dealt):
    assert deal(wanted, gpus) == dealt


def test_a_request_survives_its_record():
    app = AppDef(
        "app",
        [
            role(
                num_replicas=2,
                min_replicas=1,
                max_retries=3,
                retry_policy=RetryPolicy.ROLE,
                mounts=[BindMount("/a", "/b", True)],
                metadata={"x": [1]},
            )
        ],
        {"team": "seals"},
    )
    request, _ = render(app, {"cancel_grace_s": 2.5}, around())

    assert request.needs_port
    assert request.cancel_grace_s == 2.5
    assert LocalRequest.from_json(request.to_json()) == request


def test_a_record_of_a_newer_version_is_refused():
    with pytest.raises(UsageError, match="newer holdfast"):
        LocalRequest.from_json({"version": 99})


def test_the_request_is_shown_as_a_person_would_type_it():
    app = AppDef("app", [role(args=["a b"], num_replicas=2, max_retries=2, min_replicas=1, env={"K": "v w"})])
    text = show(render(app, {}, around())[0])

    assert "$ prog 'a b'" in text
    assert "K='v w'" in text
    assert "role a: up to 2 retries (APPLICATION), goes on with 1 replicas" in text
    assert "HOLDFAST_LOCAL_RDZV_PORT=<a free port>" in text
    assert "replica a/1" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("echo", "echo-x"),
        ("my app/2", "my-app-2-x"),
        ("ümlaut", "mlaut-x"),
        ("--", "app-x"),
        ("n" * 99, "n" * 60 + "-x"),
    ],
)
def test_an_id_is_fit_for_paths_and_handles(name, expected):
    assert make_id(name, "x") == expected


def test_any_name_is_one_visible_folder_and_no_two_names_are_the_same():
    names = ["", ".", "..", "a/b", "a%2Fb", "A", "ü", "../x", " ", "%", ".hidden", "%2E", "a\0"]
    made = [file_name(name) for name in names]

    assert len(set(made)) == len(names)
    assert not [name for name in made if "/" in name or "\0" in name or name.startswith(".")]
