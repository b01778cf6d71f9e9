"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(SOURCE.rglob("*.py"))

#: Modules are read in one sitting, functions fit a screen.
MODULE_LINES_MAX, FUNCTION_LINES_MAX = 600, 60
#: A component describes each of its many flags in its docstring.
LONG_FUNCTIONS = {"components/dist.py elastic"}

#: Imports against the order, each at first use and for its reason.
UPWARD = {
    ("errors", "compat"): "names of 0.1.0 in an `except` clause are looked up when an exception is on its way",
    ("agent", "compat"): "handlers and agents of others are served by adapters, once a user brings one",
    ("torch", "compat"): "torch's stores serve TorchElastic's rendezvous backend, once a launcher makes one",
    ("checkpoint", "torch"): "tensors are saved by the room that knows them, once a state holds one",
    ("train", "torch"): "`elastic` takes torch's states, once it is given one",
    ("runner", "components"): "a component is found by name when a user names one",
    ("components", "compat"): "component files may import torchx",
    ("workers", "compat"): "workers are asked by a variable to answer for the names of others",
    ("cli", "compat"): "plugins may import torchx; a flag asks for the other names",
}

#: What a pure module must not touch: clocks, sockets, processes, files, threads, logs, randomness of its own.
OUTSIDE = frozenset(
    [
        "asyncio",
        "ctypes",
        "datetime",
        "fcntl",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "psutil",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
    ]
)


