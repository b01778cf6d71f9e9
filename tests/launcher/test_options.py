"""The table of flags, and what is made from it."""

from __future__ import annotations

import dataclasses

import click
import pytest

from holdfast.agent.health import HEALTH_TIMEOUT_S
from holdfast.agent.machine import SHUTDOWN_TIMEOUT_S
from holdfast.cli.launch import command as launch
from holdfast.cli.run import command as run
from holdfast.coordinator.messages import Admit
from holdfast.launcher.api import SHUTDOWN_VARIABLE
from holdfast.launcher.config import FLAGS_OF_THEIR_OWN
from holdfast.launcher.options import FLAGS, OPTIONS, Group, LaunchOptions, words_of
from holdfast.quantities import parse_duration
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.settings import SETTINGS, node_settings, run_settings
from holdfast.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE
from holdfast.workers import AffinityMode
from holdfast.workers.functions import START_METHODS
from tests.launcher import options_page


def test_the_page_is_up_to_date() -> None:
    assert options_page.page() == options_page.PAGE.read_text(), "run: python tests/launcher/options_page.py"


def test_every_field_but_the_script_is_a_flag_of_both_commands() -> None:
    names = {field.name for field in dataclasses.fields(LaunchOptions)} - {"script", "script_args"}

    assert set(OPTIONS) == names
    for command in (launch, run):
        assert names <= {param.name for param in command.params}


def test_a_default_is_written_once() -> None:
    """What a flag says of its default where it has none itself is what holds elsewhere."""
    params = RendezvousParameters("holdfast", "", "r", 1, 1)
    settings, node = run_settings(params), node_settings(params)

    assert parse_duration(OPTIONS["join_timeout"].otherwise) == node.join_timeout_s
    assert parse_duration(OPTIONS["last_call"].otherwise) == settings.last_call_s
    assert parse_duration(OPTIONS["lease"].otherwise) == node.lease_s
    assert parse_duration(OPTIONS["progress_after"].otherwise) == settings.progress_s
    assert Admit(OPTIONS["admit"].otherwise) is settings.admit
    assert parse_duration(OPTIONS["health_timeout"].otherwise) == HEALTH_TIMEOUT_S
    assert OPTIONS["shutdown_timeout"].otherwise == f"{SHUTDOWN_TIMEOUT_S:g}, or ${SHUTDOWN_VARIABLE}"
    assert list(OPTIONS["numa_binding"].values) == [mode.value for mode in AffinityMode]
    assert OPTIONS["start_method"].values == START_METHODS
    assert [OPTIONS[f"tls_{part}"].variable for part in ("cert", "key", "ca")] == [
        CERT_VARIABLE,
        KEY_VARIABLE,
        CA_VARIABLE,
    ]


def test_settings_behind_flags_are_known_to_the_rendezvous() -> None:
    assert {option.setting for option in OPTIONS.values() if option.setting} <= SETTINGS
    assert set(FLAGS_OF_THEIR_OWN.values()) <= set(FLAGS)


def test_words_are_read_back_as_they_were() -> None:
    options = {"max_restarts": 3, "role": "-x", "vault": True, "metrics": ("a", "b"), "lease": None, "json": False}
    params = launch.make_context("launch", [*words_of(options), "s.py"]).params

    assert {name: params[name] for name in options} == options


@pytest.mark.parametrize("group", Group)
def test_help_shows_flags_under_what_they_are_about(group: Group) -> None:
    text = launch.get_help(click.Context(launch))
    section = text.partition(f"{group.value}:\n")[2].partition("\n\n")[0]
    flags = [option.flag for option in OPTIONS.values() if option.group is group and not option.common]

    assert all(flag in section for flag in flags)
    places = [section.index(f"{flag} ") if f"{flag} " in section else section.index(flag) for flag in flags]
    assert places == sorted(places)


def test_help_begins_with_the_ten_flags_that_people_use_first() -> None:
    text = launch.get_help(click.Context(launch))
    section = text.partition("Most used:\n")[2].partition("\n\n")[0]
    flags = [option.flag for option in OPTIONS.values() if option.common]

    assert len(flags) == 10
    assert [word for word in section.split() if word in flags] == flags
    assert text.index("Most used:") < text.index("Options:")


def test_help_of_run_is_short_and_says_where_the_rest_is() -> None:
    text = run.get_help(click.Context(run))

    assert "--max-restarts" in text
    assert "--duplicate-stdout-filters" not in text
    assert "takes the flags of `holdfast launch`" in " ".join(text.split())
    assert "[default: 1x1]" in text
