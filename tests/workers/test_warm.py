"""Warm starts: forked workers stand on their own, and a spoiled template says so."""

import os
import signal
import sys
import textwrap
import uuid

import pytest

from holdfast.workers import Gang, Module, Program, Script, Template, WorkerPlan
from holdfast.workers.strays import read_stat
from holdfast.workers.variables import is_import_variable


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
    assert warm.wait_ready(240)

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
    assert warm.wait_ready(240)
    path = script(
        """
        import os, subprocess, sys
        from pathlib import Path
        print(Path("/proc/self/cmdline").read_bytes().split(b"\\0")[1:])
        shown = Path("/proc/self/environ").read_bytes().decode().split("\\0")
        print("shown", sorted(shown) == sorted(["", *(f"{k}={v}" for k, v in os.environ.items())]), "RANK=0" in shown)
        print(sorted(os.environ) == sorted(eval(subprocess.check_output(
            [sys.executable, "-c", "import os; print([n for n in os.environ])"]))))
        print("ONLY_IN_TEMPLATE" in os.environ, os.environ["COLOUR"])
        """
    )

    wait_all(start(Script(path, ("--lr", "1")), template=warm, env={"COLOUR": "red"}))

    console.wait_line(f"[b'-u', b'{path}', b'--lr', b'1', b'']".encode(), b"[0]True", b"[0]False red")
    console.wait_line(b"shown True True")


def test_workers_forked_from_one_template_draw_different_random_numbers(template, start, script, console, wait_all):
    warm = template("random", "numpy.random")
    assert warm.wait_ready(240), warm.why_not
    path = script(
        "import random, numpy, uuid, multiprocessing as m; "
        "print(random.random(), numpy.random.rand(), uuid.uuid4(), m.current_process().authkey.hex())"
    )

    wait_all(start(path, 2, template=warm))

    console.wait_line(b"[0]", b"[1]")
    first, second = (line[3:].split() for line in sorted(console.lines))
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_where_the_kernel_cannot_move_the_names_they_are_written_over_the_old_ones(
    template, spoiler, start, script, console, wait_all
):
    name = spoiler(
        """
        import ctypes
        real = ctypes.CDLL(None)
        class Refuses:
            sbrk = real.sbrk
            def prctl(self, option, *rest):
                return -1 if option == 35 else real.prctl(option, *rest)
        ctypes.CDLL = lambda name: Refuses()
        """
    )
    warm = template(name)
    assert warm.wait_ready(240), warm.why_not
    path = script(
        """
        import os
        from pathlib import Path
        print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").split(b"\\0")[1:])
        shown = Path("/proc/self/environ").read_bytes().decode().split("\\0")
        print("token", f"HOLDFAST_GANG={os.environ['HOLDFAST_GANG']}" in shown, "RANK=0" in shown)
        """
    )

    wait_all(start(path, template=warm))

    console.wait_line(f"[b'-u', b'{path}']".encode(), b"token True False")


def test_generators_that_modules_made_without_a_seed_differ_too(template, spoiler, start, script, console, wait_all):
    name = spoiler("import random; free = random.Random(); fixed = random.Random(7)")
    warm = template(name)
    assert warm.wait_ready(240), warm.why_not
    path = script(
        f"import sys; assert {name!r} in sys.modules; import {name} as m; print(m.free.random(), m.fixed.random())"
    )

    wait_all(start(path, 2, template=warm))

    console.wait_line(b"[0]", b"[1]")
    first, second = (line[3:].split() for line in sorted(console.lines))
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_numpys_generators_that_modules_made_without_a_seed_differ_too(
    template, spoiler, start, script, console, wait_all
):
    pytest.importorskip("numpy", reason="numpy is not installed")
    name = spoiler(
        """
        from numpy.random import Philox, RandomState, SeedSequence, Generator, default_rng
        free = [default_rng(), RandomState(), Generator(Philox()), default_rng(SeedSequence())]
        fixed = [default_rng(7), RandomState(7)]
        """
    )
    warm = template(name)
    assert warm.wait_ready(240), warm.why_not
    path = script(
        f"""
        import sys
        assert {name!r} in sys.modules
        import {name} as m
        drawn = [each.uniform() for each in m.free] + [m.free[0].spawn(1)[0].uniform()]
        print(*drawn, *[each.uniform() for each in m.fixed])
        """
    )

    wait_all(start(path, 2, template=warm))

    console.wait_line(b"[0]", b"[1]")
    first, second = (line[3:].split() for line in sorted(console.lines))
    assert [one == other for one, other in zip(first, second, strict=True)] == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    "text",
    [
        "import random; random.seed(7)",
        "import random; random.random()",
        "import numpy; numpy.random.seed(7)",
        "import numpy; numpy.random.rand()",
        pytest.param("import torch; torch.manual_seed(7)", marks=pytest.mark.torch),
    ],
)
def test_a_module_that_uses_a_generator_while_it_is_imported_is_not_forked(template, spoiler, text):
    name = spoiler(text)
    warm = template(name)

    assert not warm.wait_ready(240)

    assert f"importing {name} draws from or seeds the generator of" in warm.why_not