def imports_of(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def is_pure(tree: ast.Module) -> bool:
    """A module says of itself that it is pure, in the first paragraph of its docstring; every machine.py is."""
    return "Pure." in (ast.get_docstring(tree) or "").split("\n\n")[0]


PURE = [path for path in MODULES if is_pure(ast.parse(path.read_text()))]


def test_every_machine_says_that_it_is_pure() -> None:
    machines = [path for path in MODULES if path.name == "machine.py" and path.parent != SOURCE]

    assert machines
    assert [path for path in machines if path not in PURE] == []


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_pure_module_imports_nothing_of_the_outside(path: Path) -> None:
    tree = ast.parse(path.read_text())
    pure = {str(each.relative_to(SOURCE.parent).with_suffix("")).replace("/", ".") for each in PURE}
    # Shared vocabulary without behaviour, and facts, which are only values to a machine.
    pure |= {"holdfast.machine", "holdfast.errors", "holdfast.facts", "holdfast.typed"}

    for name in imports_of(tree):
        assert name.partition(".")[0] not in OUTSIDE, f"{path.name} imports {name}"
        if name.startswith("holdfast"):
            inner = {other for other in pure if other == name or other.startswith(f"{name}.")}
            assert inner, f"{path.name} is pure but imports {name}, which is not"


#: Where decisions are made by machines: the modules that drive the outside world for them, and so see a clock.
DRIVERS = {
    "agent": {"driver.py", "link_watch.py", "local.py", "peer_calls.py"},
    "coordinator": {"driver.py", "query.py"},
    "rendezvous": {"driver.py", "etcd.py", "memory.py", "native.py"},
    "store": {"client.py", "etcd.py", "memory.py"},
    "train": {"neighbours.py", "replica_lines.py", "ring.py", "run.py", "trainer.py"},
}


@pytest.mark.parametrize("room", DRIVERS)
def test_only_drivers_look_at_a_clock(room: str) -> None:
    looking = {
        path.name
        for path in (SOURCE / room).glob("*.py")
        if {"time", "datetime"} & set(imports_of(ast.parse(path.read_text())))
        and re.search(r"\b(monotonic|perf_counter|time\.time|now)\(", path.read_text())
    }

    assert looking
    assert looking - DRIVERS[room] == set()


def stages_asked(tree: ast.AST) -> list[int]:
    """Return the lines in which something is read off a machine that says where it stands."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.strip("_") in ("stage", "state")
        and str(getattr(node.value, "attr", getattr(node.value, "id", ""))).endswith("machine")
    ]


#: They model drivers and look at the truth.
MODELS = ("sim", "forecast", "testing")


def test_a_driver_does_not_ask_where_its_machine_stands() -> None:
    """A machine answers with effects; a driver with an `if` on its stage would decide beside it."""
    asked = {
        str(path.relative_to(SOURCE)): lines
        for path in MODULES
        if path.relative_to(SOURCE).parts[0] not in MODELS and (lines := stages_asked(ast.parse(path.read_text())))
    }

    assert asked == {}
    assert stages_asked(ast.parse("if self._machine.stage is Stage.IDLE:\n    pass")) == [1]


#: Places in which names and values are those of others, or are drawn.
OTHERS = ("compat", "components", "demo", *MODELS)
#: Equal by chance, each for its reason.
EQUAL_BY_CHANCE = {
    "appear_s": "how long two unrelated files may take to appear",
    "grace_s": "a pod's and a gang's",
    "look_s": "each loop that must look has its own pace",
    "named_max": "how many names fit a line, for each sentence",
    "lost_after_s": "two schedulers decide it, each by how its cluster reports a lost node",
    "port_tries": "two schedulers",
    "request_bytes_max": "four protocols between processes of one host",
    "timeout_s": "how long one question may take, for each program and service that is asked",
    "end_timeout_s": "how long a job may take to end, for each scheduler",
    "tries_max": "a folder, and a file in it",
    "warm_up_beats": "a worker's own program imports `heartbeat`, which imports nothing",
}


def defaults_in(tree: ast.AST) -> Iterator[tuple[str, float]]:
    """Yield every name that a number other than 0, 1 and -1 is given to: constants, fields and parameters."""
    for node in ast.walk(tree):
        given: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            given = [(node.target.id, node.value)]
        elif isinstance(node, ast.Assign):
            given = [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
            given = [(name, value) for name, value in given if name.isupper()]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            given = [
                (arg.arg, value)
                for arg, value in [
                    *zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True),
                    *zip(node.kwonlyargs, node.kw_defaults, strict=True),
                ]
            ]
        for name, value in given:
            if isinstance(value, ast.Constant) and type(value.value) in (int, float) and abs(value.value) not in (0, 1):
                yield name.lower().strip("_"), float(value.value)


def test_a_default_stands_once() -> None:
    """A name with a unit has one value, in one module; the others import it."""
    places: dict[tuple[str, float], list[str]] = {}
    for path in MODULES:
        name = str(path.relative_to(SOURCE))
        if path.relative_to(SOURCE).parts[0] not in OTHERS:
            for default in dict.fromkeys(defaults_in(ast.parse(path.read_text()))):
                places.setdefault(default, []).append(name)

    repeated = {default: where for default, where in places.items() if len(where) > 1}
    assert ("shutdown_timeout_s", 30.0) in places
    assert [found for found in repeated.items() if found[0][0] not in EQUAL_BY_CHANCE] == []
    assert {name for name, _ in repeated} == set(EQUAL_BY_CHANCE), "what is not repeated needs no reason"
    assert dict(defaults_in(ast.parse("def f(a, lease_s=5.0): ...\nLEASE_S = 5.0"))) == {"lease_s": 5.0}


@pytest.mark.parametrize("room", ["agent", "launcher", "train", "torch"])
def test_handlers_are_known_by_what_they_can_do(room: str) -> None:
    """A handler of ours is known by the protocol of a source of rounds or of a meeting, never by its class."""
    for path in (SOURCE / room).glob("*.py"):
        assert "HoldfastRendezvousHandler" not in path.read_text(), path


def test_the_core_never_imports_torch_or_numpy() -> None:
    names = [
        str(path.relative_to(SOURCE.parent).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in MODULES
        if path.name != "__main__.py" and path.relative_to(SOURCE).parts[0] not in ("torch", "integrations")
    ]
    code = "\n".join(
        [
            "import sys",
            "class Block:",
            "    def find_spec(self, name, path=None, target=None):",
            "        if name.partition('.')[0] in ('torch', 'numpy', 'jax'):",
            "            raise AssertionError(f'the core imports {name}')",
            "sys.meta_path.insert(0, Block())",
            *[f"import {name}" for name in [*names, "holdfast.torch"]],
            "assert not {'torch', 'numpy'} & set(sys.modules)",
        ]
    )

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_no_pickle_on_any_wire() -> None:
    for path in MODULES:
        if path.relative_to(SOURCE).parts[0] in ("wire", "store", "coordinator", "rendezvous"):
            assert not {"pickle", "marshal", "shelve"} & set(imports_of(ast.parse(path.read_text()))), path


def rooms() -> list[str]:
    """The rooms in the order of docs/ARCHITECTURE.md: each stands on those above it."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    listing = text.partition("## Packages")[2].partition("```\n")[2].partition("```")[0]
    names = [line.split()[0] for line in listing.splitlines()[1:] if line.startswith("  ") and line[2] != " "]
    return [name.removesuffix("/").removesuffix(".py") for name in names]


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def crossings(path: Path) -> list[tuple[str, bool]]:
    """The modules of ours that a module imports, and whether it does so at once; not those it only names in types."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, at_once: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and child.module == "holdfast":
                found.extend((f"holdfast.{alias.name}", at_once) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                found.append((child.module, at_once))
            elif isinstance(child, ast.Import):
                found.extend((alias.name, at_once) for alias in child.names)
            visit(child, at_once and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(ast.parse(path.read_text()), at_once=True)
    return [(module, at_once) for module, at_once in found if module.startswith("holdfast.")]


def test_every_room_is_in_the_architecture_and_every_one_there_exists() -> None:
    present = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}

    assert set(rooms()) == present - {"__init__", "__main__"}


def test_a_room_imports_only_from_rooms_above_it() -> None:
    order = {room: number for number, room in enumerate(rooms())}
    wrong: list[str] = []
    for path in MODULES:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for module, at_once in crossings(path):
            other = room_of(module)
            if room not in order or other not in order or order[other] <= order[room]:
                continue
            if at_once or (room, other) not in UPWARD:
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}{' at once' if at_once else ''}")

    assert wrong == []


def test_modules_are_read_in_one_sitting_and_functions_fit_a_screen() -> None:
    long: list[str] = []
    for path in MODULES:
        text, name = path.read_text(), str(path.relative_to(SOURCE))
        if len(text.splitlines()) > MODULE_LINES_MAX:
            long.append(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX and f"{name} {node.name}" not in LONG_FUNCTIONS:
                    long.append(f"{name} {node.name}")

    assert long == []


def test_facts_have_kinds_of_one_form() -> None:
    kinds = [
        (path.name, node.args[0].value)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", "") in ("Fact", "News") or getattr(node.func, "attr", "") == "warn")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
        and " " not in node.args[0].value  # `warnings.warn` is another matter
    ]

    assert kinds
    assert [(name, kind) for name, kind in kinds if not re.fullmatch(r"[a-z]+(_[a-z]+)*", str(kind))] == []


def public_methods(path: Path) -> Iterator[tuple[type, str, str | None]]:
    """The methods of a module's public classes, each with its docstring."""
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for each in vars(import_module(name)).values():
        if not inspect.isclass(each) or each.__module__ != name or each.__name__.startswith("_"):
            continue
        for method, value in vars(each).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            code = getattr(function, "__code__", None)
            if code is not None and code.co_filename == str(path) and not method.startswith("_"):
                yield each, method, function.__doc__


#: What the modules of some packages import at once.
NEEDS = {"torch": ("torch",), "integrations": ("torch", "accelerate", "transformers", "lightning")}


def can_import(path: Path) -> bool:
    """Whether what a module needs is installed."""
    return all(find_spec(name) is not None for name in NEEDS.get(path.parent.name, ()))


def test_a_public_method_has_a_docstring_unless_it_overrides_one_that_has() -> None:
    paths = [path for path in MODULES if path.name != "__main__.py" and can_import(path)]
    missing = [
        f"{path.relative_to(SOURCE)} {owner.__name__}.{method}"
        for path in paths
        for owner, method, text in public_methods(path)
        if not text and not any(method in vars(base) for base in owner.__mro__[1:])
    ]

    assert missing == []


#: What a user or a reader of the code sees, and what is held to plain English: subject, verb, object, and the words of
#: the field.
PLAIN = (
    *(str(path.relative_to(ROOT)) for path in sorted(SOURCE.iterdir()) if path.is_dir() or path.suffix == ".py"),
    *("README.md", "CONTRIBUTING.md", "docs", "bench", "tests/compat/surface"),
)
#: Words that name no one, metaphors, and "who" without a noun before it ("who dies is replaced", "for who waits").
FOREIGN = re.compile(
    r"\b(?:whoever|whom|somebody|nobody|strangers?|porters?|desks?|crews?|party|guests?)\b"
    r"|(?:(?:^|[\"#(.;:|])\s*|\b(?:for|of|by|to|from|with|at|wakes|than) )who (?!in\b)[a-z]",
    re.IGNORECASE,
)


@pytest.mark.parametrize("place", [place for place in PLAIN if "__pycache__" not in place])
def test_prose_stays_plain(place: str) -> None:
    below = ROOT / place
    paths = [
        path
        for path in ([below] if below.is_file() else sorted(below.rglob("*")))
        if path.suffix in (".py", ".md", ".toml", ".json") and path.name not in ("torch.json", "torchx.json")
    ]

    assert paths
    assert [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:120]}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FOREIGN.search(line)
    ] == []


