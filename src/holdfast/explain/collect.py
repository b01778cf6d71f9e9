"""The messages of the package, found in its own source: what is raised, refused and warned of, and where. Pure.

A message is a template: text with `…` where a value goes. It is found

- in `raise SomeError(text)`, also where the text is a constant or the result of a function of the same module;
- in the constructors of our exceptions, which say the same each time;
- in `Rejected(text)`, which a coordinator answers a node, and in warnings: `warn(kind, text)`.

An exception that only passes on the words of another (`raise X(str(error))`) has no message of its own.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

#: What stands where a value goes.
HOLE = "…"
PREFIX = "hf-"
_CODE_CHARS = 5
#: Letters and digits that are not mistaken for each other.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
#: Exceptions of click that are messages about the command line.
_CLICK = frozenset({"BadParameter", "BadOptionUsage", "ClickException", "UsageError"})
_ROOT = "HoldfastError"
#: Raised to leave, not to say that something is wrong.
_NO_MESSAGES = frozenset({"HelpRequested"})
WARNING, REFUSAL = "warning", "refusal"
#: Holes that touch are one.
_HOLES = re.compile(f"{HOLE}[{HOLE}]+")
_DEPTH_MAX = 6
#: A template of nothing else has no words of its own.
_NO_WORDS = f"{HOLE} .;:,()'\n"


@dataclass(frozen=True, slots=True)
class Found:
    """One message: its template, what it is (an exception's name, `warning` or `refusal`), and where it is made."""

    text: str
    kind: str
    module: str
    line: int = 0

    @property
    def code(self) -> str:
        """A short name that stays the same as long as the words do."""
        return code_of(self.text)


@dataclass(slots=True)
class Module:
    """One parsed module: its nodes, what its names are bound to, and its functions."""

    tree: ast.Module
    nodes: list[ast.AST] = field(default_factory=list)
    bound: dict[str, list[ast.expr]] = field(default_factory=dict)
    functions: dict[str, list[ast.FunctionDef]] = field(default_factory=dict)
    #: The names that it imports from other modules of the package, with these modules' paths.
    imported: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Walk through the module once."""
        self.nodes = list(ast.walk(self.tree))
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.bound.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.NamedExpr):
                self.bound.setdefault(node.target.id, []).append(node.value)
            elif isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ImportFrom) and node.module:
                path = node.module.removeprefix("holdfast.").replace(".", "/") + ".py"
                self.imported |= {alias.asname or alias.name: path for alias in node.names}

    def returned(self, name: str) -> Iterator[ast.expr]:
        """Yield what the functions of a name return."""
        for function in self.functions.get(name, ()):
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield node.value


_EMPTY = Module(ast.Module([], []))


@dataclass(slots=True)
class Source:
    """The modules of the package, by their path below it."""

    modules: Mapping[str, Module]
    #: The classes of every module by name, each with the names of its bases and its definition.
    classes: dict[str, tuple[list[str], ast.ClassDef]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note every class."""
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, ([_name(base) for base in node.bases], node))

    def is_ours(self, name: str, depth: int = 0) -> bool:
        """Whether an exception is one of ours."""
        return name == _ROOT or (
            depth < _DEPTH_MAX and any(self.is_ours(base, depth + 1) for base in self.classes.get(name, ((), None))[0])
        )

    def roots(self, name: str, depth: int = 0) -> Iterator[str]:
        """Yield an exception's bases among our own, the nearest first."""
        yield name
        if depth < _DEPTH_MAX:
            for base in self.classes.get(name, ((), None))[0]:
                yield from self.roots(base, depth + 1)


