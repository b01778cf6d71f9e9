"""Rivals live in a cache folder, and one that cannot be installed is no error."""

import sys
from pathlib import Path

from bench import _rivals


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv("HOLDFAST_BENCH_CACHE", raising=False)
    assert _rivals.cache() == tmp_path / "caches" / "holdfast-bench"

    monkeypatch.setenv("HOLDFAST_BENCH_CACHE", str(tmp_path / "mine"))
    assert _rivals.cache() == tmp_path / "mine"


def test_an_environment_is_made_once_for_each_version(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_BENCH_CACHE", str(tmp_path))
    kept = tmp_path / f"rival-1.0-py{sys.version_info.major}.{sys.version_info.minor}"
    _rivals.python_of(kept).parent.mkdir(parents=True)
    _rivals.python_of(kept).touch()

    assert _rivals.environment("rival==1.0") == kept


def test_what_cannot_be_installed_is_said_and_not_raised(tmp_path, capfd):
    here = Path(sys.prefix)

    assert _rivals.has(here, "json")
    assert not _rivals.has(here, "no_such_module")
    assert not _rivals.install(here, [str(tmp_path / "no-such-package")])
    assert "no-such-package" in capfd.readouterr().err
