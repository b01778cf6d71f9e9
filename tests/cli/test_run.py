"""`holdfast run` with real local jobs."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import FOREVER, Invoke
from tests.processes import finish

Start = Callable[..., "subprocess.Popen[str]"]

COMPONENTS = """
from holdfast.specs import AppDef, Role

def many(count: int = 2, code: int = 0) -> AppDef:
    '''Runs several replicas.

    Args:
        count: how many
    '''
    script = f"echo I am $HOLDFAST_REPLICA_ID; [ $HOLDFAST_REPLICA_ID = 0 ] || exit {code}"
    return AppDef("many", [Role("worker", "", entrypoint="sh", args=["-c", script], num_replicas=count)])
"""


@pytest.fixture
def components(environ: dict[str, str]) -> str:
    Path("mine.py").write_text(COMPONENTS)
    return "mine.py"


def test_a_job_runs_to_its_end_and_its_handle_alone_is_on_stdout(invoke: Invoke) -> None:
    said = invoke("run", "utils.echo", "--msg", "hello there")

    assert said.code == 0
    assert re.fullmatch(r"local://holdfast/echo-\w+\n", said.out)
    assert "echo/0 hello there\n" in said.err
    assert "succeeded" in said.err


def test_a_failure_names_the_replica_its_exit_code_and_where_the_logs_are(invoke: Invoke, components: str) -> None:
    said = invoke("run", f"{components}:many", "--count=3", "--code", "7")
    handle = said.out.strip()

    assert said.code == 7
    assert re.search(rf"^holdfast: {handle} failed (first )?in worker/[12] \(exit code 7\)$", said.err, re.MULTILINE)
    folder = re.search(rf"^holdfast: logs: (.*) \(`holdfast log {handle}` shows them\)$", said.err, re.MULTILINE)
    assert folder is not None
    assert (Path(folder[1]) / "worker" / "1" / "stdout.log").exists()


def test_output_that_was_shown_is_not_repeated_at_the_end(invoke: Invoke, components: str) -> None:
    ran = invoke("run", f"{components}:many", "--count=2", "--code", "7")
    waited = invoke("wait", ran.out.strip())

    assert ran.err.count("I am 1") == 1
    assert "  | I am 1\n" in waited.err, "who only waits has seen no output"


def test_the_exception_of_a_worker_is_told_once_and_then_named(invoke: Invoke) -> None:
    Path("train.py").write_text("def load():\n    raise ValueError('no data')\nload()\n")
    ran = invoke("run", "-j", "1x1", "train.py")
    waited = invoke("wait", ran.out.strip())

    assert ran.err.count("Traceback") == 1
    # Where it takes long to stop the worker, the launcher says meanwhile that it does, and why.
    told = [line for line in ran.err.splitlines() if "stopping workers" not in line]
    assert sum("ValueError: no data" in line for line in told) == 3, (
        "the traceback, the launcher's verdict and the job's"
    )
    assert len(ran.err.splitlines()) < 20
    assert waited.err.startswith("holdfast: the traceback of train/0:\n"), "it comes from the error file"
    assert waited.err.count("in load") == 1


def test_the_second_node_of_a_job_points_to_the_traceback_of_the_first(invoke: Invoke) -> None:
    Path("train.py").write_text(
        "import os, signal\nif os.environ['RANK'] == '1':\n    raise ValueError('no data')\nsignal.pause()\n"
    )
    ran = invoke("run", "-j", "2x1", "train.py")

    assert ran.err.count("Traceback") == 1
    assert "train/0   more     the traceback is in the output of node 1 (" in ran.err


def test_lines_of_all_replicas_come_behind_their_names(invoke: Invoke, components: str) -> None:
    said = invoke("run", f"{components}:many", "--count=3")

    assert {line for line in said.err.splitlines() if "I am" in line} == {f"worker/{n} I am {n}" for n in range(3)}


def test_a_dry_run_shows_the_app_and_the_request_and_submits_nothing(invoke: Invoke) -> None:
    said = invoke("run", "--dryrun", "-cfg", "log_dir=/tmp/mine", "utils.echo", "--msg", "hello")

    assert said.code == 0
    assert said.out.index("=== APPLICATION ===") < said.out.index("=== SCHEDULER REQUEST ===")
    assert "/tmp/mine" in said.out
    assert invoke("list", "--json").data == []


def test_variables_reach_every_replica(invoke: Invoke) -> None:
    said = invoke("run", "--env", "A=one", "--env", "B=x=y", "utils.sh", "sh", "-c", 'echo "$A and $B"')

    assert "one and x=y" in said.err
    assert "NAME=VALUE" in invoke("run", "--env", "A", "utils.echo").err


def test_a_script_stands_for_the_component_that_runs_scripts(invoke: Invoke) -> None:
    Path("train.py").write_text("import os, sys; print('rank', os.environ['RANK'], sys.argv[1:])")
    said = invoke("run", "-j", "1x2", "train.py", "--lr", "0.1", "--help")

    assert said.code == 0, said.err
    for rank in (0, 1):
        assert f"rank {rank} ['--lr', '0.1', '--help']" in said.err


SHOW = "import os, sys; print('saw', *(os.environ.get(name) for name in sys.argv[1:]))"


def test_a_script_takes_the_flags_of_a_launch(invoke: Invoke) -> None:
    Path("train.py").write_text(SHOW)
    names = ("WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "LOCAL_RANK")
    flags = ("--max_restarts=2", "--name", "foo", "--hang", "auto", "--vault", "--virtual-local-rank", "--log-p", "> ")
    said = invoke("run", "-j", "1x2", *flags, "train.py", *names)

    assert said.code == 0, said.err
    job = said.out.strip().rpartition("/")[2]
    assert job.startswith("foo-")
    assert said.err.count(f"> saw 2 2 {job} 0\n") == 2


def test_nodes_and_workers_may_be_said_as_to_a_launch(invoke: Invoke) -> None:
    Path("train.py").write_text("")
    said = invoke("run", "--dryrun", "--nnodes", "2:3", "--nproc-per-node", "gpu", "train.py")

    assert "num_replicas: 3" in said.out
    assert "min_replicas: 2" in said.out
    assert "--nproc-per-node gpu --nnodes 2:3" in said.out


def test_a_module_and_a_program_are_run_too(invoke: Invoke) -> None:
    Path("pkg.py").write_text("import sys; print('module', sys.argv[1:])")

    assert "[0]:module ['a', '--', 'b']" in invoke("run", "-m", "pkg", "a", "--", "b").err
    assert "[0]:program --x" in invoke("run", "--no-python", "echo", "--", "program", "--x").err


def test_a_script_has_one_worker_as_with_launch_unless_settings_say_otherwise(invoke: Invoke) -> None:
    Path("train.py").write_text(SHOW)
    assert "saw 1\n" in invoke("run", "train.py", "WORLD_SIZE").err

    Path(".holdfast.toml").write_text('[component."dist.ddp"]\nj = "1x2"\n')
    assert invoke("run", "train.py", "WORLD_SIZE").err.count("saw 2\n") == 2
    assert "saw 1\n" in invoke("run", "-j", "1", "train.py", "WORLD_SIZE").err


def test_variables_of_a_launch_hold_unless_a_flag_wins_which_is_told(invoke: Invoke) -> None:
    Path("train.py").write_text(SHOW)
    name = "TORCHELASTIC_MAX_RESTARTS"
    alone = invoke("run", "--env", "PET_MAX_RESTARTS=2", "--env", "PET_TEE=0", "train.py", name)
    both = invoke("run", "--env", "PET_MAX_RESTARTS=2", "--max-restarts", "1", "train.py", name)
    component = invoke("run", "--env", "PET_TEE=0", "dist.ddp", "--script", "train.py", name)

    assert "train/0 saw 2\n" in alone.err
    assert "PET_" not in alone.err
    assert "[0]:saw 1\n" in both.err
    assert "holdfast: --max-restarts wins over PET_MAX_RESTARTS=2 of --env\n" in both.err
    assert "holdfast: --env PET_TEE has no effect: the component gives --tee, which wins\n" in component.err


def test_settings_hold_flags_for_scripts(invoke: Invoke) -> None:
    Path("train.py").write_text(SHOW)
    Path(".holdfast.toml").write_text("[cli.run]\nmax_restarts = 7\nnproc-per-node = 2\n[cli.launch]\nmax_restarts=1\n")
    name = "TORCHELASTIC_MAX_RESTARTS"

    assert invoke("run", "train.py", name).err.count("saw 7\n") == 2
    assert invoke("run", "-j", "1", "--max-restarts", "3", "train.py", name).err.count("saw 3\n") == 1
    assert "hello" in invoke("run", "utils.echo", "--msg", "hello").err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--standalone", "train.py"],
            "`holdfast run` does not take --standalone, because the job's scheduler decides",
        ),
        (["--rdzv-id", "x", "train.py"], "a job's run id is the job's id"),
        (["-j", "2", "--nnodes", "2", "train.py"], "-j 2 and --nnodes say the same: leave one of them out"),
        (["--max-restarts", "2", "utils.echo"], "--max-restarts before 'utils.echo' is for scripts only"),
        (["--name", "x", "utils.echo"], "--name before 'utils.echo' is for scripts only"),
        (["--nnodes", "x", "train.py"], "--nnodes 'x' must be a number or MIN:MAX"),
    ],
)
def test_flags_that_do_not_fit_are_refused(invoke: Invoke, words: list[str], sentence: str) -> None:
    Path("train.py").write_text("")
    said = invoke("run", *words)

    assert said.code == 2
    assert sentence in said.err


def test_a_status_names_the_exception_that_ended_a_workers_script(invoke: Invoke) -> None:
    Path("train.py").write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no data in ' + os.environ['ROLE_NAME'])\n"
    )
    ran = invoke("run", "-j", "1x2", "train.py")
    status = invoke("status", "--json", ran.out.strip()).data
    replica = status["roles"][0]["replicas"][0]

    assert ran.code == 1
    assert "failed in train/0 (exit code 1): rank 1: ValueError: no data in" in ran.err
    assert replica["cause"].startswith("rank 1: ValueError: no data in")
    assert "Traceback" in replica["structured_error_msg"]


def test_the_shape_of_a_job_is_not_for_components(invoke: Invoke) -> None:
    said = invoke("run", "-j", "1x2", "utils.echo")

    assert said.code == 2
    assert "write it after the component's name" in said.err


def test_a_components_help_is_shown_and_nothing_runs(invoke: Invoke, components: str) -> None:
    said = invoke("run", f"{components}:many", "--help")

    assert said.code == 0
    assert "Runs several replicas." in said.out
    assert "--count" in said.out
    assert invoke("list", "--json").data == []


def test_a_components_help_fits_the_terminal(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = invoke("run", "utils.sh", "--help").out

    assert max(len(line) for line in said.splitlines() if "type=bind" not in line) <= 60


def test_what_is_wrong_is_told_in_a_sentence(invoke: Invoke) -> None:
    assert "say what to run" in invoke("run").err
    assert "there is no component 'utils.ecko'" in invoke("run", "utils.ecko").err
    assert "--msgg" in invoke("run", "utils.echo", "--msgg", "x").err
    assert "there is no scheduler 'nowhere'" in invoke("run", "-s", "nowhere", "utils.echo").err
    assert "does not exist" in invoke("run", "--workspace", "nothing", "utils.echo").err
    assert all(invoke("run", *words).code == 2 for words in ((), ("utils.ecko",), ("-s", "nowhere", "utils.echo")))


def test_a_script_that_is_not_there_is_refused_before_anything_is_submitted(invoke: Invoke, tmp_path: Path) -> None:
    assert "there is no script 'nothing.py' here" in invoke("run", "nothing.py").err
    assert not (tmp_path / "state").exists()
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "there.py").write_text("print('found')")
    assert "found" in invoke("run", "--workspace", str(shipped), "-j", "1", "there.py").err


def test_a_component_that_raises_is_shown_without_the_way_there(invoke: Invoke) -> None:
    Path("bad.py").write_text(
        "from holdfast.specs import AppDef\ndef bad() -> AppDef:\n    raise RuntimeError('oh no')\n"
    )
    said = invoke("run", "bad.py:bad")

    assert said.code == 1
    assert "the component 'bad.py:bad' raised RuntimeError: oh no" in said.err
    assert 'bad.py", line 3, in bad' in said.err
    assert "click" not in said.err


def test_settings_choose_component_scheduler_and_defaults(invoke: Invoke) -> None:
    Path(".holdfast.toml").write_text(
        '[cli.run]\ncomponent = "utils.echo"\n[component."utils.echo"]\nmsg = "from the file"\n'
        '[scheduler.local]\nlog_dir = "/tmp/from-file"\n'
    )

    assert "/tmp/from-file" in invoke("run", "--dryrun").out
    assert "from the file" in invoke("run", "--dryrun").out
    assert "typed" in invoke("run", "--dryrun", "--", "--msg", "typed").out
    assert "/tmp/typed" in invoke("run", "--dryrun", "-cfg", "log_dir=/tmp/typed", "utils.echo").out


def test_an_order_may_come_from_stdin(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {
        "component_name": "utils.echo",
        "component_args": {"msg": "from stdin", "num_replicas": 2},
        "scheduler": "local",
        "scheduler_args": {"log_dir": "/tmp/stdin"},
        "dryrun": True,
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(order)))
    said = invoke("run", "--stdin")

    assert said.code == 0, said.err
    assert "from stdin" in said.out
    assert "/tmp/stdin" in said.out
    assert "num_replicas: 2" in said.out


@pytest.mark.parametrize(("text", "sentence"), [("{", "stdin is not JSON"), ("[]", "one JSON object"), ("{}", "name")])
def test_an_order_that_makes_no_sense_is_refused(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    said = invoke("run", "--stdin")

    assert said.code == 2
    assert sentence in said.err


def test_a_workspace_is_where_the_job_runs(invoke: Invoke, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "words.txt").write_text("shipped words\n")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "more.txt").write_text("more words\n")
    one = invoke("run", "--workspace", str(code), "utils.sh", "cat", "words.txt")
    two = invoke(
        "run",
        "--workspace",
        str(code),
        "--workspace",
        f"{tmp_path / 'extra'}=below",
        "utils.sh",
        "cat",
        "below/more.txt",
    )

    assert "shipped words" in one.err
    assert "more words" in two.err


def test_later_edits_do_not_disturb_the_job_that_runs(invoke: Invoke, start: Start, tmp_path: Path) -> None:
    code, gate = tmp_path / "code", tmp_path / "gate"
    code.mkdir()
    (code / "words.txt").write_text("as submitted\n")
    script = f"echo ready; until [ -e {gate} ]; do sleep 0.05; done; cat words.txt"
    process = start("run", "--workspace", str(code), "utils.sh", "sh", "-c", script)
    assert process.stderr is not None
    assert "ready" in process.stderr.readline()
    (code / "words.txt").write_text("edited since\n")
    gate.touch()
    _, err = finish(process)

    assert "sh/0 as submitted" in err


def test_a_dry_run_ships_nothing(invoke: Invoke, tmp_path: Path) -> None:
    said = invoke("run", "--dryrun", "--workspace", str(tmp_path), "utils.echo")

    assert said.code == 0
    assert f"ships {tmp_path} " in said.out
    assert not (tmp_path / "state").exists()


def test_a_detached_job_goes_on_by_itself(invoke: Invoke) -> None:
    said = invoke("run", "--detach", "utils.sh", "sleep", FOREVER)
    handle = said.out.strip()

    assert said.code == 0
    assert f"holdfast log -f {handle}" in said.err
    assert invoke("status", "--json", handle).data["state"] in ("SUBMITTED", "PENDING", "RUNNING")
    invoke("cancel", handle)
    assert invoke("wait", handle).code != 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_the_job(start: Start, invoke: Invoke, number: int, code: int) -> None:
    process = start("run", "utils.sh", "sh", "-c", f"echo ready; exec sleep {FOREVER}")
    assert process.stderr is not None
    assert "ready" in process.stderr.readline()
    process.send_signal(number)
    out, err = finish(process)

    assert process.returncode == code, err
    assert f"cancelling {out.strip()}" in err
    assert invoke("status", "--json", out.strip()).data["state"] == "CANCELLED"


def test_a_second_ctrl_c_does_not_wait_for_the_job(start: Start, invoke: Invoke) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    process = start("run", "-cfg", f"cancel_grace_s={FOREVER}", "utils.sh", "sh", "-c", stubborn)
    assert process.stderr is not None
    assert "ready" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert "press Ctrl-C again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = finish(process)

    assert process.returncode == 130, err
    assert f"{out.strip()} was killed" in err
    assert invoke("wait", out.strip()).code != 0  # long before its grace time is over


def test_a_hundred_lines_arrive_whole_and_in_order(invoke: Invoke) -> None:
    said = invoke("run", "utils.sh", "sh", "-c", "for i in $(seq 100); do echo line $i; done")

    assert [line for line in said.err.splitlines() if line.startswith("sh/0")] == [
        f"sh/0 line {number}" for number in range(1, 101)
    ]


def test_output_to_a_closed_pipe_is_no_error(start: Start, environ: dict[str, str]) -> None:
    process = start("resources")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()

    assert process.wait() == 141
    assert err == ""


def test_replicas_know_their_job(invoke: Invoke) -> None:
    said = invoke("run", "utils.sh", "sh", "-c", 'echo "$HOLDFAST_JOB_ID = $TORCHX_JOB_ID"')

    assert f"{said.out.strip()} = {said.out.strip()}" in said.err


def test_a_job_outlives_the_command_that_submitted_it(start: Start, invoke: Invoke) -> None:
    process = start("run", "utils.sh", "sh", "-c", f"echo ready; exec sleep {FOREVER}")
    assert process.stdout is not None
    assert process.stderr is not None
    handle = process.stdout.readline().strip()
    assert "ready" in process.stderr.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    assert invoke("status", "--json", handle).data["state"] == "RUNNING"
    invoke("cancel", handle)
    invoke("wait", handle)
