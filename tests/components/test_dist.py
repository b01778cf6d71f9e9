"""The distributed components: what they ask for, and that it runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.launch import command as launch
from holdfast.components.arguments import materialize_appdef
from holdfast.components.dist import ddp, elastic, parse_size, spmd
from holdfast.errors import UsageError
from holdfast.launcher.options import JOB_OPTIONS
from holdfast.specs import AppDef, BindMount, RetryPolicy, Role, macros, resource
from tests.processes import free_port

SCRIPT = """
import os, sys
keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS")
print(*(os.environ[key] for key in keys), *sys.argv[1:], flush=True)
"""


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", (1, 1, 4)), ("2x4", (2, 2, 4)), ("1:4x8", (1, 4, 8)), ("1x1", (1, 1, 1)), (" 2x4 ", (2, 2, 4))],
)
def test_a_size_is_nodes_and_workers(text: str, size: tuple[int, int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "2x", "x4", "a", "1:x4", "1:2", "-1x2", "2X4", "2x4x8", "1.5x2"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"-j '.*' must be \[\[MIN:\]NODES x\]WORKERS, as in 4, 2x4 or 1:4x8"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0x4", "2x0", "3:2x4", "0:2x4"])
def test_a_size_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must have 1 <= MIN <= NODES and at least one worker"):
        parse_size(text)


def words(role: Role) -> list[str]:
    """Return what the agent is called with, once macros and the shell have done their part."""
    filled = macros.Values("/", "app-1", "0", "RANK0").apply(role)
    if filled.entrypoint == "python":
        return filled.args
    assert (filled.entrypoint, filled.args[0]) == ("sh", "-c")
    first, python, *rest = shlex.split(filled.args[1])
    assert (first, python) == ("exec", "python")
    return rest


def flags(role: Role) -> dict[str, object]:
    """Return what `holdfast launch` makes of the command, defaults left out."""
    module, name, verb, *rest = words(role)
    assert (module, name, verb) == ("-m", "holdfast", "launch")
    context = launch.make_context("launch", list(rest))
    defaults = launch.make_context("launch", ["x"]).params
    return {key: value for key, value in context.params.items() if value != defaults[key]}


def test_a_single_node_needs_no_meeting_point() -> None:
    app = materialize_appdef(ddp, ["--script", "/code/train.py", "-j", "4", "--", "--lr", "a b"])

    (role,) = app.roles
    assert (app.name, role.name, role.num_replicas, role.min_replicas, role.entrypoint) == (
        "train",
        "train",
        1,
        None,
        "python",
    )
    assert flags(role) == {
        "nnodes": "1",
        "nproc_per_node": "4",
        "rdzv_id": "app-1",
        "rdzv_endpoint": "localhost:0",
        "rdzv_backend": "c10d",
        "role": "",
        "tee": "3",
        "script": "/code/train.py",
        "script_args": ("--lr", "a b"),
    }


def test_several_nodes_meet_at_the_first_replica() -> None:
    role = ddp("--lr", "$HOME 'x'", m="pkg.train", j="2:4x8", max_restarts=5, rdzv_port=1234).roles[0]

    assert (role.name, role.num_replicas, role.min_replicas) == ("train", 4, 2)
    assert role.port_map == {"c10d": 1234}
    assert flags(role) == {
        "nnodes": "2:4",
        "nproc_per_node": "8",
        "rdzv_id": "app-1",
        "rdzv_endpoint": "${RANK0:=localhost}:1234",
        "rdzv_backend": "c10d",
        "node_rank": 0,
        "role": "",
        "tee": "3",
        "max_restarts": 5,
        "module": True,
        "script": "pkg.train",
        "script_args": ("--lr", "$HOME 'x'"),
    }


def test_a_fixed_number_of_nodes_has_no_smaller_size() -> None:
    role = ddp(script="x.py", j="2x4").roles[0]

    assert (role.num_replicas, role.min_replicas) == (2, None)


def test_the_defaults_are_those_of_torchx() -> None:
    role = ddp(script="x.py").roles[0]

    assert role.resource == resource(cpu=2, gpu=0, memMB=1024)
    assert (role.image, role.max_retries, role.retry_policy) == ("", 0, RetryPolicy.APPLICATION)
    assert role.env == {"TORCHX_TRACKING_EXPERIMENT_NAME": "default-experiment"}
    assert role.port_map == {"c10d": 29500}
    assert flags(role)["nproc_per_node"] == "2"


def test_what_is_asked_for_reaches_the_role() -> None:
    app = materialize_appdef(
        ddp,
        shlex.split(
            "--script x.py -h gpu.large --env A=1,B=2 --env C=3 --max_retries 4 --image img:1 --metadata a=b "
            "--mounts type=bind,src=/a,dst=/b,readonly --debug --tee 1 --rdzv_conf join_timeout=900"
        ),
    )

    (role,) = app.roles
    assert app.metadata == {"a": "b"}
    assert role.resource == resource(h="gpu.large")
    assert {"A": "1", "B": "2", "C": "3"}.items() <= role.env.items()
    assert (role.env["TORCH_DISTRIBUTED_DEBUG"], role.env["CUDA_LAUNCH_BLOCKING"]) == ("DETAIL", "1")
    assert (role.max_retries, role.image) == (4, "img:1")
    assert role.mounts == [BindMount("/a", "/b", read_only=True)]
    assert (flags(role)["tee"], flags(role)["rdzv_conf"]) == ("1", "join_timeout=900")


@pytest.mark.parametrize(
    ("name", "app", "experiment"),
    [
        ("/", "train", "default-experiment"),
        ("run", "run", "default-experiment"),
        ("exp/run", "run", "exp"),
        ("exp/", "train", "exp"),
        ("/run", "run", "default-experiment"),
    ],
)
def test_a_name_may_hold_an_experiment(name: str, app: str, experiment: str) -> None:
    made = ddp(script="train.py", name=name)

    assert made.name == app
    assert made.roles[0].env.get("TORCHX_TRACKING_EXPERIMENT_NAME") == experiment


@pytest.mark.parametrize("component", [ddp, spmd, elastic])
def test_a_script_or_a_module_is_needed_and_not_both(component: Callable[..., object]) -> None:
    for given in ({}, {"script": "x.py", "m": "x"}):
        with pytest.raises(UsageError, match="give either --script"):
            component(**given)


@pytest.mark.parametrize(
    ("j", "h", "nnodes", "workers"),
    [
        ("1", "gpu.medium", "1", "2"),
        ("2", "gpu.xlarge", "2", "8"),
        ("1:4", "gpu.large", "1:4", "4"),
        ("1x1", "gpu.large", "1", "1"),
        ("1:2x3", "gpu.large", "1:2", "3"),
        ("2x3", "cpu.large", "2", "3"),
    ],
)
def test_spmd_takes_the_workers_from_the_gpus(j: str, h: str, nnodes: str, workers: str) -> None:
    role = spmd("a", script="x.py", j=j, h=h).roles[0]

    given = {"nproc_per_node": "1", **flags(role)}
    assert (given["nnodes"], given["nproc_per_node"]) == (nnodes, workers)
    assert role.resource == resource(h=h)


def test_spmd_without_gpus_needs_a_number_of_workers() -> None:
    with pytest.raises(UsageError, match=r"-j '2' says no number of workers and cpu.large has no GPUs; write -j 2x1"):
        spmd(script="x.py", j="2", h="cpu.large")
    with pytest.raises(UsageError, match=r"-j 'two' must be \[MIN:\]NODES or"):
        spmd(script="x.py", j="two")


def test_elastic_hands_everything_to_the_agent() -> None:
    app = materialize_appdef(
        elastic,
        shlex.split(
            "--script x.py -j 2:4x8 --spares 1 --lease 3s --last_call 10s --join_timeout 20m --admit restart "
            "--restart_backoff 1s:60s --progress_after 5m --reset_restarts --crash_loop 3 --half_finished_after 60s "
            "--shutdown_timeout 5 --preload torch --event_log_handler console --log_size_limit 10M --max_retries 7 "
            "--numa_binding node -- --lr 1"
        ),
    )

    (role,) = app.roles
    assert (role.num_replicas, role.min_replicas, role.max_retries) == (5, 2, 7)
    assert role.retry_policy is RetryPolicy.REPLICA
    given = flags(role)
    assert given["script_args"] == ("--lr", "1")
    assert (
        given
        | {
            "spares": 1,
            "lease": "3s",
            "last_call": "10s",
            "join_timeout": "20m",
            "admit": "restart",
            "restart_backoff": "1s:60s",
            "progress_after": "5m",
            "reset_restarts": True,
            "crash_loop": 3,
            "half_finished_after": "60s",
            "shutdown_timeout": 5.0,
            "preload": "torch",
            "log_size_limit": "10M",
            "max_restarts": 3,
            "numa_binding": "node",
            "rdzv_backend": "holdfast",
        }
        == given
    )


def test_what_is_not_asked_for_is_left_to_the_agent() -> None:
    plain = flags(elastic(script="x.py").roles[0])

    assert set(plain) == {
        "nnodes", "nproc_per_node", "rdzv_id", "rdzv_endpoint", "rdzv_backend", "role", "tee", "max_restarts", "script",
    }  # fmt: skip


EXAMPLES: dict[type, object] = {str: "x", int: 7, float: 7.5, bool: True, tuple: "x"}


@pytest.mark.parametrize("component", [ddp, spmd, elastic])
def test_every_flag_that_a_job_takes_reaches_the_agent(component: Callable[..., AppDef]) -> None:
    options = {name: option for name, option in JOB_OPTIONS.items() if name not in ("module", "nnodes")}
    values = {name: (option.values or (EXAMPLES[option.type],))[0] for name, option in options.items()}
    given = flags(component(script="x.py", **values).roles[0])

    for name, option in options.items():
        expected = ("x",) if option.repeats else values[name]
        assert given[name] == expected, name


@pytest.mark.parametrize("component", [ddp, spmd, elastic])
def test_every_flag_that_a_job_takes_can_be_typed(component: Callable[..., AppDef]) -> None:
    typed = ["--script", "x.py", "--hang", "auto", "--vault", "--max-restarts", "2", "--crash_loop=3", "--", "--lr"]
    given = flags(materialize_appdef(component, typed).roles[0])

    assert (given["hang"], given["vault"], given["max_restarts"], given["crash_loop"]) == ("auto", True, 2, 3)
    assert given["script_args"] == ("--lr",)


def test_a_flag_that_there_is_not_is_refused() -> None:
    for name in ("bogus", "standalone", "rdzv_id", "module"):
        with pytest.raises(TypeError, match=f"unexpected argument '{name}'"):
            ddp(script="x.py", **{name: "x"})


def test_nodes_and_workers_may_be_given_as_a_launch_takes_them() -> None:
    role = ddp(script="x.py", nnodes="2:4", nproc_per_node="gpu", spares=1).roles[0]

    assert (role.num_replicas, role.min_replicas) == (5, 2)
    assert (flags(role)["nnodes"], flags(role)["nproc_per_node"]) == ("2:4", "gpu")
    with pytest.raises(UsageError, match="--nnodes '4:2' must be a number or MIN:MAX"):
        ddp(script="x.py", nnodes="4:2")


def test_a_variable_of_the_job_wins_over_a_components_default_and_not_over_what_was_given() -> None:
    env = {"PET_TEE": "0", "PET_MAX_RESTARTS": "2"}

    assert not {"tee", "max_restarts"} & set(flags(elastic(script="x.py", env=env).roles[0]))
    assert flags(elastic(script="x.py", env=env, tee=1, max_restarts=5).roles[0])["tee"] == "1"
    assert "max_restarts" not in flags(ddp(script="x.py").roles[0])


@pytest.mark.parametrize("args", [("--", "--x"), ("--",), ("a", "--"), ("--x", "5")])
def test_arguments_reach_the_script_as_they_are(args: tuple[str, ...]) -> None:
    assert flags(ddp(*args, script="x.py").roles[0]).get("script_args", ()) == args
    assert flags(ddp(*args, m="x").roles[0]).get("script_args", ()) == args


# -- for real ----------------------------------------------------------------------------------------------------------


def test_ddp_runs_the_script_on_every_worker(tmp_path: Path, run: Callable[..., str]) -> None:
    script = tmp_path / "my script.py"
    script.write_text(SCRIPT)

    out = run(ddp("--msg", "a 'b' \"c\"", script=str(script), j="1x2", max_restarts=2).roles[0])

    assert sorted(out.splitlines()) == [
        "[0]:0 2 0 0 app-1 2 --msg a 'b' \"c\"",
        "[1]:1 2 1 0 app-1 2 --msg a 'b' \"c\"",
    ]


def test_nodes_of_ddp_find_each_other_and_replica_0_is_node_0(tmp_path: Path, run: Callable[..., str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    role = ddp("it's", "$HOME", "${app_id}", script=str(script), j="2x1").roles[0]

    out = run(role, HOLDFAST_LOCAL_RDZV_PORT=str(free_port()))

    assert out.splitlines() == ["[0]:0 2 0 0 app-1 0 it's $HOME app-1", "[0]:1 2 0 1 app-1 0 it's $HOME app-1"]


def test_restarts_reach_the_agent(tmp_path: Path, run: Callable[..., str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n")

    run(ddp(script=str(script), j="1x1", max_restarts=1).roles[0])


def test_the_static_backend_needs_no_meeting_place_for_one_node(tmp_path: Path, run: Callable[..., str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')\n")

    assert "done" in run(ddp(script=str(script), j="1x1", rdzv_backend="static").roles[0])


def test_elastic_runs(tmp_path: Path, run: Callable[..., str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')\n")

    out = run(elastic(script=str(script), j="1x2", lease="4s", crash_loop=3, restart_backoff="1s").roles[0])

    assert out.count("done") == 2