#: Prints what every unseeded source of randomness gives first.
DRAWS = """
    import random, sys, numpy, torch
    from torch.utils.data import DataLoader
    if __name__ == "__main__":
        print("warm", "torch._dynamo" in sys.modules)

        def joined(values):
            return "-".join(str(int(each)) for each in values)

        print("drawn", joined(torch.randperm(20)), joined(numpy.random.permutation(20)), random.random(),
              joined(DataLoader(range(20), shuffle=True)), joined(torch.nn.functional.dropout(torch.ones(64))),
              torch.initial_seed(), torch.Generator().initial_seed())
"""


@pytest.mark.torch
def test_unseeded_draws_differ_over_ranks_and_attempts_as_they_do_cold(start, script, console, wait_all):
    pytest.importorskip("torch", reason="torch is not installed")
    path = script(DRAWS)
    warm = Template(["torch"], {"OMP_NUM_THREADS": "1"})
    try:
        assert warm.wait_ready(240), warm.why_not
        for template in (warm, warm, None):
            wait_all(start(path, 2, env={"OMP_NUM_THREADS": "1"}, template=template))
    finally:
        warm.close()

    drawn = [line.split()[1:] for line in console.lines if b"drawn" in line]
    assert len(drawn) == 6
    assert sum(b"warm True" in line for line in console.lines) == 4
    *sources, generators = zip(*drawn, strict=True)
    assert [len(set(source)) for source in sources] == [6] * len(sources)
    assert len(set(generators)) == 1  # this one has a fixed seed in every process


def test_what_the_imports_print_is_printed_by_each_worker(template, spoiler, start, script, console, wait_all):
    name = spoiler("import sys; print('imported'); print('careful', file=sys.stderr)")
    warm = template(name)
    assert warm.wait_ready(240), warm.why_not

    wait_all(
        start(script(f"import sys; assert {name!r} in sys.modules; import {name}; print('begun')"), 2, template=warm)
    )

    console.wait_line(b"[0]begun", b"[1]begun")
    assert sorted(console.lines) == sorted(
        f"[{rank}]{text}".encode() for rank in (0, 1) for text in ("imported", "careful", "begun")
    )


#: A module that, once a file says so, does something bad in the template or in the middle process when either forks.
BAD_FORK = """
    import os, signal
    HERE = os.getpid()
    def act():
        who = "template" if os.getpid() == HERE else "middle"
        if os.path.exists({flag!r}) and who == {who!r}:
            os.kill(os.getpid(), signal.SIGSTOP)
    os.register_at_fork(after_in_parent=act)
"""
#: Says that it runs, and by which pid.
RUNS = "import os, signal; print('runs', os.getpid(), flush=True); signal.pause()"


@pytest.mark.parametrize("who", ["template", "middle", "before"])
def test_a_template_that_does_not_answer_is_ended_before_a_worker_starts_cold(
    tmp_path, spoiler, start, script, console, marked, wait_gone, who
):
    flag, marker = tmp_path / "flag", f"MARK={uuid.uuid4().hex}"
    warm = Template([spoiler(BAD_FORK.format(flag=str(flag), who=who))], fork_timeout_s=0.5)
    try:
        assert warm.wait_ready(240), warm.why_not
        flag.touch()
        if who == "before":
            os.kill(warm.pid, signal.SIGSTOP)

        name, _, value = marker.partition("=")
        gang = start(script(RUNS), env={name: value}, template=warm)

        console.wait_line(f"runs {gang.pids()[0]}".encode())
        assert "did not answer" in warm.why_not
        assert read_stat(warm.pid).state == "Z"
        os.kill(warm.pid, signal.SIGCONT)  # as the one who stopped it would, later
        gang.stop()
        assert [line for line in console.lines if b"runs" in line] == [f"[0]runs {gang.pids()[0]}".encode()]
        assert marked(marker) == []
    finally:
        warm.close()


