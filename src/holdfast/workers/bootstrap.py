"""The bootstrap: runs a Python script or module as `python` itself would, and records how it ends.

Started by its path (`python -u .../bootstrap.py script train.py --lr 1`), so that nothing else of ours is
imported. The user's program sees what it would see without us: `__main__`, `sys.argv`, `sys.path[0]`,
tracebacks without frames of ours, exit codes, atexit. We add three things: an uncaught exception or a non-zero
`SystemExit` is left in the error file (torchrun's format), a fatal signal prints the Python stacks (to
the file named by `HOLDFAST_FAULT_FILE`, or to stderr), and one signal that programs hardly use makes the worker
write them to the file named by `HOLDFAST_STACKS_FILE` and continue, so that its agent can say where it hangs.

Where the agent was asked for it, the names of others (`torch.distributed.elastic`, `torchx`) lead to ours before the
program begins. A warm worker runs through `run` too, after its fork.
"""
# This file imports as little as possible: every millisecond here is paid by every worker.
# ruff: noqa: PTH100, PTH110, PTH112, PTH118, PTH120, PTH123

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import IO

FAULT_FILE_VARIABLE = "HOLDFAST_FAULT_FILE"
STACKS_FILE_VARIABLE = "HOLDFAST_STACKS_FILE"
#: The real-time signal that asks for stacks: far from those that C libraries, debuggers and valgrind take.
STACKS_SIGNAL = 59
ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
#: Names the families of names that lead to ours, see `holdfast.compat`.
COMPAT_VARIABLE = "HOLDFAST_COMPAT"

_HERE = os.path.abspath(__file__)
#: Files whose frames are cut off the top of tracebacks.
_OURS = {_HERE, os.path.join(os.path.dirname(_HERE), "template.py")}

# Kept open: faulthandler writes to their descriptors.
_fault_file: "IO[str] | None" = None
_stacks_file: "IO[str] | None" = None


def run(kind: str, target: str, args: list[str]) -> None:
    """Become `python -u target args` (kind `script`) or `python -u -m target args` (kind `module`)."""
    prepare()
    execute(kind, target, args)


def prepare() -> None:
    """Set up our additions to a plain Python process, before the program begins."""
    watch_faults()
    lead_names(os.environ.get(COMPAT_VARIABLE, ""))


def execute(kind: str, target: str, args: list[str]) -> None:
    """Run the program and record how it ends."""
    main = _fresh_main()
    try:
        if kind == "module":
            _run_module(target, args)
        else:
            _run_script(main, target, args)
    except SystemExit as ending:
        if ending.code not in (None, 0):
            record(ending)
        raise
    except BaseException as error:
        record(error, printed=sys.excepthook is sys.__excepthook__ and sys.stderr is sys.__stderr__)
        _print_as_python_does(error)
        raise  # silently: the interpreter now ends as it does after any uncaught exception


def watch_faults() -> None:
    """Make fatal signals print the Python stacks, unless faulthandler is on already, and write them when asked."""
    global _fault_file
    import faulthandler

    _answer_for_stacks()
    if faulthandler.is_enabled():
        return
    try:
        path = os.environ.get(FAULT_FILE_VARIABLE)
        if path:
            _fault_file = open(path, "a")  # noqa: SIM115
            faulthandler.enable(_fault_file)
        else:
            faulthandler.enable()
    except (OSError, ValueError, RuntimeError, AttributeError):
        pass  # stderr is closed or is no file; the program can run without


def _answer_for_stacks() -> None:
    """Have the agent's signal write the stacks of all threads; it runs in C, whatever the program is stuck in."""
    global _stacks_file
    import faulthandler

    path = os.environ.get(STACKS_FILE_VARIABLE)
    if not path:
        return
    try:
        _stacks_file = open(path, "a")  # noqa: SIM115
        faulthandler.register(STACKS_SIGNAL, _stacks_file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError, AttributeError):
        pass  # the program can run without


def lead_names(families: str) -> None:
    """Make the names of other packages mean ours, if that was asked for."""
    if families:
        from holdfast.compat import install_from_environment

        install_from_environment(families)


def record(error: BaseException, printed: bool = False) -> None:
    """Leave the error file for `error`, unless this program has already left one.

    `printed` says that Python prints the traceback on stderr too; a report on the same screen then leaves it out.
    """
    error.__traceback__ = _without_ours(error.__traceback__)
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if not path:
        return
    try:
        writer = _load_errorfile()
        if not os.path.exists(path):
            writer.record(error, path, printed=printed)
        elif printed:
            writer.mark_printed(path)
    except Exception:  # noqa: BLE001, S110 - the user's own error matters more than ours
        pass


def _run_script(main: "ModuleType", path: str, args: list[str]) -> None:
    sys.argv = [path, *args]
    sys.orig_argv = [sys.executable, "-u", path, *args]
    full = os.path.abspath(path)
    try:
        # A folder raises here as it should not: Python runs the __main__.py in it.
        data = b"PK\3\4" if os.path.isdir(path) else _read(path)
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {full!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    if data.startswith(b"PK\3\4"):
        import runpy

        sys.path.insert(0, full)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    loader = type(globals()["__loader__"])("__main__", full)  # as our own: this file is a script too
    main.__dict__.update(__file__=full, __cached__=None, __loader__=loader)
    if path.endswith(".pyc"):
        import marshal

        exec(marshal.loads(data[16:]), main.__dict__)
    else:
        exec(compile(data, full, "exec", dont_inherit=True), main.__dict__)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _run_module(name: str, args: list[str]) -> None:
    import runpy

    sys.argv = ["-m", *args]
    sys.orig_argv = [sys.executable, "-u", "-m", name, *args]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _fresh_main() -> "ModuleType":
    """Put an empty `__main__` in the place of ours."""
    main = type(sys)("__main__")
    # The module itself, as in any script: `__builtins__` of a module that is not `__main__`, ours, is its dictionary.
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    return main


def _print_as_python_does(error: BaseException) -> None:
    """Call the hook that prints uncaught exceptions, and silence it for the interpreter's own turn."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as broken:  # noqa: BLE001 - the hook is the user's code
        broken.__context__ = None  # Python calls the hook when the first exception is no longer being handled
        broken.__traceback__ = _without_ours(broken.__traceback__)
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(broken), broken, broken.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    sys.excepthook = lambda *_: None


def _without_ours(traceback: "TracebackType | None") -> "TracebackType | None":
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OURS:
        traceback = traceback.tb_next
    return traceback


def _load_errorfile() -> "ModuleType":
    """Load the error file's writer by its path: the user's sys.path may not lead to us."""
    path = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "failures", "errorfile.py")
    name = "_holdfast_errorfile"
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses look their module up
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)
    return module


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # our own folder; the program gets its own
    run(sys.argv[1], sys.argv[2], sys.argv[3:])
