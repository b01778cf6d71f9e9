"""The store as a worker finds it in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.store import from_environ
from holdfast.testing.store_server import StoreServer


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What an agent would give to a worker, less the endpoint."""
    secret = tmp_path / "secret"
    secret.write_text("open sesame, please")
    secret.chmod(0o600)
    return {"HOLDFAST_STORE_SPACE": "job/1.abc", "HOLDFAST_SECRET_FILE": str(secret)}


def test_it_is_the_store_of_the_round_and_proves_the_secret(environ: dict[str, str]) -> None:
    with StoreServer(secret=b"open sesame, please") as server:
        environ["HOLDFAST_ENDPOINT"] = str(server.endpoint)
        with from_environ(environ) as store, from_environ(environ) as other:
            store.set("key", "value")

            assert store.space == "job/1.abc"
            assert other.get("key", 0) == b"value"


def test_the_process_environment_is_what_counts_when_none_is_given(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreServer(secret=b"open sesame, please") as server:
        for name, value in {**environ, "HOLDFAST_ENDPOINT": str(server.endpoint)}.items():
            monkeypatch.setenv(name, value)
        with from_environ(timeout=5) as store:
            assert store.num_keys() == 0
            assert store.timeout.total_seconds() == 5


@pytest.mark.parametrize("missing", ["HOLDFAST_ENDPOINT", "HOLDFAST_STORE_SPACE"])
def test_outside_a_launch_the_error_says_how_to_start_the_script(environ: dict[str, str], missing: str) -> None:
    environ["HOLDFAST_ENDPOINT"] = "localhost:1"
    del environ[missing]

    with pytest.raises(UsageError, match=rf"\${missing} is not set.*start the script with `holdfast launch`"):
        from_environ(environ)
