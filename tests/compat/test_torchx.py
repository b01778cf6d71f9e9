"""Programs written for TorchX find ours behind its names."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.components
import holdfast.specs
from holdfast import compat
from holdfast.compat.finder import AliasFinder
from holdfast.compat.names import View
from holdfast.compat.names.torchx import MODULES


@pytest.fixture
def _asked() -> Iterator[None]:
    take_back = compat.install("torchx")
    yield
    take_back()


@pytest.mark.usefixtures("_asked")
class TestAsked:
    """After `compat.install()`."""

    def test_every_listed_name_leads_to_the_very_module(self) -> None:
        for name, ours in MODULES.items():
            if name == "torchx.distributed" and importlib.util.find_spec("torch") is None:
                continue  # it is about torch
            if isinstance(ours, View):
                assert importlib.import_module(name).__name__ == name
            else:
                assert importlib.import_module(name) is importlib.import_module(ours)

    def test_all_ways_to_import_give_the_same(self) -> None:
        import torchx
        import torchx.specs
        import torchx.specs as aliased
        from torchx import specs
        from torchx.specs import AppDef, api

        assert torchx.specs is aliased is specs
        assert AppDef is api.AppDef is holdfast.specs.AppDef
        assert torchx.__version__ == "0.7.0"

    def test_names_below_a_listed_one_lead_below_ours(self) -> None:
        import torchx.specs.api
        import torchx.specs.named_resources_aws
        import torchx.workspace.api
        from torchx.specs.builders import parse_mounts

        assert torchx.specs.named_resources_aws is sys.modules["holdfast.specs.named_resources_aws"]
        assert torchx.specs.api.AppDef is holdfast.specs.AppDef
        assert torchx.workspace.api.WorkspaceMixin is sys.modules["holdfast.workspace.api"].WorkspaceMixin
        assert parse_mounts is holdfast.specs.parse_mounts

    def test_a_name_that_we_do_not_have_is_not_found(self) -> None:
        for name in ("torchx.nothing", "torchx.specs.nothing", "torchx.specs.api.nothing", "torchx.nothing.more"):
            with pytest.raises(ModuleNotFoundError, match="No module named 'torchx"):
                importlib.import_module(name)
        assert importlib.util.find_spec("torchx.specs.nothing") is None
        with pytest.raises(ImportError, match="cannot import name 'nothing'"):
            from torchx.specs import nothing  # noqa: F401

    def test_a_name_patched_through_the_alias_is_the_name_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torchx.specs._named_resource_factories", {"x": lambda: holdfast.specs.Resource(1, 2, 3)})

        assert holdfast.specs.resource(h="x").gpu == 2

    def test_a_module_keeps_its_own_name_and_can_be_reloaded(self) -> None:
        import torchx.specs.named_resources_generic as alias

        before = alias.NAMED_RESOURCES

        assert alias.__name__ == alias.__spec__.name == "holdfast.specs.named_resources_generic"
        assert importlib.reload(alias) is sys.modules["torchx.specs.named_resources_generic"]
        assert sys.modules["holdfast.specs.named_resources_generic"] is alias
        assert alias.NAMED_RESOURCES is not before

    def test_pickles_name_ours_and_can_be_read_without_the_alias(self) -> None:
        from torchx.specs import AppDef, Role

        data = pickle.dumps(AppDef(name="a", roles=[Role(name="r", image="i")]))

        assert b"torchx" not in data
        assert pickle.loads(data).roles[0].name == "r"

    def test_the_components_can_be_walked_under_either_name(self) -> None:
        import torchx.components

        walked = [name for _, name, _ in pkgutil.walk_packages(torchx.components.__path__, prefix="torchx.components.")]

        assert walked
        for name in walked:
            ours = name.replace("torchx", "holdfast", 1)
            assert importlib.import_module(name) is importlib.import_module(ours)

    def test_asking_twice_is_asking_once(self) -> None:
        again = compat.install("torchx")

        assert owners() == 1
        again()
        assert owners() == 1

    def test_the_plugins_guide_of_torchx_works_for_resources(self) -> None:
        # Registering Named Resources, as its text has it.
        from torchx.specs import AppDef, Resource, Role, _named_resource_factories, get_named_resources

        def gpu_x1() -> Resource:
            return Resource(cpu=8, gpu=1, memMB=61_000)

        def gpu_x2() -> Resource:
            return Resource(cpu=16, gpu=2, memMB=122_000)

        def gpu_x3() -> Resource:
            return Resource(cpu=32, gpu=4, memMB=244_000)

        def gpu_x4() -> Resource:
            return Resource(cpu=64, gpu=8, memMB=488_000)

        gpu_x1()
        gpu_x2()
        gpu_x3()
        gpu_x4()
        _named_resource_factories["gpu_x2"] = lambda: Resource(cpu=16, gpu=2, memMB=122_000)
        try:

            def test_app(resource: str) -> AppDef:
                return AppDef(
                    name="test_app", roles=[Role(name="...", image="...", resource=get_named_resources(resource))]
                )

            app = test_app("gpu_x2")
            printed = repr(get_named_resources("gpu_x2"))
        finally:
            del _named_resource_factories["gpu_x2"]

        assert printed.startswith("Resource(cpu=16, gpu=2, memMB=122000, ")
        assert app.roles[0].resource == gpu_x2()

    def test_the_plugins_guide_of_torchx_works_for_schedulers(self) -> None:
        # Registering Custom Schedulers, as its text has it.
        from torchx.schedulers import Scheduler

        def create_scheduler(session_name: str, **kwargs: object) -> Scheduler:  # type: ignore[type-arg]
            raise NotImplementedError

        assert Scheduler is importlib.import_module("holdfast.schedulers").Scheduler


def owners() -> int:
    """How many finders answer for TorchX's names."""
    return sum(isinstance(finder, AliasFinder) and finder.owns("torchx") for finder in sys.meta_path)


