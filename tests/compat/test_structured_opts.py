"""Run options as a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from holdfast.compat.torchx.structured_opts import StructuredOpts, snake_to_camel
from holdfast.specs import InvalidRunConfigError


@dataclass
class Cluster(StructuredOpts):
    context: str = "default"
    """Which cluster."""


@dataclass
class Opts(StructuredOpts):
    queue_name: str
    """Where the job
    waits."""

    retries: int = 3
    tags: list[str] = field(default_factory=list)
    """Words."""
    mail_user: str | None = field(default=None, metadata={"cfg_key": "mail-user"})
    """Who is told."""
    k8s: Cluster = field(default_factory=Cluster)
    _own: int = 7


@dataclass
class More(Opts):
    retries: int = 5
    """How often."""


def test_the_fields_are_the_run_options() -> None:
    options = Opts.as_runopts()

    assert {key: (option.help, option.default, option.is_required) for key, option in options} == {
        "queue_name": ("Where the job waits.", None, True),
        "retries": ("retries", 3, False),
        "tags": ("Words.", [], False),
        "mail-user": ("Who is told.", None, False),
        "k8s.context": ("Which cluster.", "default", False),
    }
    assert More.as_runopts().get("retries").help == "How often."  # type: ignore[union-attr]
    assert More.as_runopts().get("tags").help == "Words."  # type: ignore[union-attr]


def test_options_that_were_read_become_fields() -> None:
    options = Opts.as_runopts()

    opts = Opts.from_cfg(options.resolve(options.cfg_from_str("queue_name=gpu,tags=a,b,mail-user=me,k8s.context=east")))

    assert (opts.queue_name, opts.retries, opts.tags, opts.mail_user, opts.k8s.context) == (
        "gpu",
        3,
        ["a", "b"],
        "me",
        "east",
    )
    assert Opts.from_cfg({"queueName": "x", "k8s.context": "y", "unknown": 1}).k8s == Cluster("y")
    assert Opts.from_cfg({"queue_name": "x", "retries": 0}).retries == 0


def test_they_are_a_mapping_by_the_keys_that_users_write() -> None:
    opts = Opts("gpu", mail_user="me")

    assert dict(opts) == {"queue_name": "gpu", "retries": 3, "tags": [], "mail-user": "me", "k8s.context": "default"}
    assert (len(opts), opts.get("mail_user"), opts.get("_own")) == (5, None, None)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidRunConfigError, match="the run option 'queue_name' is required") as raised:
        Opts.from_cfg({})

    assert raised.value.cfg_key == "queue_name"
    assert snake_to_camel("enable_debug_mode") == "enableDebugMode"
