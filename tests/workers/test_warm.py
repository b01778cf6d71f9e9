"""Warm starts: forked workers stand on their own, and a spoiled template says so."""

import os
import signal
import sys
import textwrap
import uuid

import pytest

from holdfast.workers import Gang, Module, Program, Script, Template, WorkerPlan
from holdfast.workers.strays import read_stat
from holdfast.workers.warm import is_import_variable


@pytest.fixture
def template():
    """A template of nothing much, which is quick."""
    made = []

    def make(*modules, env=None):
        made.append(Template(modules or ("json",), env))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def spoiler(tmp_path, monkeypatch):
    """Write a module and put its folder on the template's path."""

    def write(text):
        name = f"spoiler_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return name

    return write


def test_a_warm_worker_is_the_agents_own_child_in_its_own_session(template, start, script, console, wait_all):
    warm = template()
    assert warm.wait_ready(60)

    gang = start(
        script(
            """
            import os
            print(os.getppid(), os.getsid(0) == os.getpgrp() == os.getpid(), flush=True)
            raise SystemExit(40 + int(os.environ["RANK"]))
            """
        ),
        2,
        template=warm,
    )

    assert {rank: exited.exit_code for rank, exited in wait_all(gang).items()} == {0: 40, 1: 41}
    console.wait_line(f"[0]{os.getpid()} True".encode(), f"[1]{os.getpid()} True".encode())


def test_a_warm_worker_shows_its_own_command_line_and_environment(template, start, script, console, wait_all):
    warm = template()
    assert warm.wait_ready(60)
    path = script(
        """
        import os, subprocess, sys
        from pathlib import Path
        print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").split(b"\\0")[1:])
        print(sorted(os.environ) == sorted(eval(subprocess.check_output(
            [sys.executable, "-c", "import os; print([n for n in os.environ])"]))))
        print("ONLY_IN_TEMPLATE" in os.environ, os.environ["COLOUR"])
        """
    )

    wait_all(start(Script(path, ("--lr", "1")), template=warm, env={"COLOUR": "red"}))

    console.wait_line(f"[b'-u', b'{path}', b'--lr', b'1']".encode(), b"[0]True", b"[0]False red")


def test_workers_forked_from_one_template_draw_different_random_numbers(template, start, script, console, wait_all):
    warm = template("random", "numpy.random")
    assert warm.wait_ready(60), warm.why_not
    path = script(
        "import random, numpy, uuid, multiprocessing as m; "
        "print(random.random(), numpy.random.rand(), uuid.uuid4(), m.current_process().authkey.hex())"
    )

    wait_all(start(path, 2, template=warm))

    console.wait_line(b"[0]", b"[1]")
    first, second = (line[3:].split() for line in sorted(console.lines))
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_many_gangs_come_from_one_template(template, start, script, wait_all):
    warm = template()
    assert warm.wait_ready(60)
    path = script("import os; raise SystemExit(int(os.environ['RANK']))")

    for _ in range(3):
        gang = start(path, 3, template=warm)
        assert [exited.exit_code for _, exited in sorted(wait_all(gang).items())] == [0, 1, 2]
        gang.close()


def test_grandchildren_of_warm_workers_are_ended_too(template, start, script, console, wait_gone):
    warm = template()
    assert warm.wait_ready(60)
    gang = start(
        script(
            """
            import os, signal
            if os.fork() == 0:  # no exec: it can only be known by the token that its parent wrote
                os.setsid()
                print("child", os.getpid(), flush=True)
                signal.pause()
            signal.pause()
            """
        ),
        template=warm,
    )
    grandchild = int(console.wait_line(b"child").split()[-1])
    os.kill(gang.pids()[0], signal.SIGKILL)
    gang.wait_exits(60)

    gang.close()

    wait_gone([grandchild])


def test_a_warm_worker_can_be_stopped_and_killed(template, start, script, console):
    warm = template()
    assert warm.wait_ready(60)
    gang = start(script("import signal; print('ready', flush=True); signal.pause()"), 2, template=warm)
    console.wait_line(b"[0]ready", b"[1]ready")

    os.kill(gang.pids()[0], signal.SIGKILL)
    assert gang.wait_exits(60)[0].exit_code == -9
    gang.stop()

    assert gang.exits()[1].exit_code == -15


def test_the_end_of_the_template_does_not_touch_its_workers(template, start, script, console):
    warm = template()
    assert warm.wait_ready(60)
    gang = start(script("import signal; print('ready', flush=True); signal.pause()"), template=warm)
    console.wait_line(b"ready")

    warm.close()

    assert gang.wait_exits(0.05) == []
    assert gang.running() == [0]