def test_a_fork_that_its_agent_no_longer_waits_for_never_begins(tmp_path, spoiler, script, wait_gone):
    """The template itself stays alive here: what holds the fork back is that the agent has not let it go."""
    ran = tmp_path / "ran"
    warm = Template([spoiler("X = 1")])
    go_read, go_write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        assert warm.wait_ready(240), warm.why_not
        env = {**os.environ, "HOLDFAST_GANG": "0" * 32}
        order = warm.order(WorkerPlan(0, Script(script(f"open({str(ran)!r}, 'w')"))), env, null, null)
        warm._ask([order], go_read)
        [pid] = warm._receive(60)["pids"]
        os.close(go_read)
        os.close(go_write)
        os.waitpid(pid, 0)
    finally:
        os.close(null)
        warm.close()

    assert not ran.exists()


def test_a_machine_without_room_for_more_processes_starts_all_workers_anew(
    tmp_path, spoiler, start, script, console, marked
):
    flag, marker = tmp_path / "flag", f"MARK={uuid.uuid4().hex}"
    text = """
        import os
        HERE, fork, forked = os.getpid(), os.fork, []
        def scarce():
            forked.append(os.getpid())
            if os.path.exists({flag!r}) and os.getpid() != HERE and forked.count(os.getpid()) > 1:
                raise BlockingIOError("no more")
            return fork()
        os.fork = scarce
    """
    warm = Template([spoiler(text.format(flag=str(flag)))])
    try:
        assert warm.wait_ready(240), warm.why_not
        flag.touch()

        name, _, value = marker.partition("=")
        gang = start(script(RUNS), 3, env={name: value}, template=warm)

        console.wait_line(*(f"[{rank}]runs {pid}".encode() for rank, pid in gang.pids().items()))
        assert warm.usable
        assert sorted(marked(marker)) == sorted(gang.pids().values())
        gang.stop()
    finally:
        warm.close()


def test_imports_that_take_too_long_are_given_up(spoiler):
    warm = Template([spoiler("import time; time.sleep(99)")], import_timeout_s=0.1)
    try:
        assert not warm.wait_ready()

        assert "took too long" in warm.why_not
        assert read_stat(warm.pid).state == "Z"
    finally:
        warm.close()


def test_many_gangs_come_from_one_template(template, start, script, wait_all):
    warm = template()
    assert warm.wait_ready(240)
    path = script("import os; raise SystemExit(int(os.environ['RANK']))")

    for _ in range(3):
        gang = start(path, 3, template=warm)
        assert [exited.exit_code for _, exited in sorted(wait_all(gang).items())] == [0, 1, 2]
        gang.close()


def test_grandchildren_of_warm_workers_are_ended_too(template, start, script, console, wait_gone):
    warm = template()
    assert warm.wait_ready(240)
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
    assert warm.wait_ready(240)
    gang = start(script("import signal; print('ready', flush=True); signal.pause()"), 2, template=warm)
    console.wait_line(b"[0]ready", b"[1]ready")

    os.kill(gang.pids()[0], signal.SIGKILL)
    assert gang.wait_exits(60)[0].exit_code == -9
    gang.stop()

    assert gang.exits()[1].exit_code == -15


def test_the_end_of_the_template_does_not_touch_its_workers(template, start, script, console):
    warm = template()
    assert warm.wait_ready(240)
    gang = start(script("import signal; print('ready', flush=True); signal.pause()"), template=warm)
    console.wait_line(b"ready")

    warm.close()

    assert gang.wait_exits(0.05) == []
    assert gang.running() == [0]


def test_a_dead_template_is_noticed_and_workers_start_without_it(template, start, script, wait_all, console):
    warm = template()
    assert warm.wait_ready(240)
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

    assert not warm.wait_ready(240)

    assert reason in warm.why_not
    assert name in warm.why_not


