"""`holdfast forecast`: words, data and refusals."""

import json

import pytest
from click.testing import CliRunner

from holdfast.cli.forecast import command
from holdfast.errors import UsageError
from holdfast.forecast.report import FAILURES_MAX

QUICK = ("--runs", "2", "--days", "3", "--no-machines")


def ask(*words):
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_a_forecast_says_goodput_losses_and_what_is_best():
    said = ask("--gpus", "1024", "--mtbf-node", "5000h", "--checkpoint", "60s", *QUICK).output

    assert said.startswith("1,024 GPUs on 128 nodes; a failure every 1 d 15 h\n")
    for words in (
        "%  by formula",
        "%  by simulation: 2 times 3 days",
        "checkpoints: a pause of 1 min 00 s after every ",
        "work done again: ",
        "recovery: 2 min 05 s for each failure",
        "best       a checkpoint after every ",
        " spare nodes; ",
        "points  checkpoints that pause training for 6.0 s instead of 1 min 00 s",
    ):
        assert words in said


def test_the_real_machines_are_used_where_that_takes_seconds():
    said = ask("--gpus", "32", "--failure-every", "12h", "--runs", "1", "--days", "30").output
    too_many = ask("--gpus", "100000", "--failure-every", "1d", "--runs", "1", "--days", "1").output

    assert "%  with Holdfast's own coordinator and agents: 30 days, " in said
    assert "it would take minutes; --machines does it" in too_many


def test_data_for_programs():
    data = json.loads(ask("--gpus", "96", "--failure-every", "8h", "--replicas", "4", *QUICK, "--json").output)

    assert data["plan"]["nodes"] == 12
    assert data["between_failures_s"] == pytest.approx(8 * 3600)
    assert data["formula"]["goodput"] + sum(data["formula"]["losses"].values()) == pytest.approx(1)
    assert data["simulation"]["runs"] == 2
    assert data["machines"] is None
    assert data["best"]["spares"] >= 1


def test_spares_and_interval_that_are_given_are_used_and_better_ones_named():
    said = ask("--gpus", "1024", "--failure-every", "8h", "--spares", "0", "--checkpoint-every", "6h", *QUICK).output

    assert "more than 0 out at a time" in said
    assert "spare nodes instead of 0" in said
    assert "after every 6 h 00 min" in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "give either --mtbf-node"),
        (("--mtbf-node", "1h", "--failure-every", "1h"), "give either --mtbf-node"),
        (("--mtbf-node", "1h", "--checkpoint-every", "0"), "more than 0"),
        (("--mtbf-node", "0h"), "more than 0"),
    ],
)
def test_a_plan_that_makes_no_sense_gets_a_sentence(words, reason):
    with pytest.raises(UsageError, match=reason):
        ask("--gpus", "8", *words)


@pytest.mark.parametrize(("flag", "value"), [("--detect", "soon"), ("--needs-repair", "most")])
def test_a_value_that_cannot_be_read_is_named(flag, value):
    done = ask("--gpus", "8", "--mtbf-node", "1h", flag, value)

    assert done.exit_code == 2
    assert value in done.output


def test_numbers_beyond_any_cluster_are_answered_in_seconds():
    with pytest.raises(UsageError, match="nodes are being repaired at a time; a forecast goes up to 1,000: check"):
        ask("--gpus", "99999999999", "--mtbf-node", "50000h")
    data = json.loads(ask("--gpus", "1024", "--mtbf-node", "1s", "--repair", "1ms", "--no-machines", "--json").output)

    assert data["simulation"]["failures"] < 2 * FAILURES_MAX
    assert data["simulation"]["days"] < 30
