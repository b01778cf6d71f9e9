"""The bootstrap and the warm template: a program cannot tell them from plain `python`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.workers import Module, Script, Std, Template
from holdfast.workers.starter import command_line
from holdfast.workers.strays import children, read_stat

#: Programs whose output, errors and exit code must be the same however they are started.
PROGRAMS = {
    "plain": "print('hello')",
    "identity": """
        import sys, os
        print(__name__, __file__, __spec__, __package__, __builtins__ is not None, type(__loader__).__name__)
        print(sys.argv, sys.path[0], sys.modules["__main__"].__file__, "__main__" in sys.modules)
        print(sorted(name for name in globals() if not name.startswith("__")))
    """,
    "builtins": """
        import builtins
        print(__builtins__ is builtins, hasattr(__builtins__, "print"), __builtins__.print is print)
    """,
    "original-arguments": "import sys; print(sys.orig_argv, sys.argv)",
    "exception": "def f():\n    raise ValueError('bad')\nf()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n",
    "syntax": "print('never'\n",
    "exit-code": "import sys; sys.exit(7)",
    "exit-text": "import sys; sys.exit('so long')",
    "exit-none": "import sys; sys.exit()",
    "exit-true": "import sys; sys.exit(True)",
    "interrupt": "raise KeyboardInterrupt",
    "hook": "import sys; sys.excepthook = lambda t, v, tb: print('hook', t.__name__, tb.tb_lineno); 1 / 0",
    "broken-hook": "import sys\ndef hook(*a):\n    raise RuntimeError('hook')\nsys.excepthook = hook\nx = 1 / 0",
    "atexit": "import atexit; atexit.register(print, 'bye'); raise SystemExit(3)",
    "thread": """
        import threading
        def work():
            threading.main_thread().join()
            print("thread done")
        threading.Thread(target=work).start()
        print("main done")
    """,
    "os-exit": "import os; print('x'); os._exit(9)",
    "kill": "import os; print('partial', end=''); os.kill(os.getpid(), 9)",
    "abort-signal": "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), 15)",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "multiprocessing": """
        import multiprocessing as mp
        def square(x):
            return x * x
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with mp.get_context(method).Pool(2) as pool:
                    print(method, pool.map(square, [1, 2, 3]))
                    pool.close()
                    pool.join()
    """,
    "stdin": "import sys; print(repr(sys.stdin.readline()) if False else sys.stdin is not None)",
    "warning": "import warnings; warnings.warn('careful')",
    "inspect": "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
    "recursion": """
        import sys
        def f():
            f()
        try:
            f()
        except RecursionError:
            print("deep")
    """,
}


def _plain(argv, cwd):
    before = set(children(os.getpid()))
    done = subprocess.run([sys.executable, "-u", *argv], capture_output=True, cwd=cwd, check=False, timeout=240)
    # While a template is up, orphans come to us; plain Python leaves one behind for a moment (its resource tracker).
    for pid in set(children(os.getpid())) - before:
        stat = read_stat(pid)
        if stat is not None and stat.session == os.getsid(0):
            os.waitpid(pid, 0)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def outcome(start, wait_all, tmp_path):
    """Run an entry in a gang and return its exit code, stdout and stderr."""

    def run(entry, template=None):
        gang = start(entry, tee=Std.NONE, cwd=str(tmp_path), template=template)
        code = wait_all(gang)[0].exit_code
        gang.close()
        [folder] = (tmp_path / "logs").glob("*/attempt_0/0")
        return code, (folder / "stdout.log").read_text(), (folder / "stderr.log").read_text()

    return run


@pytest.fixture(scope="module")
def template(long_lived):
    template = Template(["json", "multiprocessing", "tempfile"])
    long_lived.add(template.pid)
    assert template.wait_ready(240), template.why_not
    yield template
    template.close()


@pytest.fixture(params=["exec", "warm"])
def how(request):
    return request.getfixturevalue("template") if request.param == "warm" else None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_behaves_as_under_plain_python(outcome, script, tmp_path, how, name):
    path = script(PROGRAMS[name])

    expected = _plain([path, "--flag", "a b"], tmp_path)

    assert outcome(Script(path, ("--flag", "a b")), how) == expected


@pytest.mark.parametrize(
    "name", ["plain", "builtins", "original-arguments", "exception", "exit-code", "multiprocessing"]
)
def test_a_module_behaves_as_under_plain_python(outcome, script, tmp_path, how, name):
    script(PROGRAMS[name], "some_module.py")

    assert outcome(Module("some_module", ("x",)), how) == _plain(["-m", "some_module", "x"], tmp_path)


def test_a_package_runs_its_main(outcome, script, tmp_path, how):
    (tmp_path / "pack").mkdir()
    script("from . import part\nprint(__name__, __package__, part.__name__)", "pack/__main__.py")
    script("", "pack/__init__.py")
    script("", "pack/part.py")

    assert outcome(Module("pack"), how) == _plain(["-m", "pack"], tmp_path)


def test_a_folder_runs_its_main(outcome, script, tmp_path, how):
    (tmp_path / "folder").mkdir()
    script("import sys; print(__name__, sys.argv, sys.path[0])", "folder/__main__.py")

    assert outcome(Script("folder", ("x",)), how) == _plain(["folder", "x"], tmp_path)


@pytest.mark.parametrize("entry", [Script("missing.py"), Module("missing_module")])
def test_what_does_not_exist_is_reported_as_python_does(outcome, tmp_path, how, entry):
    argv = [entry.path] if isinstance(entry, Script) else ["-m", entry.name]

    assert outcome(entry, how) == _plain(argv, tmp_path)


def test_a_script_by_a_relative_path_and_a_link_finds_its_neighbours(outcome, script, tmp_path, how):
    (tmp_path / "real").mkdir()
    script("X = 5", "real/neighbour.py")
    script("import neighbour, sys; print(neighbour.X, sys.path[0], __file__)", "real/prog.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "prog.py")

    assert outcome(Script("link.py"), how) == _plain(["link.py"], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('bad')", "ValueError: bad"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('words')", "SystemExit: words"),
    ],
)
def test_the_error_file_is_left_without_a_decorator(start, script, wait_all, how, text, message):
    gang = start(script(text), template=how)
    wait_all(gang)

    content = json.loads(Path(gang.error_file(0)).read_text())["message"]

    assert content["message"] == message
    assert "bootstrap" not in content["extraInfo"]["py_callstack"]
    assert "template" not in content["extraInfo"]["py_callstack"]


def test_an_error_file_that_the_program_wrote_itself_stays(start, script, wait_all, how):
    gang = start(
        script("import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('mine'); 1 / 0"), template=how
    )
    wait_all(gang)

    assert Path(gang.error_file(0)).read_text() == "mine"


def test_the_bootstrap_imports_almost_nothing(script):
    listing = "import sys; print(len(sys.modules))"
    path = script(listing)
    plain = subprocess.run([sys.executable, path], capture_output=True, check=True, text=True)
    ours = subprocess.run(command_line(Script(path)), capture_output=True, check=True, text=True)

    assert int(ours.stdout) - int(plain.stdout) <= 1  # faulthandler


def test_programs_without_python_get_no_bootstrap():
    from holdfast.workers import Program

    assert command_line(Program(("ls", "-l"))) == ["ls", "-l"]


def test_the_interpreter_can_be_chosen(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")

    assert command_line(Script("x.py"))[0] == "/opt/python"
    assert Path(command_line(Script("x.py"))[2]).name == "bootstrap.py"
