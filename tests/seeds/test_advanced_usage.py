"""Advanced usage of TorchX: a package with schedulers, named resources and components, installed and used.

The documents' `torchx` is the command of Holdfast, and `python -m holdfast.compat -m torchx.cli.main` as well.
"""

from __future__ import annotations

import json
import sys

import pytest

from tests.seeds.conftest import Sandbox, fill

pytest.importorskip("setuptools", reason="builds the package")

SETUP = """
 from setuptools import setup

 setup(
     name="project foobar",
     entry_points={
         "torchx.schedulers": [
             "my_scheduler = my.custom.scheduler:create_scheduler",
         ],
         "torchx.named_resources": [
             "gpu_x2 = my_module.resources:gpu_x2",
         ],
     }
 )
"""

CREATE_SCHEDULER = """
 from torchx.schedulers import Scheduler

 def create_scheduler(session_name: str, **kwargs: object) -> Scheduler:
     return MyScheduler(session_name, **kwargs)
"""

REGISTER_SCHEDULER = """
   # setup.py
   ...
   entry_points={
       "torchx.schedulers": [
           "my_scheduler = my.custom.scheduler:create_schedule",
       ],
   }
"""

RESOURCES = """
 from torchx.specs import Resource

 def gpu_x1() -> Resource:
     return Resource(cpu=8,  gpu=1, memMB=61_000)

 def gpu_x2() -> Resource:
     return Resource(cpu=16, gpu=2, memMB=122_000)

 def gpu_x3() -> Resource:
     return Resource(cpu=32, gpu=4, memMB=244_000)

 def gpu_x4() -> Resource:
     return Resource(cpu=64, gpu=8, memMB=488_000)
"""

CALL_RESOURCES = """
 gpu_x1()
 gpu_x2()
 gpu_x3()
 gpu_x4()
"""

REGISTER_RESOURCES = """
   # setup.py
   ...
   entry_points={
       "torchx.named_resources": [
           "gpu_x2 = my_module.resources:gpu_x2",
       ],
   }
"""

ROLE_SETUP = """
   from torchx.specs import _named_resource_factories, Resource

   _named_resource_factories["gpu_x2"] = lambda: Resource(cpu=16, gpu=2, memMB=122_000)
"""

ROLE_DOCTEST = """
   >>> from torchx.specs import get_named_resources
   >>> get_named_resources("gpu_x2")
   Resource(cpu=16, gpu=2, memMB=122000, ...)
"""

TEST_APP = """
  # my_module.component
  from torchx.specs import AppDef, Role, get_named_resources

  def test_app(resource: str) -> AppDef:
      return AppDef(name="test_app", roles=[
          Role(
              name="...",
              image="...",
              resource=get_named_resources(resource),
          )
      ])

  test_app("gpu_x2")
"""

BAZ = """
 # baz.py
 import torchx.specs as specs

 def trainer(...) -> specs.AppDef: ...
"""

REGISTER_FOO = """
   # setup.py
   ...
   entry_points={
       "torchx.components": [
           "foo = my_project.bar",
       ],
   }
"""

FOO_LISTED = """
 Found 1 builtin components:
 1. foo.baz.trainer
"""

REGISTER_FOO_AND_TORCHX = """
   # setup.py
   ...
   entry_points={
       "torchx.components": [
           "foo = my_project.bar",
           "torchx = torchx.components",
       ],
   }
"""

REGISTER_FOO_AND_TEST = """
   # setup.py
   ...
   entry_points={
       "torchx.components": [
           "foo = my_project.bar",
           "test = my_project",
       ],
   }
"""

FOO_AND_TEST_LISTED = """
 Found 2 builtin components:
 1. foo.baz.trainer
 2. test.bar.baz.trainer
"""

REGISTER_UNDERSCORES = """
   # setup.py
   ...
   entry_points={
       "torchx.components": [
           "_0 = my_project.bar",
           "_1 = torchx.components",
       ],
   }
"""

