"""Components: how they are found, checked and called, and what the builtin ones make."""

import os
import runpy
from pathlib import Path
from typing import Any, Dict, List, Optional

from torchx.components import dist
from torchx.specs import AppDef, Role, parse_mounts
from torchx.specs.builders import materialize_appdef
from torchx.specs.file_linter import get_fn_docstring, validate
from torchx.specs.finder import CustomComponentsFinder, get_builtin_source, get_component, get_components
from torchx.util.types import decode_from_string, to_dict, to_list

HERE = Path.cwd()

MINE = '''
from typing import Any, Dict, List, Optional
from torchx.specs import AppDef, Role

def mine(*args: str, n: int = 1, env: Optional[Dict[str, str]] = None, tags: List[str] = []) -> AppDef:
    """Mine.

    Args:
        args: what it is given
        n: how many
        env: variables
        tags: words
    """
    return AppDef("mine", [Role("r", "i", entrypoint="x", args=list(args), num_replicas=n, env=env or {})])

def needs(name: str) -> AppDef:
    """Needs a name."""
    return AppDef(name, [Role("r", "i")])

def untyped(name) -> AppDef:
    return AppDef(name, [Role("r", "i")])

def _private(name: str) -> AppDef:
    return AppDef(name, [Role("r", "i")])
'''


def raises(kind: type[BaseException], call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        return f"returned {call(*args, **kwargs)!r}"
    except kind:
        return "raised"  # our class may have another name than theirs


def component(
    *args: str,
    n: int = 1,
    rate: float = 0.5,
    on: bool = False,
    env: Optional[Dict[str, str]] = None,
    tags: List[str] = [],
) -> AppDef:
    """A component.

    Args:
        args: the rest
        n: a number
        rate: another
        on: whether
        env: variables
        tags: words
    """
    name = f"{n} {rate} {on} {sorted((env or {}).items())} {tags}"
    return AppDef(name, [Role("r", "i", entrypoint="x", args=list(args))])


def show_calls() -> None:
    for words in ([], ["--n", "3", "--on", "true", "--env", "A=1,B=2", "--tags", "x,y", "a", "b"], ["--", "--n", "5"]):
        made = materialize_appdef(component, words)
        print(made.name, made.roles[0].args)
    made = materialize_appdef(component, [], {"args": "a b", "n": "4", "no_such": "5", "on": "True"})
    print(made.name, made.roles[0].args)
    made = materialize_appdef(component, ["c"], {"args": "a b"})
    print(made.roles[0].args)

    def needs(name: str) -> AppDef:
        """Needs a name."""
        return AppDef(name)

    print(
        raises(SystemExit, materialize_appdef, needs, []),
        raises(SystemExit, materialize_appdef, component, ["--no", "1"]),
    )


def show_finding() -> None:
    (HERE / "mine.py").write_text(MINE)
    found = CustomComponentsFinder("mine.py", "mine").find()
    print([(each.name, each.fn_name, each.description, each.validation_errors) for each in found])
    print(get_component("mine.py:mine").fn_name, get_component("utils.echo").name, "dist.ddp" in get_components())
    from torchx.specs.finder import ComponentNotFoundException, ComponentValidationException

    for name in ("mine.py:none", "utils.none"):
        print(raises(ComponentNotFoundException, get_component, name))
    print(raises(ComponentValidationException, get_component, "mine.py:untyped"))
    source = get_builtin_source("utils.echo")
    (HERE / "copied.py").write_text(source)
    print(runpy.run_path("copied.py")["echo"]("hi", image="i").roles[0].args)


def show_checks() -> None:
    for function in ("mine", "untyped", "none"):
        print(function, [each.name for each in validate("mine.py", function)])
    (HERE / "broken.py").write_text("def f(:\n")
    (HERE / "other.py").write_text("def f(a: object) -> int:\n    return 1\n")
    print(len(validate("broken.py", "f")) > 0, len(validate("other.py", "f")) > 0)
    summary, arguments = get_fn_docstring(component)
    print(summary, sorted(arguments.items()))


def show_values() -> None:
    print(
        to_dict("FOO=v1"),
        to_dict("FOO=v1,v2"),
        to_dict("FOO=v1,BAR=v2"),
        to_dict("FOO=v1,BAR=v2;"),
        to_dict("FOO='a,b=c',B=1"),
    )
    print(raises(ValueError, to_dict, "FOO="), raises(ValueError, to_dict, "FOO"), to_dict(""))
    print(to_list("a,b"), to_list(""), decode_from_string("a,b", List[str]), decode_from_string("A=1", Dict[str, str]))
    print(raises(ValueError, decode_from_string, "a", List[List[str]]))
    print(parse_mounts(["type=bind", "src=/a", "dst=/b", "readonly"]), parse_mounts(["type=volume", "src=a", "dst=/b"]))
    print(raises(KeyError, parse_mounts, ["type=bind", "dst=/b"]), raises(KeyError, parse_mounts, ["src=/b"]))


def words(app: AppDef) -> str:
    role = app.roles[0]
    return " ".join([role.entrypoint, *role.args]).replace("python -m torch.distributed.run", "torchrun")


def show_dist() -> None:
    one = dist.ddp(script="main.py", image="i", j="1x2")
    two = dist.ddp(script="main.py", image="i", j="2x2", rdzv_backend="static", rdzv_port=1234, max_retries=3)
    for app in (one, two):
        role = app.roles[0]
        print(app.name, role.name, role.num_replicas, role.max_retries, role.port_map)
        print(role.env["TORCHX_TRACKING_EXPERIMENT_NAME"])
    static = words(two)
    for text in ("--rdzv_backend static", "1234", "--node_rank", "--nnodes 2", "--rdzv_endpoint"):
        print(text, text in static.replace("-", "_").replace("__", "--") or text in static)
    for app in (
        dist.spmd(script="main.py", image="i", j="1x1"),
        dist.spmd(name="exp/run", script="main.py", image="i", j="1x1"),
    ):
        print(app.name, app.roles[0].env.get("TORCHX_TRACKING_EXPERIMENT_NAME"))
    print(dist.ddp(script="main.py", image="i", env={"A": "1"}, name="exp/run", j="1x1").name)


if __name__ == "__main__":
    os.environ.pop("TORCHXCONFIG", None)
    show_calls()
    show_finding()
    show_checks()
    show_values()
    show_dist()