def test_native_threads_that_do_not_survive_a_fork_spoil_it(template, spoiler):
    name = spoiler("import _thread, time; _thread.start_new_thread(time.sleep, (99,))")
    warm = template(name)

    assert not warm.wait_ready(240)

    assert "native threads" in warm.why_not


def test_a_missing_module_is_said(template):
    warm = template("no_such_module_at_all")

    assert not warm.wait_ready(240)
    assert not warm.usable
    assert "importing no_such_module_at_all failed: ModuleNotFoundError" in warm.why_not


def test_variables_that_imports_read_must_be_the_same(template):
    warm = template(env={"OMP_NUM_THREADS": "1"})
    assert warm.wait_ready(240)
    same = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "3", "CUDA_VISIBLE_DEVICES": "2"}
    other = {**same, "OMP_NUM_THREADS": "8", "PYTHONPATH": "/x"}

    assert warm.differs(same) == []
    assert warm.differs(other) == ["OMP_NUM_THREADS", "PYTHONPATH"]
    assert warm.can_run(WorkerPlan(0, Script("x")), same)
    assert warm.can_run(WorkerPlan(0, Module("x")), same)
    assert not warm.can_run(WorkerPlan(0, Script("x")), other)
    assert not warm.can_run(WorkerPlan(0, Program(("x",))), same)


def test_variables_that_a_module_is_seen_to_read_must_be_the_same_too(template, spoiler):
    name = spoiler("import os; RANK = os.environ.get('RANK'); COLOUR = os.getenv('COLOUR'); X = 'SHAPE' in os.environ")
    warm = template(name, env={"COLOUR": "red"})
    assert warm.wait_ready(240), warm.why_not
    same = {**os.environ, "COLOUR": "red"}

    assert warm.differs(same) == []
    assert warm.differs({**same, "RANK": "3", "SHAPE": "round", "SIZE": "5"}) == ["RANK", "SHAPE"]
    assert "RANK must be the same when" in warm.refusal(WorkerPlan(0, Script("x.py")), {**same, "RANK": "3"})


def test_a_module_that_copies_the_environment_is_not_forked(template, spoiler):
    warm = template(spoiler("import os; kept = dict(os.environ)"))

    assert not warm.wait_ready(240)
    assert "keeps a copy of the environment" in warm.why_not


@pytest.mark.parametrize(
    "walk",
    [
        "{name: value for name, value in os.environ.items() if name.startswith('COLOUR_')}",
        "[name for name in os.environ if name.startswith('COLOUR_')]",
        "sum(len(value) for value in os.environ.values())",
    ],
    ids=["pairs", "names", "values"],
)
def test_a_module_that_goes_through_the_environment_and_keeps_little_of_it_is_forked(template, spoiler, walk):
    """As tqdm and fsspec do, which look for variables that begin with their names."""
    warm = template(spoiler(f"import os; found = {walk}"), env={"COLOUR_A": "red"})
    assert warm.wait_ready(240), warm.why_not
    same = {**os.environ, "COLOUR_A": "red", "RANK": "3", "HOLDFAST_ROUND": "2", "PWD": "/elsewhere"}

    assert warm.differs(same) == []
    assert warm.differs({**same, "COLOUR_B": "blue"}) == ["COLOUR_B"]


@pytest.mark.parametrize("copy", ["os.environ.copy()", "list(os.environ.values())", "list(os.environ)"])
def test_every_way_to_keep_a_copy_of_the_environment_is_seen(template, spoiler, copy):
    warm = template(spoiler(f"import os; kept = {copy}"))

    assert not warm.wait_ready(240)
    assert "keeps a copy of the environment" in warm.why_not


def test_what_a_module_does_to_the_environment_while_it_is_imported_stays(
    template, spoiler, start, script, console, wait_all
):
    name = spoiler("import os; os.environ['MADE'] = 'here'; del os.environ['GONE']")
    warm = template(name, env={"GONE": "x"})
    assert warm.wait_ready(240), warm.why_not
    path = script(f"import os, sys, {name}; print('made', os.environ['MADE'], 'GONE' in os.environ)")

    wait_all(start(path, env={"GONE": "x"}, template=warm))

    console.wait_line(b"made here False")