def run(code: str, folder: Path, *flags: str) -> None:
    """Run a program of its own in a folder that it can import from."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def real_torchx(folder: Path) -> None:
    """What an installed TorchX looks like to an import."""
    (folder / "torchx" / "specs").mkdir(parents=True)
    (folder / "torchx" / "__init__.py").write_text("real = True\n")
    (folder / "torchx" / "specs" / "__init__.py").write_text("real = True\n")


def test_not_asked_the_name_is_not_taken(tmp_path: Path) -> None:
    run(
        "import holdfast.compat, holdfast.specs\n"
        "try:\n    import torchx\n"
        "except ModuleNotFoundError:\n    pass\n"
        "else:\n    raise AssertionError(torchx)\n",
        tmp_path,
        "-I",
    )


def test_where_torchx_is_missing_ours_answers(tmp_path: Path) -> None:
    run(
        "from holdfast import compat\n"
        "compat.torchx_where_missing()\n"
        "from torchx.specs import AppDef\n"
        "compat.torchx_where_missing()\n"
        "import holdfast.specs\n"
        "assert AppDef is holdfast.specs.AppDef\n",
        tmp_path,
    )


def test_a_folder_that_happens_to_be_called_torchx_is_no_torchx(tmp_path: Path) -> None:
    (tmp_path / "torchx").mkdir()

    run("from holdfast import compat\ncompat.torchx_where_missing()\nimport torchx.specs\n", tmp_path)


@pytest.mark.parametrize("before", ["", "import torchx.specs\n"])
def test_where_torchx_is_installed_it_is_left_alone(tmp_path: Path, before: str) -> None:
    real_torchx(tmp_path)

    run(
        f"{before}from holdfast import compat\n"
        "compat.torchx_where_missing()\n"
        "import torchx.specs\n"
        "assert torchx.specs.real\n",
        tmp_path,
    )


def test_asked_ours_answers_even_where_torchx_is_installed_and_loaded(tmp_path: Path) -> None:
    real_torchx(tmp_path)

    run(
        "import torchx.specs as theirs\n"
        "from holdfast import compat\n"
        "take_back = compat.install()\n"
        "import torchx.specs, holdfast.specs\n"
        "assert torchx.specs.AppDef is holdfast.specs.AppDef\n"
        "take_back()\n"
        "import torchx.specs\n"
        "assert torchx.specs is theirs\n",
        tmp_path,
    )


def test_what_a_module_of_ours_lacks_is_named_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    (tmp_path / "behind" / "__init__.py").write_text("import not_installed_anywhere\n")

    run(
        "import sys\n"
        "from holdfast.compat.finder import AliasFinder\n"
        "from holdfast.compat.names import View\n"
        "sys.meta_path.insert(0, AliasFinder({'front': View(), 'front.door': 'behind'}))\n"
        "for name in ('front.door', 'front.door.handle'):\n"
        "    try:\n        __import__(name)\n"
        "    except ModuleNotFoundError as error:\n        assert error.name == 'not_installed_anywhere', error\n"
        "    else:\n        raise AssertionError(name)\n",
        tmp_path,
    )


def test_installing_the_names_imports_nothing_of_what_they_lead_to(tmp_path: Path) -> None:
    run(
        "import sys\n"
        "from holdfast import compat\n"
        "compat.torchx_where_missing()\n"
        "assert not [n for n in sys.modules if n.startswith(('holdfast.specs', 'holdfast.runner', 'torchx'))]\n",
        tmp_path,
    )