#: Exceptions that are no errors, each with its reason: they carry control flow and are caught in their own room.
NO_ERRORS = {
    "cli _NobodyReads": "the reader of a pipe has closed it",
    "cli.follow_job Interrupted": "Ctrl-C while a job is followed",
    "components.arguments _HelpWanted": "--help among the arguments of a component",
    "components.errors HelpRequested": "--help among the arguments of a component",
    "sim.violation Violation": "what the simulator is looking for; no program meets it",
    "sim.violation KnownLimit": "where a simulation ends, not an error",
    "workers.effects Ends": "the reader of a script's source knows no more",
}


def exceptions() -> Iterator[tuple[str, type[BaseException]]]:
    """Every exception class outside of `compat`, which has the names of others, by its room and name."""
    for path in MODULES:
        room = path.relative_to(SOURCE).parts[0]
        if room == "compat" or path.name == "__main__.py" or not can_import(path):
            continue
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for each in vars(import_module(name)).values():
            if inspect.isclass(each) and issubclass(each, BaseException) and each.__module__ == name:
                yield f"{name.removeprefix('holdfast.')} {each.__name__}", each


def test_every_exception_is_of_one_tree_and_is_called_an_error() -> None:
    from holdfast.errors import HoldfastError

    found = dict(exceptions())
    errors = {name: each for name, each in found.items() if name not in NO_ERRORS}

    assert len(errors) > 30
    assert set(NO_ERRORS) <= set(found)
    assert [name for name, each in errors.items() if not issubclass(each, HoldfastError)] == []
    assert [name for name in errors if not name.endswith("Error")] == []


def test_records_are_read_into_types_that_msgspec_has_learned() -> None:
    """Two threads that read the first record of a type at once crash the process: see `holdfast.typed`."""
    found, wrong = 0, []
    for path in MODULES:
        if "msgspec" not in (text := path.read_text()):
            continue
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if not (words := ast.unparse(call.func)).startswith("msgspec."):
                continue
            kinds = [each.value for each in call.keywords if each.arg == "type"]
            if words.endswith((".Decoder", ".convert")):
                kinds += call.args[words.endswith(".convert") :]
            found += len(kinds)
            wrong += [
                f"{path.relative_to(SOURCE)}: {ast.unparse(call)}"
                for kind in kinds
                if not ast.unparse(kind).startswith("learned(") and path.name != "typed.py"
            ]

    assert found > 20
    assert wrong == []
