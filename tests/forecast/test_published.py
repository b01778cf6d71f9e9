"""The forecast beside published figures, and the page that shows it."""

from dataclasses import replace
from random import Random

import pytest
from bench.forecast import PAGE, POINTS, RESULTS, comparisons, is_close, outcomes, page
from bench.harness import load

from holdfast.forecast.fleet import Fleet
from holdfast.forecast.formula import published

NAMES = [each.name for each in comparisons()]


@pytest.mark.parametrize("name", NAMES)
def test_a_forecast_comes_within_two_points_of_what_was_published(name):
    each, formula, simulation = outcomes()[NAMES.index(name)]

    assert is_close(each, formula, simulation) or each.beyond, f"{each.published} published, {formula} and {simulation}"


def test_what_the_issue_names_is_claimed():
    claimed = [each.name for each in comparisons() if not each.beyond]

    assert [name for name in claimed if name.startswith("Llama 3")]
    assert len([name for name in claimed if name.startswith("FT-HSDP")]) == 2
    assert len([name for name in claimed if name.startswith("RSC-1")]) >= 3


def test_the_rate_of_rsc_gives_its_published_times_between_failures():
    hours = {each.plan.nodes * 8: each.plan.between_s / 3600 for each in comparisons() if "RSC" in each.name}

    assert hours[16_384] == pytest.approx(1.8, abs=0.05)
    assert hours[131_072] == pytest.approx(0.23, abs=0.006)


def test_the_real_machines_agree_with_the_published_formula_on_llama():
    plan = comparisons()[0].plan
    small = replace(plan, nodes=16, node_mtbf_s=16 * plan.between_s)  # as many failures, of larger nodes

    goodput = Fleet(small, Random(2)).run(30).shares().goodput

    assert 100 * goodput == pytest.approx(100 * published(plan), abs=POINTS)


def test_the_page_is_what_the_script_writes():
    assert PAGE.read_text() == page(load(RESULTS).get("forecast")), "run `python -m bench.forecast --page`"
