"""The console sink prints what the console handler prints."""

from __future__ import annotations

import pytest

from holdfast import metrics
from holdfast.errors import UsageError
from holdfast.metrics.chosen import configure_from
from tests.metrics.conftest import PATIENCE_S


def test_values_are_printed_in_the_seeds_format(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = configure_from(["console"])
    metrics.put_metric("x", 1, "my_app")
    metrics.put_metric("y", 2.5, "my_app")
    chosen.close(PATIENCE_S)

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("]")[2] for line in lines] == ["[my_app]: x=1", "[my_app]: y=2.5"]


def test_an_argument_is_refused() -> None:
    with pytest.raises(UsageError, match="takes nothing after its name"):
        configure_from(["console:stderr"])
