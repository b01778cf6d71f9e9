"""Settings from files: where they are found, which win, what they mean."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.runner import config
from holdfast.runner.config import Config, load, load_dirs, read
from holdfast.runner.toml_text import key, template, value
from holdfast.specs import CfgVal, Resource, get_named_resources, runopts

Write = Callable[[str, str], Path]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    """A folder deep in a project in the home folder."""
    folder = home / "work" / "project" / "src"
    folder.mkdir(parents=True)
    return folder


def settings(folder: Path, home: Path, **environ: str) -> Config:
    return load(folder, {"HOME": str(home), **environ})


def scheduler(path: Path, **options: str) -> Path:
    """Write a file with run options of one scheduler, in the form that the file's name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"pyproject.toml": "[tool.holdfast.scheduler.local]", ".torchxconfig": "[local]"}.get(
        path.name, "[scheduler.local]"
    )
    quote = "" if path.name == ".torchxconfig" else '"'
    path.write_text("\n".join([head, *(f"{name} = {quote}{text}{quote}" for name, text in options.items())]) + "\n")
    return path


def test_the_nearest_file_above_the_current_folder_is_read(project: Path, home: Path) -> None:
    near = scheduler(project.parent / ".holdfast.toml", a="near")
    scheduler(project.parent.parent / ".holdfast.toml", a="far", b="far")

    found = settings(project, home).section("scheduler", "local")

    assert found == {"a": config.Setting("near", str(near))}


