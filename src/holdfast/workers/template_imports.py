"""The template's imports, and their side effects that its workers must know about.

Loaded by its path into the template (see `template.py`), so it imports nothing of ours. While the modules are imported
this records:

- which environment variables Python code reads, and which it changes: a worker whose environment differs in one of
  them would have been imported otherwise, and is not forked (`Template.differs`);
- what is printed, which every worker then prints too, as it would after importing the modules itself;
- generators of random numbers that were seeded from the operating system: they are seeded again in each worker.

Some modules cannot be shared by a fork. `problem` then says why, and workers are started cold:

- a module that leaves threads, processes or an open GPU;
- a module that draws from a process-wide generator or seeds it: a cold worker would have seeded it in its own process,
  and which of the two happened cannot be told;
- a module that keeps a copy of the whole environment, which has no RANK. To go through the environment and keep
  nothing of it, as many modules do to find variables that begin with their name, is harmless if a worker differs in
  nothing but what every worker has of its own.
"""
# This file is run by its path and imports only what every Python program may have loaded anyway.
# ruff: noqa: PTH100, PTH115, PTH116, PTH117, PTH120, PTH123, PTH208

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
import threading
import time
import warnings
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

#: What these import only at first use, which would cost every worker a second.
LAZY = {
    "torch": (
        "torch.distributed",
        "torch.nn.parallel.distributed",
        "torch.optim",
        "torch.utils.data",
        "torch._dynamo",
    ),
    "holdfast": ("holdfast.train.membership", "holdfast.train.run", "holdfast.checkpoint"),
}
#: The same for a pair of them.
LAZY_BESIDE = {("torch", "holdfast"): ("holdfast.torch.run", "holdfast.torch.ddp")}

#: Variables that many modules read each time that they need them.
GENERAL = frozenset(
    {"HOME", "LNAME", "LOGNAME", "PATH", "TEMP", "TMP", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "USER", "USERNAME"}
)

#: How much of what the imports print is shown by each worker.
OUTPUT_BYTES_MAX = 64 * 1024
CHANGED_MAX = 3


# -- random numbers ------------------------------------------------------------------------------------------


def _numpy_state(numpy_random: Any) -> object:
    name, keys, *rest = numpy_random.get_state()
    return (name, keys.tobytes(), *rest)


#: Modules with a process-wide generator that they seed from the operating system when they are loaded: how to read its
#: state, and how to seed it so again. torch makes its generators of CUDA and other devices at first use, in the worker.
GENERATORS: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "random": (lambda module: module.getstate(), lambda module: module.seed()),
    "numpy.random.mtrand": (_numpy_state, lambda module: module.seed()),
    # Not torch.seed(), which would also leave a seed for the GPUs.
    "torch": (
        lambda module: module.default_generator.get_state().tolist(),
        lambda module: module.default_generator.seed(),
    ),
}


