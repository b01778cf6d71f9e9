"""What a module does when it is imported, as far as that can be told from its source. Pure.

The question: can another module, imported further down, be imported before this one runs? It cannot if code that
runs first can change anything that imports look at: the environment, the search path, the import system. `Reader` walks
through the statements in the order in which they run and raises `Ends` at the first that might:

- a call of a function that the program itself defines, or of an unknown one;
- a call into a library, except those that are known to leave all this alone;
- any use of the environment but reading it, or setting a variable that is known to be read late;
- any mention of `sys.path` and its like.

Definitions are harmless: nothing in them runs yet, apart from decorators, defaults and base classes, which are
checked. A name that is bound to one of the program's own functions or classes is *own*, and so are its results;
an expression with an own name in it must not call anything.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.workers.variables import is_late_variable


class Ends(Exception):
    """From here on the effects are unknown."""


@dataclass(frozen=True, slots=True)
class Library:
    """What a name stands for: something in a library, by its full name."""

    dotted: str


#: The other things that a name can stand for: one of the program's own functions, classes or modules; any other value.
OWN, VALUE = "own", "value"
Kind = Library | str

#: Builtins that run code, or reach objects that cannot be seen in the source.
_BUILTINS_REFUSED = frozenset(
    {"__import__", "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "input", "locals"}
    | {"setattr", "vars"}
)
#: Standard modules whose functions may change what imports look at, and what may be called there all the same.
_CAREFUL = frozenset(
    {"_thread", "atexit", "builtins", "code", "ctypes", "importlib", "os", "pkgutil", "posix", "runpy", "site", "sys"}
    | {"subprocess", "threading", "zipimport"}
)
_CALLED_FREELY = frozenset(
    {"os.cpu_count", "os.fspath", "os.getcwd", "os.getenv", "os.getenvb", "os.getpid", "os.getppid", "os.getuid"}
    | {"os.listdir", "os.makedirs", "os.mkdir", "os.sched_getaffinity", "os.stat", "os.uname", "os.urandom", "os.walk"}
    | {"sys.exit", "sys.getrecursionlimit", "sys.getsizeof", "sys.setrecursionlimit"}
    | {"threading.Event", "threading.Lock", "threading.RLock", "threading.local"}
)
_CALLED_FREELY_BELOW = ("os.path.", "sys.stdout.", "sys.stderr.", "importlib.metadata.", "importlib.resources.")
#: Modules that imports are made of.
_MACHINERY = frozenset(
    {"sys.path", "sys.modules", "sys.meta_path", "sys.path_hooks", "sys.path_importer_cache", "builtins.__import__"}
)
_ENVIRONMENT = frozenset(("os.environ", "os.environb"))
_ENVIRONMENT_NAMES = frozenset(("environ", "environb", "putenv", "unsetenv"))
_ENVIRONMENT_READERS = frozenset(("get", "copy", "items", "keys", "values", "__contains__", "__getitem__"))
_ENVIRONMENT_WRITERS = frozenset(("setdefault", "pop", "__setitem__", "__delitem__"))
#: Decorators that a property gives to its other halves.
_PROPERTY_HALVES = frozenset(("getter", "setter", "deleter"))

Import = ast.Import | ast.ImportFrom


@dataclass(slots=True)
class Reader:
    """Reads one module; `names` is what its names stand for so far.

    `on_import` is called for each import, with whether it certainly happens, and binds its names. `is_main` says
    whether the module runs as a script. `libraries` are the names of libraries, other than standard modules, all of
    whose functions may be called.
    """

    on_import: Callable[[Reader, Import, bool], None]
    libraries: frozenset[str]
    is_main: bool = False
    names: dict[str, Kind] = field(default_factory=dict)

    def run(self, body: list[ast.stmt], *, certain: bool = True) -> None:
        """Go through statements; raises `Ends` at one that may change what imports look at."""
        for statement in body:
            self._run_one(statement, certain)

    def _run_one(self, node: ast.stmt, certain: bool) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.on_import(self, node, certain)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define_function(node)
            case ast.ClassDef():
                self._define_class(node)
            case ast.If():
                self._branch(node, certain)
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter)
                self._bind(node.target, self._kind_of(node.iter))
                self._run_blocks(node.body, node.orelse)
            case ast.While():
                self._expression(node.test)
                self._run_blocks(node.body, node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, self._kind_of(item.context_expr))
                self.run(node.body, certain=certain)
            case ast.Try() | ast.TryStar():
                for handler in node.handlers:
                    if handler.type is not None:
                        self._expression(handler.type)
                    if handler.name:
                        self.names[handler.name] = VALUE
                self._run_blocks(node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody)
            case _:
                self._run_simple(node)

    def _run_simple(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                self._expression(node.value)
                for target in node.targets:
                    self._bind(target, self._kind_of(node.value))
            case ast.AnnAssign():
                self._expression(node.annotation)
                if node.value is not None:
                    self._expression(node.value)
                    self._bind(node.target, self._kind_of(node.value))
            case ast.AugAssign():
                self._expression(node.value)
                self._bind(node.target, self._kind_of(node.value))
            case ast.Delete():
                for target in node.targets:
                    self._bind(target, VALUE)
            case ast.Expr() | ast.Assert() | ast.Raise():
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._expression(child)
            case ast.Pass() | ast.Break() | ast.Continue() | ast.Global() | ast.Nonlocal():
                pass
            case _:  # match, and what later versions of Python bring
                raise Ends

    def _run_blocks(self, *blocks: list[ast.stmt]) -> None:
        for block in blocks:
            self.run(block, certain=False)

    def _branch(self, node: ast.If, certain: bool) -> None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            return self.run(node.orelse, certain=certain)
        if test.startswith("__name__ ==") and not self.is_main:
            return self.run(node.orelse, certain=certain)
        self._expression(node.test)
        return self._run_blocks(node.body, node.orelse)

    # -- definitions -------------------------------------------------------------------------------------------------

    def _define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._decorate(node.decorator_list)
        arguments = node.args
        annotations = [each.annotation for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        for each in (*arguments.defaults, *arguments.kw_defaults, *annotations, node.returns):
            if each is not None:
                self._expression(each)
        if node.name == "__getattr__":
            raise Ends  # of a module: it would run at any use of it
        self.names[node.name] = OWN

    def _define_class(self, node: ast.ClassDef) -> None:
        self._decorate(node.decorator_list)
        if node.keywords or any(self._kind_of(base) == OWN for base in node.bases):
            raise Ends  # the base may run code for its subclasses (`__init_subclass__`, metaclasses)
        for base in node.bases:
            self._expression(base)
        outer, self.names = self.names, dict(self.names)
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.run([each for each in node.body if each not in methods], certain=False)
        for method in methods:
            if method.name not in ("__getattr__", "__init_subclass__", "__set_name__"):
                self._define_function(method)
        self.names = outer
        self.names[node.name] = OWN

    def _decorate(self, decorators: list[ast.expr]) -> None:
        for each in decorators:
            if isinstance(each, ast.Attribute) and each.attr in _PROPERTY_HALVES:
                continue
            self._expression(each)
            self._check_callee(each)

    def _bind(self, target: ast.expr, kind: Kind) -> None:
        match target:
            case ast.Name():
                self.names[target.id] = kind
            case ast.Tuple() | ast.List():
                for each in target.elts:
                    self._bind(each, OWN if kind == OWN else VALUE)
            case ast.Starred():
                self._bind(target.value, kind)
            case _:
                self._expression(target)
                dotted = self._dotted(_root(target))
                in_library = dotted.partition(".")[0]
                if dotted and in_library not in self.libraries and not _is_environment_key(target, self._dotted):
                    raise Ends  # a standard module is changed

    # -- expressions -------------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> None:
        """Check every evaluated expression; functions in it (`lambda`) count as called."""
        inner = list(ast.walk(node))
        calls = [each for each in inner if isinstance(each, ast.Call)]
        if calls and self._kind_of(node) == OWN:
            raise Ends
        if any(isinstance(each, ast.Await | ast.Yield | ast.YieldFrom) for each in inner):
            raise Ends
        told = self._check_environment(inner)
        for each in inner:
            if isinstance(each, ast.Attribute | ast.Name):
                dotted = self._dotted(each)
                if dotted in _MACHINERY or (self._is_environment(each) and id(each) not in told):
                    raise Ends
        local = set(_bound_inside(inner))
        for call in calls:
            if id(call) not in told:
                self._check_callee(call.func, local)

    def _check_callee(self, node: ast.expr, local: set[str] | None = None) -> None:
        root = _root(node)
        if not isinstance(root, ast.Name) or root.id in (local or ()):
            return  # the method of some value
        kind = self.names.get(root.id)
        if kind is None:
            harmless = hasattr(builtins, root.id) and root.id not in _BUILTINS_REFUSED
        elif isinstance(kind, Library):
            direct = self._dotted(node)
            harmless = not direct or self._may_call(direct)
        else:
            harmless = kind != OWN
        if not harmless:
            raise Ends

    def _may_call(self, dotted: str) -> bool:
        top = dotted.partition(".")[0]
        if top in self.libraries or top not in _CAREFUL:
            return True
        return dotted in _CALLED_FREELY or dotted.startswith(_CALLED_FREELY_BELOW)

    def _check_environment(self, inner: list[ast.AST]) -> set[int]:
        """Return the ids of the mentions of the environment, and the calls of it, that do no harm; raises at others."""
        told: set[int] = set()
        for node in inner:
            if isinstance(node, ast.Subscript) and self._is_environment(node.value):
                if not isinstance(node.ctx, ast.Load) and not _is_late(node.slice):
                    raise Ends
                told.add(id(node.value))
            elif isinstance(node, ast.Compare):
                told.update(id(each) for each in node.comparators)
            elif isinstance(node, ast.Call):
                told.update(self._check_environment_call(node))
        return told

    def _check_environment_call(self, node: ast.Call) -> Iterator[int]:
        function = node.func
        if self._dotted(function) in ("os.putenv", "os.unsetenv"):
            if not node.args or not _is_late(node.args[0]):
                raise Ends
            yield from (id(node), id(function))
        elif isinstance(function, ast.Attribute) and self._is_environment(function.value):
            if function.attr == "update":
                harmless = all(map(_is_late, _updated_keys(node)))
            elif function.attr in _ENVIRONMENT_WRITERS:
                harmless = bool(node.args) and _is_late(node.args[0])
            else:
                harmless = function.attr in _ENVIRONMENT_READERS
            if not harmless:
                raise Ends
            yield from (id(node), id(function.value))
        elif isinstance(function, ast.Name) and function.id in ("dict", "len") and function.id not in self.names:
            yield from (id(each) for each in node.args)

    def _is_environment(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name) and node.id not in self.names:
            return node.id in _ENVIRONMENT_NAMES  # it may have come with a star
        return self._dotted(node) in _ENVIRONMENT

    def _dotted(self, node: ast.AST) -> str:
        """Return the full name of what this expression stands for in a library, or an empty string."""
        if isinstance(node, ast.Name):
            kind = self.names.get(node.id)
            return kind.dotted if isinstance(kind, Library) else ""
        if isinstance(node, ast.Attribute):
            below = self._dotted(node.value)
            return f"{below}.{node.attr}" if below else ""
        return ""

    def _kind_of(self, node: ast.expr) -> Kind:
        dotted = self._dotted(node)
        if dotted:
            return Library(dotted)
        names = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        return OWN if any(self.names.get(name) == OWN for name in names) else VALUE


def _root(node: ast.expr) -> ast.expr:
    """Return the first name of an expression: `a` of `a.b[c].d(e).f`."""
    while True:
        match node:
            case ast.Attribute() | ast.Subscript() | ast.Starred():
                node = node.value
            case ast.Call():
                node = node.func
            case _:
                return node


def _bound_inside(inner: list[ast.AST]) -> Iterator[str]:
    """Name what comprehensions, lambdas and `:=` bind inside an expression."""
    for node in inner:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _is_environment_key(target: ast.expr, dotted: Callable[[ast.AST], str]) -> bool:
    return isinstance(target, ast.Subscript) and dotted(target.value) in _ENVIRONMENT


def _is_late(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and is_late_variable(key.value)


def _updated_keys(call: ast.Call) -> Iterator[ast.expr]:
    """Return the keys that `environ.update(...)` sets; a name stands for unknown ones."""
    untold = ast.Name("untold")
    for each in call.args:
        if isinstance(each, ast.Dict):
            yield from (key or untold for key in each.keys)
        else:
            yield untold
    for keyword in call.keywords:
        yield ast.Constant(keyword.arg) if keyword.arg else untold


# -- afterwards ------------------------------------------------------------------------------------------------------


def sets_variables(tree: ast.Module, matters: Callable[[str], bool]) -> bool:
    """Whether a module, anywhere in it, sets a variable that matters, or an unknown one."""

    def harmful(key: ast.expr) -> bool:
        return not isinstance(key, ast.Constant) or (isinstance(key.value, str) and matters(key.value))

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if _last_name(node.value) in _ENVIRONMENT_NAMES and harmful(node.slice):
                return True
        elif isinstance(node, ast.Call):
            name, of = _last_name(node.func), node.func.value if isinstance(node.func, ast.Attribute) else None
            if name in ("load_dotenv", "read_dotenv"):
                return True
            if name in ("putenv", "unsetenv"):
                keys: list[ast.expr] = node.args[:1]
            elif of is None or _last_name(of) not in _ENVIRONMENT_NAMES:
                continue
            elif name in ("update", "clear", "popitem"):
                keys = list(_updated_keys(node)) if name == "update" else [ast.Name("untold")]
            else:
                keys = node.args[:1] if name in _ENVIRONMENT_WRITERS else []
            if any(map(harmful, keys)):
                return True
    return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
