"""`holdfast configure` and `holdfast runopts`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.cli.conftest import Invoke


def test_a_file_is_written_once_and_not_over_another(invoke: Invoke) -> None:
    said = invoke("configure")
    path = Path(".holdfast.toml")

    assert said.out == f"{path.resolve()} written\n"
    assert "local" in tomllib.loads(path.read_text())["scheduler"]
    assert "# log_dir (str, no default)" in path.read_text()
    path.write_text("# mine\n")
    refused = invoke("configure")
    assert refused.code == 2
    assert "--force" in refused.err
    assert path.read_text() == "# mine\n"
    assert invoke("configure", "--force", "-s", "local").code == 0
    assert "[scheduler.local]" in path.read_text()


def test_every_value_in_force_is_shown_with_its_origin(invoke: Invoke, tmp_path: Path) -> None:
    Path(".holdfast.toml").write_text(
        '[cli.run]\ncomponent = "utils.echo"\n[scheduler.local]\nlog_dir = "/logs"\nodd = 1\n'
    )
    (tmp_path / "home" / ".torchxconfig").write_text("[local]\nlog_dir = /home/logs\ncancel_grace_s = 3\n")
    here, home = str(Path(".holdfast.toml").resolve()), str(tmp_path / "home" / ".torchxconfig")
    found = {row["name"]: (row["value"], row["from"]) for row in invoke("configure", "--json").data}

    assert found["scheduler.local.log_dir"] == ("/logs", here)
    assert found["scheduler.local.cancel_grace_s"] == ("3", home)
    assert found["scheduler.local.odd"] == (1, here)
    assert found["scheduler.local.prepend_cwd"] == (False, "default")
    assert found["cli.run.component"] == ("utils.echo", here)
    table = invoke("configure", "--print", "-s", "local").out
    assert table.startswith("SETTING")
    assert "/logs" in table


def test_a_malformed_file_is_named_with_its_line(invoke: Invoke) -> None:
    Path(".holdfast.toml").write_text("[cli.run]\ncomponent =\n")

    for words in (("run", "utils.echo"), ("configure", "--print")):
        said = invoke(*words)
        assert said.code == 2
        assert ".holdfast.toml, line 2: " in said.err


def test_run_options_are_shown_by_scheduler(invoke: Invoke) -> None:
    assert invoke("runopts", "local").out.startswith("local (also local_cwd):\n")
    assert "\nlocal_cwd:" not in invoke("runopts").out
    assert "log_dir" in invoke("runopts", "local_cwd").out
    names = {option["name"]: option["type"] for option in invoke("runopts", "--json", "local").data["local"]}
    assert names["log_dir"] == "str"
    said = invoke("runopts", "nowhere")
    assert said.code == 2
    assert "there is no scheduler 'nowhere'" in said.err
