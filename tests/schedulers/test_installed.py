"""Which schedulers there are: ours, and those of others, which add and never break."""

import importlib.metadata
import subprocess
import sys
import types

import pytest

from holdfast import plugins
from holdfast.errors import PluginBrokenError, UsageError
from holdfast.schedulers import (
    conflicts,
    create_scheduler,
    get_default_scheduler_name,
    get_scheduler_factories,
    list_jobs,
    validate,
    wait_news,
)
from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.specs import AppDef, Resource, Role
from holdfast.testing.memory_scheduler import MemoryScheduler


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install packages that are nothing but entry points, for the time of a test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package, **groups):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        text = "".join(f"[{group.replace('_', '.')}]\n" + "\n".join(lines) + "\n" for group, lines in groups.items())
        (info / "entry_points.txt").write_text(text)
        importlib.invalidate_caches()
        plugins.forget()

    yield add
    plugins.forget()


def test_ours_are_there_and_local_is_the_default():
    names = list(get_scheduler_factories())

    assert names[0] == get_default_scheduler_name() == "local"
    assert "local_cwd" in names
    assert isinstance(create_scheduler("local_cwd", "s", torchx_image="ignored"), LocalScheduler)


def test_plugins_add_to_ours(install):
    create = "holdfast.testing.memory_scheduler:create_scheduler"
    install("strange", torchx_schedulers=[f"strange = {create}"], holdfast_schedulers=[f"new = {create}"])

    assert {"local", "strange", "new"} <= get_scheduler_factories().keys()
    for name in ("strange", "new"):
        assert isinstance(create_scheduler(name, "s"), MemoryScheduler)
    assert isinstance(create_scheduler("local", "s"), LocalScheduler)
    assert conflicts() == []


@pytest.mark.parametrize("group", ["torchx_schedulers", "holdfast_schedulers"])
def test_no_plugin_takes_a_name_of_ours(install, group, caplog):
    install("aaa-first", **{group: ["local = holdfast.testing.memory_scheduler:create_scheduler"]})

    assert isinstance(create_scheduler("local", "s"), LocalScheduler)
    assert len(conflicts()) == 1
    assert "the scheduler 'local' of aaa-first" in conflicts()[0]
    assert conflicts()[0] in caplog.text


def test_a_broken_plugin_costs_only_itself(install):
    install(
        "broken",
        torchx_schedulers=["gone = no_such_module:create", "raises = holdfast.schedulers.api:Scheduler"],
    )

    assert {"gone", "raises", "local"} <= get_scheduler_factories().keys()
    with pytest.raises(PluginBrokenError, match="'gone' of broken"):
        create_scheduler("gone", "s")
    with pytest.raises(PluginBrokenError, match="the scheduler 'raises' of broken"):
        create_scheduler("raises", "s")
    assert isinstance(create_scheduler("local", "s"), LocalScheduler)


def test_an_unknown_scheduler_is_told_which_there_are():
    with pytest.raises(
        UsageError, match=r"there is no scheduler 'locla'; did you mean 'local'\? installed are: .*local_cwd"
    ):
        create_scheduler("locla", "s")


# -- plugins that are older than the interface -------------------------------------------------------------------------


class Old(MemoryScheduler):
    """Written against an older TorchX."""

    def __init__(self):
        super().__init__("s")
        self.seen = []

    def _validate(self, app, scheduler):
        self.seen.append((app.name, scheduler))

    def list(self):
        return ["all"]


def test_old_signatures_are_called_as_they_are():
    old = Old()
    validate(old, AppDef("app"), {"queue": "q"})

    assert old.seen == [("app", "memory")]
    assert list_jobs(old, {"queue": "q"}) == ["all"]


def test_a_scheduler_that_cannot_wait_for_news_is_waited_for():
    foreign = types.SimpleNamespace()

    assert wait_news(foreign, "id", 0.0) is None


def test_a_role_without_resources_is_refused_unless_the_scheduler_does_not_care():
    class Picky(MemoryScheduler):
        _validate = MemoryScheduler.__mro__[1]._validate

    with pytest.raises(UsageError, match="the role 'a' does not say"):
        validate(Picky("s"), AppDef("app", [Role("a", "")]), {})
    validate(Picky("s"), AppDef("app", [Role("a", "", resource=Resource(1, 0, 1))]), {})


def test_each_role_may_change_the_request_before_it_is_submitted():
    class Mine(Role):
        def pre_proc(self, scheduler, dryrun_info):
            dryrun_info.request.app_id = f"{scheduler}-changed"
            return dryrun_info

    scheduler = MemoryScheduler("s")
    info = scheduler.submit_dryrun(AppDef("app", [Mine("a", "", entrypoint="true")]), {})

    assert scheduler.schedule(info) == "memory-changed"
    assert info.cfg == {"queue": "default"}


def test_looking_for_schedulers_loads_none():
    code = """
import sys
from holdfast.schedulers import get_scheduler_factories
get_scheduler_factories()
print("holdfast.schedulers.local" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