class Generators:
    """Follows the process-wide generators, and those that modules make without a seed, through the imports."""

    def __init__(self) -> None:
        self._fresh: dict[str, object] = {}
        self._unseeded: weakref.WeakSet[random.Random] = weakref.WeakSet()
        self._entropy: set[int] = set()  # what numpy has seeded generators with that were given no seed
        self._unseeded_numpy: list[Any] = []
        self._restore_numpy: Callable[[], None] = lambda: None
        self._wanted = set(GENERATORS)
        for name in sorted(self._wanted & set(sys.modules)):
            self._note_loaded(name)

    def watch(self) -> Callable[[], None]:
        """Begin to follow; returns how to end it."""
        seed = random.Random.seed

        def noting(each: random.Random, a: Any = None, version: int = 2) -> None:
            (self._unseeded.add if a is None else self._unseeded.discard)(each)
            seed(each, a, version)

        random.Random.seed = noting  # type: ignore[assignment, method-assign]
        sys.meta_path.insert(0, self)

        def end() -> None:
            random.Random.seed = seed  # type: ignore[method-assign]
            sys.meta_path.remove(self)
            self._find_unseeded_numpy()

        return end

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Have a module with a generator report when it is loaded; Python's own finders find it."""
        if name not in self._wanted:
            return None
        self._wanted.discard(name)
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self._note_loaded(name, module)

            loader.exec_module = exec_module
        return spec

    def _note_loaded(self, name: str, module: ModuleType | None = None) -> None:
        self._wanted.discard(name)
        read, _ = GENERATORS[name]
        self._fresh[name] = read(module or sys.modules[name])
        if name == "numpy.random.mtrand":
            self._watch_numpy()

    def _watch_numpy(self) -> None:
        """Note what numpy seeds generators with that get no seed: the only way to know them from seeded ones."""
        module: Any = sys.modules.get("numpy.random.bit_generator")
        draw = getattr(module, "randbits", None)
        if draw is None:  # another version of numpy
            return

        def noting(bits: int) -> int:
            drawn = int(draw(bits))
            self._entropy.add(drawn)
            return drawn

        module.randbits = noting
        self._restore_numpy = lambda: setattr(module, "randbits", draw)

    def _find_unseeded_numpy(self) -> None:
        """Find the generators that live; now, since what is frozen later is not listed any more."""
        self._restore_numpy()
        if not self._entropy:
            return
        module: Any = sys.modules["numpy.random.bit_generator"]
        for each in gc.get_objects():
            if isinstance(each, module.BitGenerator):
                seeds = getattr(each, "seed_seq", None)
                if getattr(seeds, "entropy", None) in self._entropy:
                    self._unseeded_numpy.append(each)

    def used(self) -> list[str]:
        """Name the modules whose process-wide generator is no longer as it was when they were loaded."""
        return [name for name, state in self._fresh.items() if GENERATORS[name][0](sys.modules[name]) != state]

    def reseed(self) -> None:
        """In a worker: seed them all as they are seeded when a process loads them."""
        for name in self._fresh:
            GENERATORS[name][1](sys.modules[name])
        for each in list(self._unseeded):
            each.seed()
        for each in self._unseeded_numpy:
            each.__init__()  # seeds it, and the generators that will be spawned from it


# -- the environment -----------------------------------------------------------------------------------------


class _Walked(str):
    """A name or a value that was handed out while the whole environment was gone through: it can be seen to be kept."""


class _Reads(type(os.environ)):  # type: ignore[misc]
    """`os.environ` while it is watched: the same object with another class."""

    names: set[str]
    walked: list[weakref.ref[_Walked]]

    def __getitem__(self, key: str) -> str:
        if isinstance(key, _Walked):
            return self._hand_out(str(super().__getitem__(str(key))))
        if isinstance(key, str):  # the standard library tries bytes too
            type(self).names.add(key)
        return str(super().__getitem__(key))

    def __iter__(self) -> Iterator[str]:
        return map(self._hand_out, super().__iter__())

    def _hand_out(self, text: str) -> str:
        handed = _Walked(text)
        type(self).walked.append(weakref.ref(handed))
        return handed

    @classmethod
    def kept(cls) -> int:
        """Count what was handed out and is still held: a copy holds a name or a value of each variable."""
        gc.collect()
        return sum(each() is not None for each in cls.walked)


# -- the imports ---------------------------------------------------------------------------------------------