#: The document's scheduler, of which it gives only the name.
MY_SCHEDULER = """
    from torchx.schedulers.api import DescribeAppResponse
    from torchx.specs import AppDryRunInfo, AppState, runopts

    class MyScheduler(Scheduler):
        def __init__(self, session_name, **kwargs):
            super().__init__("my_scheduler", session_name)

        def _run_opts(self):
            opts = runopts()
            opts.add("queue", type_=str, help="where the job waits", default="short")
            return opts

        def _submit_dryrun(self, app, cfg):
            return AppDryRunInfo({"name": app.name, "queue": cfg["queue"]}, repr)

        def schedule(self, dryrun_info):
            return "{name}-in-{queue}".format(**dryrun_info.request)

        def describe(self, app_id):
            return DescribeAppResponse(app_id=app_id, state=AppState.SUCCEEDED)

        def list(self):
            return []

        def _cancel_existing(self, app_id):
            pass
"""

TRAINER = '''trainer(name: str) -> specs.AppDef:
    """Says hello.

    Args:
        name: whom to say it to
    """
    hello = specs.Role(name="trainer", image="", entrypoint="echo", args=["hello", name])
    return specs.AppDef(name="trainer", roles=[hello])'''

#: What the documents call `torchx`.
COMMANDS = (("holdfast",), ("python", "-m", "holdfast.compat", "-m", "torchx.cli.main"))


