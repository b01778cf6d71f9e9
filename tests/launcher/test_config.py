"""What flags mean: options in, a config and an entrypoint out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.launcher.config import (
    config_from_options,
    parse_bytes,
    parse_config,
    parse_hang,
    parse_nnodes,
    parse_preload,
    split_filters,
)
from holdfast.launcher.options import LaunchOptions
from holdfast.timer.hang import HangOptions
from holdfast.workers import DefaultLogsSpecs, Module, NumaOptions, Program, Script


def config(**flags: Any) -> Any:
    return config_from_options(LaunchOptions(**{"script": "true", "no_python": True, **flags}))[0]


@pytest.mark.parametrize(("text", "nodes"), [("4", (4, 4)), ("2:4", (2, 4)), (" 1 : 3 ", (1, 3))])
def test_nnodes(text: str, nodes: tuple[int, int]) -> None:
    assert parse_nnodes(text) == nodes


@pytest.mark.parametrize("text", ["", "0", "3:2", "a", "1:2:3", "-1", "1:"])
def test_other_nnodes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--nnodes"):
        parse_nnodes(text)


@pytest.mark.parametrize(
    ("flags", "backend", "endpoint"),
    [
        ({}, "holdfast", "localhost:0"),
        ({"standalone": True, "rdzv_backend": "c10d", "rdzv_endpoint": "x:1"}, "holdfast", "localhost:0"),
        ({"nnodes": "2"}, "static", "127.0.0.1:29500"),
        ({"nnodes": "2", "master_addr": "10.0.0.1", "master_port": 1234}, "static", "10.0.0.1:1234"),
        ({"nnodes": "2", "master_addr": "fe80::1"}, "static", "[fe80::1]:29500"),
        ({"nnodes": "1:2"}, "holdfast", ""),
        ({"nnodes": "2", "rdzv_endpoint": "host-a:29400"}, "holdfast", "host-a:29400"),
        ({"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "host-a"}, "c10d", "host-a"),
    ],
)
def test_where_nodes_meet(flags: dict[str, Any], backend: str, endpoint: str) -> None:
    made = config(**flags)

    assert (made.rdzv_backend, made.rdzv_endpoint) == (backend, endpoint)


def test_a_lone_node_gets_an_id_that_no_other_run_has() -> None:
    assert config().run_id != config().run_id


@pytest.mark.parametrize("flags", [{}, {"standalone": True}, {"rdzv_backend": "static"}, {"rdzv_endpoint": "h:1"}])
def test_an_id_that_was_given_is_the_runs_id(flags: dict[str, Any]) -> None:
    assert config(rdzv_id="mine", **flags).run_id == "mine"


def test_our_flags_and_torchruns_settings_reach_the_rendezvous() -> None:
    made = config(nnodes="1:2", rdzv_conf="join_timeout=7,read_timeout=3", lease="500ms", admit="every:10m", spares=1)

    assert made.rdzv_configs == {
        "join_timeout": "7",
        "read_timeout": "3",
        "lease": "500ms",
        "admit": "every:10m",
        "spares": 1,
        "max_restarts": 0,
    }


def test_entrypoints(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")

    assert config_from_options(LaunchOptions(script=str(script), script_args=("a",)))[1] == Script(str(script), ("a",))
    assert config_from_options(LaunchOptions(script="pkg.train", module=True))[1] == Module("pkg.train")
    assert config_from_options(LaunchOptions(script="echo", no_python=True))[1] == Program(("echo",))
    with pytest.raises(UsageError, match="cannot be used together"):
        config_from_options(LaunchOptions(script="x", no_python=True, module=True))


def test_preloading_follows_the_scripts_imports_unless_told_otherwise(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nimport torch\n")
    entry = Script(str(script))

    assert parse_preload("auto", entry) == ("torch",)
    assert parse_preload("none", entry) == ()
    assert parse_preload("numpy, json", entry) == ("numpy", "json")
    with pytest.raises(UsageError, match="--preload needs a Python script"):
        parse_preload("torch", Program(("echo",)))


def test_small_languages() -> None:
    assert parse_config("a=1, b=x=y") == {"a": "1", "b": "x=y"}
    assert split_filters("one,two,,with comma") == ["one", "two,with comma"]
    assert split_filters("") is None
    assert [parse_bytes(text) for text in (None, "10", "64K", "2MiB", "1g")] == [None, 10, 65536, 2 << 20, 1 << 30]
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes("lots")


@pytest.mark.parametrize(
    "text", ["a=1,b=2", '"a=1,b=2"', "'a=1, b=2'", "a='1',\"b\"=2", " a = 1 , 'b=2',", "a=\"1\",b=' 2 '"]
)
def test_stray_quotes_and_spaces_around_settings_are_dropped(text: str) -> None:
    assert parse_config(text) == {"a": "1", "b": "2"}


def test_quotes_within_a_setting_stay() -> None:
    assert parse_config("a=it's,b='x'y'") == {"a": "it's", "b": "'x'y'"}


def test_what_has_a_flag_of_its_own_is_no_further_setting() -> None:
    with pytest.raises(UsageError, match="--rdzv-conf: 'run_id' is given by --rdzv-id, not as a further setting"):
        config(rdzv_conf="run_id=3")


def test_back_off_has_a_first_pause_and_a_longest() -> None:
    assert config(restart_backoff="1s:30s").local_options.backoff_s_max == 30.0
    assert config(restart_backoff="2").local_options.backoff_s == 2.0


def test_numa_binding_is_read() -> None:
    assert isinstance(config(numa_binding="node").numa_options, NumaOptions)


def test_log_layouts_come_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "sample_logs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-logs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nmine = sample_logs_layout:MyLogsSpecs\n")
    (tmp_path / "sample_logs_layout.py").write_text(
        "from holdfast.workers import DefaultLogsSpecs\nclass MyLogsSpecs(DefaultLogsSpecs):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    made = config(logs_specs="mine", log_dir=str(tmp_path)).logs_specs

    assert type(made).__name__ == "MyLogsSpecs"
    assert isinstance(made, DefaultLogsSpecs)
    with pytest.raises(UsageError, match=r"'other' is not an entry point of torchrun\.logs_specs: .*mine"):
        config(logs_specs="other")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("off", None),
        ("auto", HangOptions()),
        ("90s", HangOptions(limit_s=90.0)),
        ("auto:30m", HangOptions(start_s=1800.0)),
        ("90s:10m", HangOptions(limit_s=90.0, start_s=600.0)),
    ],
)
def test_hang(text: str, options: HangOptions | None) -> None:
    assert parse_hang(text) == options


@pytest.mark.parametrize("text", ["soon", "off:10m", "auto:soon", "1s:2s:3s"])
def test_other_hangs_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--hang"):
        parse_hang(text)


def test_the_silence_that_health_allows_can_be_chosen() -> None:
    assert config().local_options.health_timeout_s == 60.0
    assert config(health_timeout="5m").local_options.health_timeout_s == 300.0
    with pytest.raises(UsageError, match="--health-timeout"):
        config(health_timeout="0")