class Imports:
    """What the template has imported, once `run` is over."""

    def __init__(self, at_start: frozenset[str]) -> None:
        self._at_start = at_start
        self.problem = ""  #: why this process cannot be forked, or an empty string
        self.seconds = 0.0
        self.reads: set[str] = set()  #: variables that Python code has looked at
        self.walked = False  #: whether it has gone through all of them
        self.early: set[str] = set()  #: those of them that only what is imported at first use has looked at
        self.changes: dict[str, str | None] = {}  #: what the modules have made of variables; None has removed one
        self.generators = Generators()
        self.output: tuple[bytes, bytes] = (b"", b"")  #: what was printed to stdout and stderr
        self._files: dict[str, tuple[int, int] | None] = {}  # time and size of each; None where it changed meanwhile

    def run(self, modules: list[str]) -> None:
        """Import the modules, and what they would import at first use."""
        began, before = time.monotonic(), dict(os.environ)
        began_ns = time.time_ns()
        plain = type(os.environ)
        _Reads.names, _Reads.walked = set(), []
        unwatch = self.generators.watch()
        os.environ.__class__ = _Reads
        try:
            self.problem = _import(modules)
            # A program that has imported torch has not imported what torch does at first use, so what that does to the
            # environment is left out.
            os.environ.__class__ = plain
            self.changes = _difference(before, dict(os.environ))
            os.environ.__class__ = _Reads
            first = set(_Reads.names)
            if not self.problem:
                _import_lazy(modules)
            self.early = _Reads.names - first - GENERAL
        finally:
            os.environ.__class__ = plain
            unwatch()
        self.reads = {name for name in _Reads.names if not name.startswith("HOLDFAST_")} | set(self.changes)
        self.walked = bool(_Reads.walked)
        self.problem = self.problem or self._unshareable(", ".join(modules)) or _spoiled(", ".join(modules))
        self.output = (_printed(1), _printed(2))
        self._files = {path: found if found is None or found[0] < began_ns else None for path, found in _loaded()}
        self.seconds = time.monotonic() - began

    def changed(self) -> list[str]:
        """Name some of the files of loaded modules that are not as they were when they were imported."""
        return [path for path, found in self._files.items() if found is None or _stat(path) != found][:CHANGED_MAX]

    def _unshareable(self, names: str) -> str:
        used = self.generators.used()
        if used:
            return f"importing {names} draws from or seeds the generator of {', '.join(used)}"
        # Some loops leave their last variables behind, and some modules keep the few that begin with their name.
        if self.walked and _Reads.kept() > len(os.environ) // 2:
            return f"importing {names} keeps a copy of the environment, which is each worker's own"
        return ""

    def shadowable(self) -> dict[str, str]:
        """Return the folders of loaded modules that a script's own folder could replace in a process of its own.

        Python looks for what is built into it before it looks into folders, and what it has loaded before the script
        begins is never looked for again.
        """
        tops = {name.partition(".")[0] for name in sys.modules} - {name.partition(".")[0] for name in self._at_start}
        found = {}
        for name in sorted(tops):
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is None or spec.origin in ("built-in", "frozen"):
                continue
            file = os.path.abspath(spec.origin) if spec.has_location and spec.origin else ""
            if spec.submodule_search_locations is not None:
                file = os.path.dirname(file)
            found[name] = os.path.realpath(os.path.dirname(file)) if file else ""
        return found


def _loaded() -> Iterator[tuple[str, tuple[int, int] | None]]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):
            yield path, _stat(path)


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _import(modules: list[str]) -> str:
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may even exit
            return f"importing {name} failed: {type(error).__name__}: {error}"
    return ""


def _import_lazy(modules: list[str]) -> None:
    lazy = [each for name in modules for each in LAZY.get(name, ())]
    lazy += [each for names, beside in LAZY_BESIDE.items() if set(names) <= set(modules) for each in beside]
    for name in lazy:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - another version of the library may not have it
            continue


def _difference(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    names = sorted({*before, *after})
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def _printed(fd: int) -> bytes:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        return os.pread(fd, OUTPUT_BYTES_MAX, 0)
    except OSError:
        return b""


# -- what a fork would break ---------------------------------------------------------------------------------


def _spoiled(names: str) -> str:
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        return f"importing {names} left threads running ({', '.join(threads)}), which a fork would lose"
    if _holds_device():
        return f"importing {names} opened a GPU, which cannot be used after a fork"
    # Some pools (OpenBLAS) know about forks: they end their threads before one and begin anew after it. And only a
    # fork can tell which devices torch refuses to use in one.
    refused = _devices_refused_after_fork()
    if refused:
        return f"importing {names} initialised {refused}, which cannot be used after a fork"
    left = _native_threads() - 1
    if left:
        return f"importing {names} left {left} native threads that do not survive a fork"
    if any(_read(f"/proc/self/task/{task}/children") for task in os.listdir("/proc/self/task")):
        return f"importing {names} started other processes"
    return ""


def _devices_refused_after_fork() -> str:
    torch: Any = sys.modules.get("torch")
    checks = {}
    for name in ("cuda", "xpu", "mtia"):
        check = getattr(getattr(torch, name, None), "_is_in_bad_fork", None)
        if check is not None:
            checks[name] = check
    pid = fork()
    if pid == 0:
        code = 0
        for number, check in enumerate(checks.values(), 1):
            try:
                code = code or (number if check() else 0)
            except Exception:  # noqa: BLE001, S112 - another version of torch may want something else
                continue
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return (["", *checks][code]).upper() if 0 <= code <= len(checks) else ""


def fork() -> int:
    """Fork, without Python's warning about threads: we have looked at them ourselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _holds_device() -> bool:
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            continue
    return False