@pytest.mark.torch
def test_a_variable_that_is_set_too_late_for_a_fork_is_told(start, script, console, wait_all):
    """In the time between importing torch and using it, a library may set what torch reads only then."""
    pytest.importorskip("torch", reason="torch is not installed")
    path = script(
        """
        import os, sys, torch
        assert "torch._dynamo" in sys.modules
        os.environ["TORCHDYNAMO_VERBOSE"] = "1"
        os.environ["TORCHDYNAMO_VERBOSE"] = "0"
        os.environ.update(TMPDIR="/tmp", COLOUR="red")
        print("set", os.environ["TORCHDYNAMO_VERBOSE"], type(os.environ).__name__, os.environ == dict(os.environ))
        """
    )
    warm = Template(["torch"])
    try:
        assert warm.wait_ready(240), warm.why_not
        wait_all(start(path, template=warm))
    finally:
        warm.close()

    console.wait_line(b"[0]set 0 _Environ True")
    assert [line[:33] for line in console.lines if b"holdfast" in line] == [b"[0]holdfast: TORCHDYNAMO_VERBOSE "]


def test_a_module_beside_the_script_takes_the_place_of_a_loaded_one(template, start, script, console, wait_all):
    warm = template("statistics", "decimal")
    assert warm.wait_ready(240)
    script("MEAN = 'my own'", "statistics.py")
    path = script("import statistics; print(statistics.MEAN)")

    wait_all(start(path, template=warm))

    console.wait_line(b"my own")
    assert "in the place of loaded ones: statistics" in warm.refusal(WorkerPlan(0, Script(path)), dict(os.environ))


def test_only_what_python_would_find_first_takes_a_modules_place(template, script, tmp_path, spoiler):
    name = spoiler("X = 1")  # this one was loaded from the script's own folder
    warm = template(name, "statistics")
    assert warm.wait_ready(240), warm.why_not
    (tmp_path / "statistics").mkdir()  # without __init__ it comes last
    (tmp_path / "sys.py").touch()  # is built in
    (tmp_path / "os.py").touch()  # is loaded before any script begins
    path = script("pass")

    assert warm.refusal(WorkerPlan(0, Script(path)), dict(os.environ)) == ""
    assert warm.refusal(WorkerPlan(0, Module("train"), cwd=str(tmp_path)), dict(os.environ)) == ""
    (tmp_path / "statistics" / "__init__.py").touch()
    assert "loaded ones: statistics" in warm.refusal(WorkerPlan(0, Script(path)), dict(os.environ))
    assert "loaded ones: statistics" in warm.refusal(
        WorkerPlan(0, Script("train.py"), cwd=str(tmp_path)), dict(os.environ)
    )
    assert "loaded ones: statistics" in warm.refusal(
        WorkerPlan(0, Module("train"), cwd=str(tmp_path)), dict(os.environ)
    )
    assert (
        warm.refusal(WorkerPlan(0, Script(path)), {**os.environ, "PYTHONSAFEPATH": "1"}) != ""
    )  # the template has it not


def test_relative_search_folders_need_the_same_working_directory(template, script, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    warm = template()
    assert warm.wait_ready(240)
    path, env = script("pass"), dict(os.environ)

    assert warm.refusal(WorkerPlan(0, Script(path)), env) == ""
    assert "PYTHONPATH has relative folders" in warm.refusal(WorkerPlan(0, Script(path), cwd=str(tmp_path)), env)


def test_a_binding_to_other_cpus_needs_a_number_of_threads_that_fits(template):
    warm = template()
    assert warm.wait_ready(240)
    one = frozenset([min(os.sched_getaffinity(0))])
    plan, env = WorkerPlan(0, Module("x"), cpus=one), dict(os.environ)
    if one == os.sched_getaffinity(0):
        pytest.skip("there is only one CPU")

    env.pop("OMP_NUM_THREADS", None)
    assert not warm._may_bind(plan.cpus, env)
    assert warm._may_bind(plan.cpus, {**env, "OMP_NUM_THREADS": "1"})
    assert not warm._may_bind(plan.cpus, {**env, "OMP_NUM_THREADS": "2"})
    assert not warm._may_bind(plan.cpus, {**env, "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true"})
    assert warm._may_bind(None, env)


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
        template.wait_ready(240)
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
        assert warm.wait_ready(240), warm.why_not
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