class Project:
    """A user's project; packages are in `src`, where setuptools finds them without a word."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        sandbox.save("project/src/my/__init__.py", "")
        sandbox.save("project/src/my/custom/__init__.py", "")
        sandbox.save("project/src/my/custom/scheduler.py", CREATE_SCHEDULER, MY_SCHEDULER)
        sandbox.save("project/src/my_module/__init__.py", "")
        sandbox.save("project/src/my_module/resources.py", RESOURCES, CALL_RESOURCES)
        sandbox.save("project/src/my_module/component.py", TEST_APP)
        sandbox.save("project/src/my_project/__init__.py", "")
        sandbox.save("project/src/my_project/bar/__init__.py", "")
        sandbox.save("project/src/my_project/bar/baz.py", fill(BAZ, ("trainer(...) -> specs.AppDef: ...", TRAINER)))

    def install(self, setup: str, *filled: tuple[str, str]) -> None:
        """Install it with pip; of the later sections only the entry points are in the document."""
        if "..." in setup:
            name = 'setup(name="project foobar", entry_points=entry_points)'
            setup = fill(setup, ("...", "from setuptools import setup"), *filled) + name
        self.sandbox.save("project/setup.py", setup)
        site = str(self.sandbox.folder / "site")
        quiet = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
        # Not by `python`: pip's own warnings do not matter here.
        self.sandbox.run(sys.executable, "-m", "pip", "install", *quiet, "--target", site, "./project")
        self.sandbox.env["PYTHONPATH"] = site


@pytest.fixture
def project(sandbox: Sandbox) -> Project:
    return Project(sandbox)


def lines(text: str) -> list[str]:
    """The lines of a listing; how far they are indented is a matter of taste."""
    return [line.strip() for line in text.strip().splitlines()]


def test_setup_py_says_its_version(sandbox: Sandbox) -> None:
    sandbox.save("setup.py", SETUP)

    assert sandbox.run(sys.executable, "setup.py", "--version") == "0.0.0\n"


def test_a_registered_scheduler_runs_jobs(project: Project) -> None:
    project.install(REGISTER_SCHEDULER, ("create_schedule", "create_scheduler"))
    run = ("run", "-s", "my_scheduler", "-cfg", "queue=long", "utils.echo", "--msg", "hi")

    for torchx in COMMANDS:
        handle = project.sandbox.run(*torchx, *run).splitlines()[0]

        assert handle.startswith("my_scheduler://")
        assert handle.endswith("/echo-in-long")
        assert "queue" in project.sandbox.run(*torchx, "runopts", "my_scheduler")


def test_a_registered_resource_is_found_by_its_name(project: Project) -> None:
    project.install(REGISTER_RESOURCES)
    project.sandbox.save("role.txt", ROLE_DOCTEST)  # without the setup: the entry point is what makes the name known

    project.sandbox.run("python", "-m", "holdfast.compat", "-m", "doctest", "-o", "ELLIPSIS", "role.txt")
    project.sandbox.run("python", "-m", "holdfast.compat", "-m", "my_module.component")
    listed = json.loads(project.sandbox.run("holdfast", "resources", "--json", "gpu_x2"))
    assert listed["gpu_x2"]["memMB"] == 122_000


def test_a_resource_can_be_put_among_the_factories(sandbox: Sandbox) -> None:
    setup = "\n".join(f">>> {line}" for line in fill(ROLE_SETUP).splitlines() if line)
    sandbox.save("role.txt", setup, ROLE_DOCTEST)
    sandbox.save("component.py", ROLE_SETUP, TEST_APP, 'print(test_app("gpu_x2").roles[0].resource.gpu)')

    sandbox.run("python", "-m", "holdfast.compat", "-m", "doctest", "-o", "ELLIPSIS", "role.txt")
    assert sandbox.run("python", "-m", "holdfast.compat", "component.py") == "2\n"


def test_both_entry_points_of_the_first_setup_py_are_loaded(project: Project) -> None:
    project.install(SETUP)

    listed = json.loads(project.sandbox.run("holdfast", "plugins", "--json"))

    ours = {plugin["name"]: plugin["ok"] for plugin in listed if plugin["package"].startswith("project")}
    assert ours == {"my_scheduler": True, "gpu_x2": True}


def test_where_nothing_is_registered_the_builtins_are_ours(sandbox: Sandbox) -> None:
    for torchx in COMMANDS:
        found, *listed = lines(sandbox.run(*torchx, "builtins"))

        assert found == f"Found {len(listed)} builtin components:"
        assert {"dist.ddp", "utils.echo", "utils.python"} < {line.split()[-1] for line in listed}


def test_registered_components_are_the_builtins(project: Project) -> None:
    project.install(REGISTER_FOO)

    for torchx in COMMANDS:
        assert lines(project.sandbox.run(*torchx, "builtins")) == lines(FOO_LISTED)
        handle = project.sandbox.run(*torchx, "run", "foo.baz.trainer", "--", "--name", "test app").splitlines()[0]
        assert "hello test app" in project.sandbox.run(*torchx, "log", handle)


def test_a_namespace_package_is_searched_only_where_it_is_registered_itself(project: Project) -> None:
    (project.sandbox.folder / "project/src/my_project/bar/__init__.py").unlink()  # as the document draws the folder
    project.sandbox.save(
        "project/src/my_project/bar/below/deep.py", fill(BAZ, ("trainer(...) -> specs.AppDef: ...", TRAINER))
    )
    project.install(REGISTER_FOO_AND_TEST)

    assert lines(project.sandbox.run("holdfast", "builtins")) == lines(FOO_LISTED)


def test_the_builtins_come_back_under_a_prefix(project: Project) -> None:
    project.install(REGISTER_FOO_AND_TORCHX)

    for torchx in COMMANDS:
        listed = [line.split()[-1] for line in lines(project.sandbox.run(*torchx, "builtins"))[1:]]

        assert {"foo.baz.trainer", "torchx.dist.ddp", "torchx.utils.echo"} < set(listed)
        assert all(name.startswith(("foo.", "torchx.")) for name in listed)
        project.sandbox.run(*torchx, "run", "torchx.utils.echo", "--msg", "back again")


def test_two_entries_for_one_component_give_it_two_names(project: Project) -> None:
    project.install(REGISTER_FOO_AND_TEST)

    for torchx in COMMANDS:
        assert lines(project.sandbox.run(*torchx, "builtins")) == lines(FOO_AND_TEST_LISTED)


def test_an_underscore_leaves_the_group_out(project: Project) -> None:
    """How many builtins there are, and which comes third, is not the same in every version."""
    project.install(REGISTER_UNDERSCORES)

    for torchx in COMMANDS:
        found, *listed = lines(project.sandbox.run(*torchx, "builtins"))

        assert found == f"Found {len(listed)} builtin components:"
        assert listed[:2] == ["1. baz.trainer", "2. dist.ddp"]
        assert "utils.python" in {line.split()[-1] for line in listed}
