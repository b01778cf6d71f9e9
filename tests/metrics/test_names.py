"""Names and values as sinks want them."""

from __future__ import annotations

import fractions

import pytest

from holdfast.errors import UsageError
from holdfast.metrics.names import is_duration, number, otel_name, prometheus_name, statsd_name


def test_durations_are_known_by_how_their_names_end() -> None:
    assert all(map(is_duration, ["step.duration.ms", "write_latency_ms", "epoch_duration"]))
    assert not any(map(is_duration, ["terms", "ms", "loss", "duration_of_step"]))


def test_each_system_gets_a_name_that_it_allows() -> None:
    assert prometheus_name("Trainer.step.duration.ms") == "holdfast_Trainer_step_duration_ms"
    assert prometheus_name("Läufe/s") == "holdfast_L_ufe_s"
    assert otel_name("loss (train)") == "loss__train_"
    assert otel_name("1st.loss") == "m_1st.loss"
    assert statsd_name("my app", "a:b|c@d") == "my_app.a_b_c_d"


def test_names_have_a_limit() -> None:
    assert max(len(make("n" * 1000)) for make in (prometheus_name, otel_name)) <= 255


def test_what_can_be_a_number_is_one_and_text_is_not() -> None:
    assert number(True) == 1
    assert number(fractions.Fraction(1, 4)) == 0.25
    for value in ("3", None, [1]):
        with pytest.raises(UsageError, match="must be a number"):
            number(value)
