"""Components by name: registered, builtin, in files, and by their full name."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from holdfast.components import finder
from tests.components.conftest import TRAINER, Site

BUILTIN = [
    "dist.ddp",
    "dist.elastic",
    "dist.spmd",
    "utils.binary",
    "utils.booth",
    "utils.copy",
    "utils.echo",
    "utils.python",
    "utils.sh",
    "utils.touch",
]

# -- what is builtin -------------------------------------------------------------------------------------------------


def test_the_builtins_are_listed_where_nothing_is_registered(site: Site) -> None:
    assert site.names() == BUILTIN


def test_the_list_that_is_read_from_the_source_is_that_of_the_imported_modules() -> None:
    for module in finder.BUILTINS:
        read = {each.name: each.description for each in finder._read_builtins("", module)}
        imported = finder._functions(importlib.import_module(f"{finder.ROOT}.{module}"))

        assert read == {name: (fn.__doc__ or "").partition("\n")[0] for name, fn in sorted(imported.items())}
        assert all(read.values())


def test_every_builtin_is_a_good_component() -> None:
    found = [*finder._read_builtins("dist", "dist"), *finder._read_builtins("utils", "utils")]

    assert {each.name: each.validation_errors for each in found} == {name: [] for name in BUILTIN}
    assert [each.fn.__name__ for each in found] == [each.fn_name for each in found]


def test_every_parameter_of_a_builtin_is_described() -> None:
    for module in (*finder.BUILTINS, *finder.UNLISTED):
        for node in ast.parse((Path(finder.__file__).parent / f"{module}.py").read_text()).body:
            if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "AppDef":
                if node.name.startswith("_"):
                    continue
                said = ast.get_docstring(node) or ""
                vararg = [node.args.vararg] if node.args.vararg else []
                for argument in [*node.args.args, *vararg, *node.args.kwonlyargs]:
                    assert f"\n    {argument.arg}: " in said, f"{node.name} does not describe {argument.arg}"


def test_listing_the_builtins_imports_none_of_them(site: Site) -> None:
    loaded = site.answer(
        """
        import sys
        finder.get_components()
        print(json.dumps([name for name in sys.modules if name.startswith(("holdfast.specs", "holdfast.components"))]))
        """
    )

    assert sorted(loaded) == ["holdfast.components", "holdfast.components.errors", "holdfast.components.finder"]


# -- what is registered ------------------------------------------------------------------------------------------------


def test_a_package_brings_its_components_below_the_entrys_name(project: Site) -> None:
    project.install("project-foobar", ["foo = my_project.bar"])

    assert project.names() == ["foo.baz.trainer"]


def test_both_groups_count(project: Site) -> None:
    project.install("one", ["foo = my_project.bar"], "holdfast.components")
    project.install("two", ["bar = my_project.bar"], "torchx.components")

    assert project.names() == ["foo.baz.trainer", "bar.baz.trainer"]


def test_a_registered_module_brings_its_functions_directly(project: Site) -> None:
    project.install("p", ["x = my_project.bar.baz"])

    assert project.names() == ["x.trainer"]


def test_overlapping_entries_bring_both_names(project: Site) -> None:
    project.install("p", ["foo = my_project.bar", "test = my_project"])

    assert project.names() == ["foo.baz.trainer", "test.bar.baz.trainer"]


@pytest.mark.parametrize("name", ["_", "_0", "_x"])
def test_a_name_that_begins_with_an_underscore_is_no_prefix(project: Site, name: str) -> None:
    project.install("p", [f"{name} = my_project.bar"])

    assert project.names() == ["baz.trainer"]


def test_two_packages_may_use_the_same_entry_name(project: Site) -> None:
    project.write("other/__init__.py")
    project.write("other/more.py", TRAINER)
    project.install("one", ["_ = my_project.bar"])
    project.install("two", ["_ = other"])

    assert sorted(project.names()) == ["baz.trainer", "more.trainer"]


def test_of_the_same_name_twice_the_last_one_wins(project: Site) -> None:
    project.write("other/__init__.py")
    project.write("other/baz.py", TRAINER)
    project.install("p", ["_0 = my_project.bar", "_1 = other"])

    sources = project.answer(
        "print(json.dumps([finder.get_components()['baz.trainer'].source, finder.get_component('baz.trainer').source]))"
    )

    assert sources == ["other.baz", "other.baz"]


def test_components_are_listed_by_entry_then_module_then_function(site: Site) -> None:
    two = TRAINER + TRAINER.replace("trainer", "alpha").replace("import torchx.specs as specs", "")
    site.write("pack/__init__.py", TRAINER.replace("trainer", "top"))
    site.write("pack/zeta.py", two)
    site.write("pack/alpha.py", TRAINER)
    site.write("pack/middle/__init__.py")
    site.write("pack/middle/inner.py", TRAINER)
    site.write("first.py", TRAINER)
    site.install("p", ["z = pack", "a = first"])

    assert site.names() == [
        "z.top",
        "z.alpha.trainer",
        "z.middle.inner.trainer",
        "z.zeta.alpha",
        "z.zeta.trainer",
        "a.trainer",
    ]


def test_folders_without_init_are_not_searched(project: Site) -> None:
    project.write("my_project/bar/loose/inner.py", TRAINER)
    project.install("p", ["foo = my_project.bar"])

    assert project.names() == ["foo.baz.trainer"]


def test_a_namespace_package_may_be_registered_itself(site: Site) -> None:
    site.write("space/direct.py", TRAINER)
    site.write("space/regular/__init__.py")
    site.write("space/regular/inner.py", TRAINER)
    site.write("space/nested/inner.py", TRAINER)
    site.install("p", ["foo = space"])

    assert site.names() == ["foo.direct.trainer", "foo.regular.inner.trainer"]


def test_a_main_module_is_not_run(project: Site) -> None:
    project.write("my_project/bar/__main__.py", "raise SystemExit('ran')")
    project.install("p", ["foo = my_project.bar"])

    assert project.answer("finder.get_components(); print(json.dumps([str(p) for p in finder.problems()]))") == []


def test_only_public_functions_of_the_module_that_return_an_app_count(site: Site) -> None:
    site.write("lib.py", TRAINER)
    site.write(
        "pack.py",
        """
        from lib import trainer
        from torchx.specs import AppDef

        def text() -> "AppDef": return AppDef("x")
        def _private() -> AppDef: return AppDef("x")
        def helper() -> int: return 1
        def untyped(): return AppDef("x")
        async def waits() -> AppDef: return AppDef("x")
        class Thing: pass
        """,
    )
    site.install("p", ["foo = pack"])

    assert site.names() == ["foo.text"]


# -- builtins beside what is registered --------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["torchx.components", "holdfast.components"])
@pytest.mark.parametrize("prefix", ["torchx", "holdfast"])
def test_builtins_come_back_where_they_are_registered(project: Site, root: str, prefix: str) -> None:
    project.install("p", ["foo = my_project.bar", f"{prefix} = {root}"])

    assert project.names() == ["foo.baz.trainer", *(f"{prefix}.{name}" for name in BUILTIN)]
    assert project.answer(f"print(json.dumps(finder.get_component('{prefix}.utils.echo').fn().name))") == "echo"


def test_builtins_come_back_without_a_prefix(project: Site) -> None:
    project.install("p", ["_0 = my_project.bar", "_1 = torchx.components"])

    assert project.names() == ["baz.trainer", *BUILTIN]


def test_one_module_of_the_builtins_may_be_registered(project: Site) -> None:
    project.install("p", ["foo = my_project.bar", "d = torchx.components.dist"])

    assert project.names() == ["foo.baz.trainer", "d.ddp", "d.elastic", "d.spmd"]


def test_builtins_stay_where_nothing_usable_is_registered(site: Site) -> None:
    site.write("empty/__init__.py")
    site.install("p", ["foo = empty", "bar = missing"])

    assert site.names() == BUILTIN
    assert site.answer("print(json.dumps(finder.get_component('utils.echo').name))") == "utils.echo"


def test_a_hidden_builtin_is_not_found_and_the_message_says_how_to_bring_it_back(project: Site) -> None:
    project.install("p", ["foo = my_project.bar"])

    said = project.error("utils.echo")

    assert said.startswith("ComponentNotFoundError: there is no component 'utils.echo': ")
    assert "registered components hide the builtin ones" in said
    assert "`holdfast = holdfast.components`" in said
    assert "`_ = holdfast.components`" in said
    assert project.error("holdfast.components.utils.echo") == "found"


# -- what is broken -------------------------------------------------------------------------------------------------


def test_a_broken_module_is_named_with_its_error_and_costs_only_itself(project: Site) -> None:
    project.write("my_project/bar/broken.py", "import nothing_of_this_name")
    project.write("my_project/bar/exits.py", "raise SystemExit(3)")
    project.write("my_project/bar/sub/__init__.py", "1 / 0")
    project.write("my_project/bar/sub/inner.py", TRAINER)
    project.install("p-good", ["foo = my_project.bar", "gone = not_there.at_all", "odd = my_project.bar.baz:trainer"])

    names, problems = project.answer(
        "print(json.dumps([list(finder.get_components()), [str(each) for each in finder.problems()]]))"
    )

    assert names == ["foo.baz.trainer"]
    assert problems == [
        "odd = my_project.bar.baz:trainer (torchx.components of p-good): "
        "an entry for components must name a module, without a colon",
        "foo = my_project.bar (torchx.components of p-good): "
        "the module my_project.bar.broken cannot be imported: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "foo = my_project.bar (torchx.components of p-good): "
        "the module my_project.bar.exits cannot be imported: SystemExit: 3",
        "foo = my_project.bar (torchx.components of p-good): "
        "the module my_project.bar.sub cannot be imported: ZeroDivisionError: division by zero",
        "gone = not_there.at_all (torchx.components of p-good): "
        "the module not_there.at_all cannot be imported: ModuleNotFoundError: No module named 'not_there'",
    ]


def test_a_component_is_found_without_importing_its_neighbours(project: Site) -> None:
    project.write("my_project/bar/slow.py", "raise AssertionError('imported')")
    project.write("elsewhere/__init__.py", "raise AssertionError('imported')")
    project.install("p", ["foo = my_project.bar", "else = elsewhere"])

    done = project.python(
        "from holdfast.components.finder import get_component\nprint(get_component('foo.baz.trainer').fn('x').name)"
    )

    assert (done.stdout, done.stderr) == ("x\n", "")


def test_a_broken_module_does_not_hide_another_of_the_same_name(project: Site) -> None:
    project.write("other/__init__.py")
    project.write("other/baz.py", "1 / 0")
    project.install("p", ["_0 = my_project.bar", "_1 = other"])

    assert project.names() == ["baz.trainer"]
    assert project.answer("print(json.dumps(finder.get_component('baz.trainer').source))") == "my_project.bar.baz"


def test_a_component_in_a_broken_module_says_what_is_wrong(project: Site) -> None:
    project.write("my_project/bar/broken.py", "import nothing_of_this_name")
    project.install("p", ["foo = my_project.bar"])

    said = project.error("foo.broken.trainer")

    assert said.startswith("PluginBrokenError: the module my_project.bar.broken of 'foo = my_project.bar")
    assert said.endswith("cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'")


def test_an_invalid_component_is_not_listed_but_told_with_its_line(project: Site) -> None:
    project.write(
        "my_project/bar/bad.py",
        """\
        from torchx.specs import AppDef

        def trainer(
            name,
            **more: int,
        ) -> AppDef:
            return AppDef(name)
        """,
    )
    project.install("p", ["foo = my_project.bar"])
    path = project.root / "my_project/bar/bad.py"

    names, problems = project.answer(
        "print(json.dumps([list(finder.get_components()), [str(each) for each in finder.problems()]]))"
    )

    assert names == ["foo.baz.trainer"]
    assert problems == [
        f"{path}:4: foo.bad.trainer: 'name' has no type; write name: str",
        f"{path}:5: foo.bad.trainer: **more cannot be given as flags; name each parameter",
    ]
    assert project.error("foo.bad.trainer").startswith(
        "ComponentValidationError: 'foo.bad.trainer' is not a component: "
    )


def test_a_function_that_promises_no_app_is_called_invalid_rather_than_missing(project: Site) -> None:
    project.write("my_project/bar/plain.py", "def trainer(name: str):\n    return 3\n")
    project.install("p", ["foo = my_project.bar"])

    assert "the return type is not AppDef" in project.error("foo.plain.trainer")


# -- names that are not registered -------------------------------------------------------------------------------------


def test_a_component_in_a_file_may_import_its_neighbours(site: Site) -> None:
    site.cwd.joinpath("neighbour.py").write_text("NAME = 'from next door'\n")
    site.cwd.joinpath("parts.py").write_text(
        "import dataclasses, neighbour\nimport torchx.specs as specs\n"
        "@dataclasses.dataclass\nclass Part:\n    x: 'int' = 1\n"
        "def trainer() -> specs.AppDef:\n    return specs.AppDef(neighbour.NAME)\n"
    )

    assert site.answer("print(json.dumps(finder.get_component('parts.py:trainer').fn().name))") == "from next door"


def test_a_path_with_a_colon_in_it_is_split_at_the_last_one(site: Site) -> None:
    folder = site.cwd / "run 12:30"
    folder.mkdir()
    folder.joinpath("train.component").write_text(TRAINER)

    assert (
        site.answer("print(json.dumps(finder.get_component('run 12:30/train.component:trainer').fn('x').name))") == "x"
    )


def test_a_file_or_function_that_is_not_there_is_said_so(site: Site) -> None:
    site.cwd.joinpath("parts.py").write_text(TRAINER)
    site.cwd.joinpath("broken.py").write_text("1 / 0\n")

    assert site.error("none.py:trainer").endswith("there is no file 'none.py' for the component 'none.py:trainer'")
    assert site.error("parts.py:trainr").endswith("'parts.py' has no function 'trainr'; it has trainer")
    assert site.error("broken.py:x").endswith(
        "the file of 'broken.py:x' cannot be loaded: ZeroDivisionError: division by zero"
    )


def test_a_component_may_be_called_by_its_full_name(project: Site) -> None:
    names = project.answer(
        """
        names = ["my_project.bar.baz.trainer", "holdfast.components.utils.echo", "torchx.components.utils.echo"]
        print(json.dumps([finder.get_component(name).fn.__name__ for name in names]))
        """
    )

    assert names == ["trainer", "echo", "echo"]


def test_the_current_folder_is_looked_into_for_full_names(site: Site) -> None:
    site.cwd.joinpath("here").mkdir()
    site.cwd.joinpath("here/parts.py").write_text(TRAINER)

    done = site.python(
        "import os, sys; sys.path.remove('')\n"
        "from holdfast.components.finder import get_component\nprint(get_component('here.parts.trainer').name)"
    )

    assert done.stdout == "here.parts.trainer\n", done.stderr


def test_an_error_inside_a_module_is_not_taken_for_a_missing_one(project: Site) -> None:
    project.write("my_project/bad.py", "import nothing_of_this_name")

    assert project.error("my_project.bad.trainer").startswith("PluginBrokenError: the module my_project.bad")
    assert project.error("my_project.worse.trainer").startswith("ComponentNotFoundError")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("utils.ecko", "there is no component 'utils.ecko'; did you mean utils.echo?"),
        ("dist.dpp", "there is no component 'dist.dpp'; did you mean dist.ddp"),
        ("tools.echo", "there is no component 'tools.echo'; did you mean utils.echo?"),
        ("xyzzy", "there is no component 'xyzzy'; `holdfast builtins` lists them"),
        ("", "there is no component ''; `holdfast builtins` lists them"),
        ("dist.parse_size", "'dist.parse_size' is not a component"),
        ("utils._app", "there is no component 'utils._app'"),
    ],
)
def test_a_wrong_name_is_told_with_what_may_have_been_meant(site: Site, name: str, said: str) -> None:
    assert said in site.error(name)