def test_a_dead_template_is_noticed_and_workers_start_without_it(template, start, script, wait_all, console):
    warm = template()
    assert warm.wait_ready(60)
    os.kill(warm.pid, signal.SIGKILL)

    gang = start(script("import os; print('ran', os.getppid())"), template=warm)

    assert wait_all(gang)[0].exit_code == 0
    console.wait_line(b"ran")
    assert not warm.usable
    assert warm.why_not


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()", "threads"),
        ("raise ImportError('no luck')", "ImportError: no luck"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import os; os._exit(3)", "died while importing"),
        ("import os; os.kill(os.getpid(), 11)", "died while importing"),
        ("import subprocess; p = subprocess.Popen(['sleep', '99'])", "other processes"),
    ],
)
def test_a_module_that_spoils_the_template_is_named(template, spoiler, text, reason):
    name = spoiler(text)
    warm = template(name)

    assert not warm.wait_ready(60)

    assert reason in warm.why_not
    assert name in warm.why_not


def test_native_threads_that_do_not_survive_a_fork_spoil_it(template, spoiler):
    name = spoiler("import _thread, time; _thread.start_new_thread(time.sleep, (99,))")
    warm = template(name)

    assert not warm.wait_ready(60)

    assert "native threads" in warm.why_not


def test_a_missing_module_is_said(template):
    warm = template("no_such_module_at_all")

    assert not warm.wait_ready(60)
    assert not warm.usable
    assert "importing no_such_module_at_all failed: ModuleNotFoundError" in warm.why_not


def test_variables_that_imports_read_must_be_the_same(template):
    warm = template(env={"OMP_NUM_THREADS": "1"})
    assert warm.wait_ready(60)
    same = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "3", "CUDA_VISIBLE_DEVICES": "2"}
    other = {**same, "OMP_NUM_THREADS": "8", "PYTHONPATH": "/x"}

    assert warm.differs(same) == []
    assert warm.differs(other) == ["OMP_NUM_THREADS", "PYTHONPATH"]
    assert warm.can_run(WorkerPlan(0, Script("x")), same)
    assert warm.can_run(WorkerPlan(0, Module("x")), same)
    assert not warm.can_run(WorkerPlan(0, Script("x")), other)
    assert not warm.can_run(WorkerPlan(0, Program(("x",))), same)


def test_only_what_is_read_at_import_matters():
    assert is_import_variable("LD_LIBRARY_PATH")
    assert not is_import_variable("RANK")
    assert not is_import_variable("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    assert not is_import_variable("TORCHELASTIC_RESTART_COUNT")


def test_the_template_dies_with_the_agent(tmp_path, script, wait_gone):
    import subprocess

    agent = script(
        """
        import signal
        from holdfast.workers import Template
        template = Template(["json"])
        template.wait_ready(60)
        print(template.pid, flush=True)
        signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, agent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()

    wait_gone([pid])


def test_a_template_closes_while_it_still_imports(template, spoiler):
    warm = template(spoiler("import time; time.sleep(99)"))
    pid = warm.pid

    warm.close()

    assert read_stat(pid) is None


@pytest.mark.torch
def test_torch_workers_start_warm_and_use_their_data_loaders(start, script, console, wait_all):
    pytest.importorskip("torch", reason="torch is not installed")
    path = script(
        """
        import sys, torch
        from torch.utils.data import DataLoader
        if __name__ == "__main__":
            assert "torch._dynamo" in sys.modules, "it comes with the template"
            for method in ("fork", "spawn"):
                loader = DataLoader(range(8), batch_size=4, num_workers=2, multiprocessing_context=method)
                print(method, [batch.tolist() for batch in loader], flush=True)
            print("sum", (torch.ones(1000, 1000) @ torch.ones(1000, 1000)).sum().item())
        """
    )
    warm = Template(["torch"], {"OMP_NUM_THREADS": "2"})
    try:
        assert warm.wait_ready(110), warm.why_not
        gang = start(path, 2, env={"OMP_NUM_THREADS": "2"}, template=warm)
        exits = wait_all(gang)
    finally:
        warm.close()

    assert {exited.exit_code for exited in exits.values()} == {0}
    for rank in (b"[0]", b"[1]"):
        console.wait_line(rank + b"fork [[0, 1, 2, 3], [4, 5, 6, 7]]", rank + b"spawn [[0, 1, 2, 3], [4, 5, 6, 7]]")
        console.wait_line(rank + b"sum 1000000000.0")


def test_a_gang_without_a_template_runs_too(script, wait_all):
    with Gang([WorkerPlan(0, Script(script("pass")))], template=None) as gang:
        gang.start()
        assert wait_all(gang)[0].exit_code == 0
