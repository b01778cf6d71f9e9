"""Settings files: which one is read, what wins, and what a template of them says."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any
from unittest import mock

from torchx.runner.config import apply, dump, find_configs, get_config, get_configs, load, load_sections

HERE = Path.cwd()


def write(folder: str, text: str) -> str:
    (HERE / folder).mkdir(exist_ok=True)
    (HERE / folder / ".torchxconfig").write_text(text)
    return str(HERE / folder)


def short(paths: list[str]) -> list[str]:
    return [os.path.relpath(path, HERE) for path in paths]


def show() -> None:
    one = write(
        "one", "[local_cwd]\nlog_dir = first\n[component:a.b]\nx = 1\n[component:]\ny = 2\n[cli:run]\nworkspace = w\n"
    )
    two = write(
        "two",
        "[local_cwd]\nlog_dir = second\nprepend_cwd = True\nno_such_option = 3\n[component:a.b]\nx = 5\nz = None\n",
    )
    print(short(find_configs([one, two, "/nowhere"])), short(find_configs(["/nowhere"])))
    cfg: dict[str, Any] = {}
    apply("local_cwd", cfg, [one, two])
    print(sorted(cfg.items()))
    cfg = {"log_dir": "mine"}
    apply("local_cwd", cfg, [two, one])
    print(sorted(cfg.items()))
    print(load_sections("component", [one]), get_configs("cli", "run", [one]), get_config("cli", "run", "none", [one]))
    print(get_configs("component", "none", [one]), get_configs("component", "a.b", [one, two]))
    os.environ["TORCHXCONFIG"] = f"{two}/.torchxconfig"
    print(short(find_configs([one])), get_config("component", "a.b", "x", [one]))
    os.environ["TORCHXCONFIG"] = "/nowhere"
    for call in (lambda: find_configs([one]), lambda: apply("local_cwd", {}, [one])):
        try:
            call()
        except FileNotFoundError:
            print("FileNotFoundError")
    del os.environ["TORCHXCONFIG"]
    with mock.patch("torchx.runner.config.DEFAULT_CONFIG_DIRS", [one]):
        print(short(find_configs()), get_config("component", "a.b", "x"))
    try:
        apply_to_unknown()
    except ValueError:
        print("ValueError")


def apply_to_unknown() -> None:
    load("nowhere", io.StringIO("[nowhere]\nx = 1\n"), {})


def show_template() -> None:
    written = io.StringIO()
    dump(written, schedulers=["local_cwd"])
    text = written.getvalue()
    print([line for line in text.splitlines() if line.split(" ")[0] in ("[local_cwd]", "log_dir", "prepend_cwd")])
    cfg: dict[str, Any] = {}
    load("local_cwd", io.StringIO(text), cfg)
    print([(key, cfg[key]) for key in ("auto_set_cuda_visible_devices", "log_dir", "prepend_cwd")])


if __name__ == "__main__":
    show()
    show_template()