def test_the_project_wins_over_home_and_our_files_over_those_of_torchx(project: Path, home: Path) -> None:
    files = [
        scheduler(project / ".holdfast.toml", a="1"),
        scheduler(project.parent / "pyproject.toml", a="2", b="2"),
        scheduler(project / ".torchxconfig", a="3", b="3", c="3"),
        scheduler(home / ".holdfast.toml", a="4", b="4", c="4", d="4"),
        scheduler(home / ".torchxconfig", a="5", b="5", c="5", d="5", e="5"),
    ]
    loaded = settings(project, home)

    assert [source.path for source in loaded.sources] == files
    assert loaded.values("scheduler", "local") == {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
    assert loaded.section("scheduler", "local")["c"].origin == str(files[2])


def test_files_of_the_home_folder_are_those_of_home_even_below_it(home: Path) -> None:
    folder = home / "sub"
    folder.mkdir(parents=True)
    scheduler(home / ".holdfast.toml", a="home")
    scheduler(folder / ".torchxconfig", a="project")

    assert settings(folder, home).values("scheduler", "local") == {"a": "project"}
    assert settings(home, home).values("scheduler", "local") == {"a": "home"}


def test_a_pyproject_without_our_table_is_passed_over(project: Path, home: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    upper = scheduler(project.parent / "pyproject.toml", a="1")

    assert [source.path for source in settings(project, home).sources] == [upper]


def test_a_variable_names_the_one_file_to_read(project: Path, home: Path, tmp_path: Path) -> None:
    scheduler(project / ".holdfast.toml", a="1")
    named = scheduler(tmp_path / "mine.toml", b="2")

    assert settings(project, home, HOLDFAST_CONFIG=str(named)).values("scheduler", "local") == {"b": "2"}
    assert settings(project, home, HOLDFAST_CONFIG="").sources == ()
    with pytest.raises(UsageError, match=r"\$HOLDFAST_CONFIG names /nowhere"):
        settings(project, home, HOLDFAST_CONFIG="/nowhere")


def test_torchxs_variable_names_its_own_file(project: Path, home: Path, tmp_path: Path) -> None:
    scheduler(project / ".torchxconfig", a="1")
    named = tmp_path / "theirs"
    named.write_text("[local]\nb = 2\n")

    assert settings(project, home, TORCHXCONFIG=str(named)).values("scheduler", "local") == {"b": "2"}
    assert settings(project, home, TORCHXCONFIG="").sources == ()


def test_a_torchxconfig_means_the_same_as_our_sections(tmp_path: Path) -> None:
    path = tmp_path / ".torchxconfig"
    path.write_text(
        "[local]\nlog_dir = /logs\nCase = kept\nnothing = None\n"
        "[component:dist.ddp]\nj = 2x4\n"
        "[cli:run]\ncomponent = dist.ddp\nscheduler = local\n"
    )
    loaded = load_dirs([tmp_path])

    assert loaded.values("scheduler", "local") == {"log_dir": "/logs", "Case": "kept", "nothing": None}
    assert loaded.component("dist.ddp") == {"j": "2x4"}
    assert loaded.values("cli", "run") == {"component": "dist.ddp", "scheduler": "local"}


def test_a_components_name_may_be_quoted_or_not(tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text(
        '[component.dist.ddp]\nj = "1x2"\nenv = {A = "1"}\n[component."utils.echo"]\nmsg = "hi"\n'
    )
    loaded = load_dirs([tmp_path])

    assert loaded.component("dist.ddp") == {"j": "1x2", "env": {"A": "1"}}
    assert loaded.component("utils.echo") == {"msg": "hi"}
    assert loaded.component("other") == {}


def options() -> runopts:
    opts = runopts()
    opts.add("count", type_=int, help="how many")
    opts.add("tags", type_=list[str], help="words")
    opts.add("quiet", type_=bool, help="say less", default=False)
    return opts


def test_run_options_from_files_fill_in_what_is_not_set(tmp_path: Path) -> None:
    (tmp_path / ".torchxconfig").write_text("[local]\ncount = 3\ntags = a;b\nquiet = yes\nunknown = x\n")
    cfg: dict[str, CfgVal] = {"count": 7}
    load_dirs([tmp_path]).apply("local", cfg, options())

    assert cfg == {"count": 7, "tags": ["a", "b"], "quiet": True, "unknown": "x"}


def test_a_run_option_of_the_wrong_type_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text("[scheduler.local]\ncount = [1]\n")

    with pytest.raises(UsageError, match=r"\.holdfast\.toml: 'count' is \[1\] but must be int"):
        load_dirs([tmp_path]).apply("local", {}, options())


def test_programs_apply_settings_by_the_name_they_know(tmp_path: Path) -> None:
    scheduler(tmp_path / "a" / ".holdfast.toml", log_dir="/first")
    scheduler(tmp_path / "b" / ".torchxconfig", log_dir="/second", other="x")
    cfg: dict[str, CfgVal] = {}
    config.apply("local", cfg, dirs=[str(tmp_path / "a"), str(tmp_path / "b")])

    assert cfg == {"log_dir": "/first", "other": "x"}
    assert config.find_configs([tmp_path / "a"]) == [str(tmp_path / "a" / ".holdfast.toml")]


def test_named_resources_come_from_files(tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text(
        "[resources.test_config_big]\ncpu = 8\ngpu = 0.5\nmemMB = 4096\ndevices = {nic = 2}\n"
        "[resources.test.dotted]\ngpu = 1\n"
    )
    load_dirs([tmp_path]).register_resources()

    assert get_named_resources("test_config_big") == Resource(8, 0.5, 4096, devices={"nic": 2})
    assert get_named_resources("test.dotted") == Resource(1, 1, 1024)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (".holdfast.toml", "[scheduler.local]\na = \n", r"\.holdfast\.toml, line 2: "),
        (".holdfast.toml", "scheduler = 3\n", r"'scheduler' must be a section"),
        (".holdfast.toml", "[resources]\nbig = 3\n", r"'resources.big' must be a section"),
        (".holdfast.toml", "[resources.big]\ncpu = 'x'\n", r"'big' has cpu = 'x', which must be a number"),
        (".holdfast.toml", "[resources.big]\ncpu = 1\nram = 3\n", r"'big' has no field 'ram'; there are cpu, gpu"),
        (".torchxconfig", "a = 1\n", r"\.torchxconfig, line 1: something is set before the first \[section\]"),
        (".torchxconfig", "[local]\na = 1\na = 2\n", r"line 3: 'a' is set twice"),
        (".torchxconfig", "[local]\na = 1\n[local]\n", r"line 3: the section \[local\] appears twice"),
        (".torchxconfig", "[local]\nnonsense\n", r"line 2: this is not of the form key = value"),
        ("pyproject.toml", "[tool.holdfast\n", r"pyproject\.toml, line 1: "),
    ],
)
def test_a_malformed_file_is_told_in_a_sentence_with_its_line(
    tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(UsageError, match=sentence) as raised:
        load_dirs([tmp_path]).resources()
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UsageError, match="not text in UTF-8"):
        read(tmp_path / "x.toml")


def test_an_unknown_section_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".holdfast.toml").write_text("[schedular.local]\na = 1\n")
    load_dirs([tmp_path])

    assert "the section [schedular] is not known" in caplog.text


def test_every_setting_in_force_is_told_with_its_file(tmp_path: Path) -> None:
    low = scheduler(tmp_path / "low" / ".holdfast.toml", a="1", b="1")
    high = scheduler(tmp_path / "high" / ".holdfast.toml", a="2")
    found = dict(load_dirs([high.parent, low.parent]).settings())

    assert found == {
        "scheduler.local.a": config.Setting("2", str(high)),
        "scheduler.local.b": config.Setting("1", str(low)),
    }


def test_the_template_sets_nothing_and_every_line_of_it_can_be_set(tmp_path: Path) -> None:
    opts = options()
    opts.add("queue", type_=str, help="where it\n  waits", required=True)
    opts.add("labels", type_=dict[str, str], help="labels")
    opts.add("rate", type_=float, help="rate", default=0.5)
    text = template({"local": opts, "odd name": runopts()})

    assert tomllib.loads(text) == {"cli": {"run": {}}, "scheduler": {"local": {}, "odd name": {}}}
    assert "# queue (str, required): where it waits" in text
    opened = tomllib.loads(
        "\n".join(
            line.removeprefix("# ") if " = " in line and "#  " not in line else line for line in text.splitlines()
        )
    )
    assert opened["scheduler"]["local"] == {
        "count": 0,
        "tags": [],
        "quiet": False,
        "queue": "",
        "labels": {},
        "rate": 0.5,
    }


@pytest.mark.parametrize(
    "thing", ["plain", 'quo"te\\ \n\t\x7f ü', 3, -0.5, 1e300, True, [], ["a", 1], {}, {"a b": [1, {"c": "d"}]}]
)
def test_values_are_written_as_toml_reads_them(thing: object) -> None:
    assert tomllib.loads(f"{key('odd.key')} = {value(thing)}") == {"odd.key": thing}
