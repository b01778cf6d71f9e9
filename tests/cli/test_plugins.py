"""A package of another author, written for TorchX, installed into a fresh environment and used by the real command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parent.parent / "plugin_sample"

pytest.importorskip("setuptools", reason="builds the sample package")


class Project:
    """A fresh environment with Holdfast in it, and the sample package once it is installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "project"
        shutil.copytree(SAMPLE, self.source)
        # Ours and what it needs come from the environment of the tests: nothing is downloaded.
        venv.create(root / "venv", with_pip=False)
        site = next((root / "venv").glob("lib/python*/site-packages"))
        parent = sysconfig.get_path("purelib")
        (site / "holdfast.pth").write_text(f"import site; site.addsitedir({parent!r})\n")
        command = root / "venv" / "bin" / "holdfast"
        command.write_text(f"#!{self.python}\nfrom holdfast.cli import main\nmain()\n")
        command.chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": f"{root / 'venv' / 'bin'}:{os.environ['PATH']}",
            "HOME": str(root),
            "HOLDFAST_HOME": str(root / "state"),
            "MY_JOBS": str(root / "jobs.json"),
        }

    @property
    def python(self) -> Path:
        return self.root / "venv" / "bin" / "python"

    def set_components(self, *entries: str) -> None:
        """Write the component entry points into setup.py."""
        path = self.source / "setup.py"
        listed = "".join(f'            "{entry}",\n' for entry in entries)
        group = f'    entry_points={{\n        "torchx.components": [\n{listed}        ],\n'
        path.write_text(path.read_text().replace("    entry_points={\n", group))

    def install(self) -> None:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", str(self.python), "install"),
                *("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"),
                str(self.source),
            ],
            check=True,
            capture_output=True,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of the environment."""
        return subprocess.run(
            [str(self.root / "venv" / "bin" / words[0]), *words[1:]],
            env=self.environ,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )


Make = Callable[..., Project]


@pytest.fixture
def project(tmp_path: Path) -> Make:
    def make(*components: str) -> Project:
        made = Project(tmp_path)
        if components:
            made.set_components(*components)
        made.install()
        return made

    return make


def test_registered_components_are_listed_and_take_the_place_of_the_builtins(project: Make) -> None:
    env = project("foo = my_project.bar")

    assert env.run("holdfast", "builtins").stdout == "Found 1 builtin components:\n  1. foo.baz.trainer\n"

    ran = env.run("holdfast", "run", "foo.baz.trainer", "--", "--name", "test app")
    assert ran.returncode == 0, ran.stderr
    assert "trainer/0 hello from test app" in ran.stderr
    assert ran.stdout.startswith("local://holdfast/test-app-")

    missing = env.run("holdfast", "run", "utils.echo")
    assert missing.returncode == 2
    assert "registered components hide the builtin ones" in missing.stderr


def test_the_builtins_come_back_under_a_name_of_their_own(project: Make) -> None:
    env = project("foo = my_project.bar", "torchx = torchx.components")
    names = [line.split()[1] for line in env.run("holdfast", "builtins").stdout.splitlines()[1:]]

    assert names[0] == "foo.baz.trainer"
    assert {"torchx.dist.ddp", "torchx.utils.echo"} <= set(names)
    ran = env.run("holdfast", "run", "torchx.utils.echo", "--msg", "back again")
    assert "back again" in ran.stderr


def test_a_component_may_be_registered_under_two_names(project: Make) -> None:
    env = project("foo = my_project.bar", "test = my_project")

    assert env.run("holdfast", "builtins").stdout == (
        "Found 2 builtin components:\n  1. foo.baz.trainer\n  2. test.bar.baz.trainer\n"
    )
    for name in ("foo.baz.trainer", "test.bar.baz.trainer"):
        assert env.run("holdfast", "run", "--dryrun", name, "--name", "x").returncode == 0


def test_an_underscore_leaves_the_group_out(project: Make) -> None:
    env = project("_0 = my_project.bar", "_1 = torchx.components")
    lines = env.run("holdfast", "builtins").stdout.splitlines()

    assert lines[:2] == [f"Found {len(lines) - 1} builtin components:", "  1. baz.trainer"]
    assert {"dist.ddp", "utils.python", "utils.echo"} <= {line.split()[1] for line in lines[1:]}


def test_schedulers_and_named_resources_add_to_ours(project: Make) -> None:
    env = project()

    table = env.run("holdfast", "resources", "--json", "gpu*")
    assert json.loads(table.stdout)["gpu_x2"]["memMB"] == 122_000
    assert "gpu.small" in json.loads(table.stdout)
    asked = env.run("python", "-c", "from holdfast.compat import install; install(); " + textwrap.dedent("""
        from torchx.specs import get_named_resources, _named_resource_factories, Resource
        print(get_named_resources("gpu_x2"))
        _named_resource_factories["gpu_x9"] = lambda: Resource(cpu=1, gpu=9, memMB=1)
        print(get_named_resources("gpu_x9").gpu)
        from my_module.component import test_app
        print(test_app("gpu_x2").roles[0].resource.gpu)
    """).strip().replace("\n", "; "))  # fmt: skip
    assert asked.stdout.startswith("Resource(cpu=16, gpu=2, memMB=122000, ")
    assert asked.stdout.split()[-2:] == ["9", "2"]

    opts = json.loads(env.run("holdfast", "runopts", "--json").stdout)
    assert next(iter(opts)) == "local"
    assert [each["name"] for each in opts["my_scheduler"]] == ["queue"]

    ran = env.run("holdfast", "run", "-s", "my_scheduler", "-cfg", "queue=long", "--wait", "utils.echo", "--msg", "hi")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "my_scheduler://holdfast/echo-0\n"
    assert json.loads((env.root / "jobs.json").read_text())["echo-0"]["queue"] == "long"
    listed = json.loads(env.run("holdfast", "list", "--json").stdout)
    assert [job["handle"] for job in listed] == ["my_scheduler://holdfast/echo-0"]
    assert env.run("holdfast", "status", "echo-0").stdout.startswith("my_scheduler://holdfast/echo-0\nState: SUCCEEDED")


def test_a_broken_plugin_is_named_and_costs_only_itself(project: Make) -> None:
    env = project("foo = my_project.bar", "bad = no_such_module")
    (next(env.root.glob("venv/lib/python*/site-packages")) / "my/custom/scheduler.py").write_text("1 / 0\n")

    listed = env.run("holdfast", "plugins", "--json")
    broken = {plugin["name"]: plugin["error"] for plugin in json.loads(listed.stdout) if not plugin["ok"]}
    assert listed.returncode == 1
    assert broken["my_scheduler"] == "ZeroDivisionError: division by zero"
    assert "no_such_module" in broken["bad"]
    assert {"local", "gpu_x2", "foo"} <= {plugin["name"] for plugin in json.loads(listed.stdout) if plugin["ok"]}

    assert "foo.baz.trainer" in env.run("holdfast", "builtins").stdout
    assert env.run("holdfast", "run", "foo.baz.trainer", "--name", "x").returncode == 0
    refused = env.run("holdfast", "run", "-s", "my_scheduler", "foo.baz.trainer", "--name", "x")
    assert refused.returncode == 2
    assert "the plugin 'my_scheduler' of project-foobar" in refused.stderr
    assert "Traceback" not in refused.stderr