def code_of(text: str) -> str:
    """Return the code of a template."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    letters = []
    for _ in range(_CODE_CHARS):
        number, place = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[place])
    return PREFIX + "".join(letters)


def matches(template: str, text: str) -> bool:
    """Whether a text is what a template became."""
    pattern = ".*?".join(re.escape(part) for part in " ".join(template.split()).split(HOLE))
    return re.fullmatch(pattern, " ".join(text.split()), re.DOTALL) is not None


def collect(source: Source) -> list[Found]:
    """Return every message of the package, each template of a module once."""
    found: dict[tuple[str, str], Found] = {}
    for name, module in source.modules.items():
        for node in module.nodes:
            for one in _of_node(source, name, module, node):
                found.setdefault((one.text, one.module), one)
    return list(found.values())


def unexplained(source: Source) -> list[str]:
    """Return the places where a message is made in a way that cannot be read from the source."""
    lost = []
    for name, module in source.modules.items():
        for node in module.nodes:
            call = _raised(source, node)
            if call is None or not call.args or _passes_on(call.args[0]):
                continue
            if not any(True for _ in _of_node(source, name, module, node)):
                lost.append(f"{name}:{call.lineno}: {ast.unparse(call)}")
    return lost


def raised_at(source: Source, module: str, line: int) -> list[Found]:
    """Return what may be raised by the statement at a line of a module."""
    for node in source.modules[module].nodes:
        if isinstance(node, ast.Raise) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return list(_of_node(source, module, source.modules[module], node))
    return []


# -- one node of the tree ----------------------------------------------------------------------------------------------


def _of_node(source: Source, name: str, module: Module, node: ast.AST) -> Iterator[Found]:
    call = _raised(source, node)
    if call is not None:
        kind = _name(call.func)
        texts = list(_own_words(source, kind))
        if not texts and call.args:
            texts = list(_templates(module, call.args[0])) or list(_made_elsewhere(source, module, call.args[0]))
        for text in texts:
            yield Found(text, kind, name, call.lineno)
        return
    told = _told(node)
    if told is not None:
        kind, argument = told
        texts = list(_templates(module, argument))
        if not texts:
            values = module.bound.get(argument.id, ()) if isinstance(argument, ast.Name) else (argument,)
            texts = [text for value in values for text in _made_elsewhere(source, module, value)]
        for text in texts:
            yield Found(text, kind, name, argument.lineno)


def _made_elsewhere(source: Source, user: Module, node: ast.expr) -> Iterator[str]:
    """Yield what a function of another module returns, or what a constant of another module becomes."""
    constant = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    home = source.modules.get(user.imported.get(called, ""))
    for module in (home,) if home is not None else source.modules.values():
        if isinstance(constant, ast.Name) and constant.id.isupper() and constant.id in module.bound:
            for value in module.bound[constant.id]:
                yield from (_filled(text) for text in _templates(module, value))
        elif isinstance(node, ast.Call):
            for value in module.returned(_name(node.func)):
                yield from _templates(module, value)


def _filled(template: str) -> str:
    """Return what `str.format` makes of a template."""
    return re.sub(r"\{[^}]*\}", HOLE, template)


def _raised(source: Source, node: ast.AST) -> ast.Call | None:
    """Return the call that makes the exception of a `raise`, if it is one of ours or a mistake in the command line."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        name = _name(node.exc.func)
        if (source.is_ours(name) or name in _CLICK) and name not in _NO_MESSAGES:
            return node.exc
    return None


def _told(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return what a coordinator refuses a node with, or what is warned of."""
    if not isinstance(node, ast.Call):
        return None
    name = _name(node.func)
    if name == "Rejected" and node.args:
        return REFUSAL, node.args[0]
    if (
        name == "warn"
        and len(node.args) > 1
        and isinstance(node.args[0], ast.Constant)
        and _is_kind(node.args[0].value)
    ):
        return WARNING, node.args[1]
    return None


def _is_kind(value: object) -> bool:
    """Whether this is the kind of a fact, and not the text of a Python warning."""
    return isinstance(value, str) and re.fullmatch(r"[a-z]+(_[a-z]+)*", value) is not None


def _own_words(source: Source, name: str) -> Iterator[str]:
    """Yield what an exception's constructor says by itself."""
    for each in source.roots(name):
        definition = source.classes.get(each, ((), None))[1]
        for node in ast.walk(definition) if definition is not None else ():
            if isinstance(node, ast.Call) and _name(node.func) == "__init__" and node.args and _is_text(node.args[0]):
                yield from _templates(_EMPTY, node.args[0])
                return


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp)


def _passes_on(argument: ast.expr) -> bool:
    """Whether an argument repeats the words of another: a variable, an attribute, `str(error)`, `x: error`."""
    if isinstance(argument, ast.BoolOp):
        return any(_passes_on(value) for value in argument.values)
    if isinstance(argument, ast.JoinedStr):  # "NAME: what it said"
        words = (part.value for part in argument.values if isinstance(part, ast.Constant))
        return not any(str(each).strip(_NO_WORDS) for each in words)
    is_text_of = isinstance(argument, ast.Call) and _name(argument.func) in ("str", "join")
    is_number = isinstance(argument, ast.Constant) and not isinstance(argument.value, str)
    return is_text_of or is_number or isinstance(argument, ast.Name | ast.Attribute | ast.Subscript)


def _templates(module: Module, node: ast.expr, depth: int = 0) -> Iterator[str]:
    """Yield the templates that an expression may become."""
    if depth > _DEPTH_MAX:
        return
    for text in _parts(module, node, depth):
        text = _HOLES.sub(HOLE, text)
        if text.strip(_NO_WORDS):
            yield text


def _parts(module: Module, node: ast.expr, depth: int) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr():
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
        case ast.BinOp(op=ast.Add()):
            for left in [*_parts(module, node.left, depth)] or [HOLE]:
                for right in [*_parts(module, node.right, depth)] or [HOLE]:
                    yield left + right
        case ast.IfExp():
            yield from _templates(module, node.body, depth + 1)
            yield from _templates(module, node.orelse, depth + 1)
        case ast.BoolOp():
            for value in node.values:
                yield from _templates(module, value, depth + 1)
        case ast.Name():
            for value in module.bound.get(node.id, ()):
                yield from _templates(module, value, depth + 1)
        case ast.Call(func=ast.Attribute(attr="format", value=value)):
            yield from (_filled(text) for text in _templates(module, value, depth + 1))
        case ast.Call():
            for value in module.returned(_name(node.func)):
                yield from _templates(module, value, depth + 1)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
