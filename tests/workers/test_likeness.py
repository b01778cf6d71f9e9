"""A forked worker and an executed one: every fact about the process that a program can look at is the same."""

import json
import os
import resource
import select
import signal
from pathlib import Path

import pytest

from holdfast.workers import Module, Script, Std, Template, kept
from holdfast.workers.standbys import Standbys

#: What the script below imports; the template has it already.
MODULES = ["numpy", "multiprocessing", "logging", "tempfile"]

#: A program that prints what it sees of its process.
FACTS = Path(__file__).with_name("likeness_facts.py").read_text()


@pytest.fixture
def facts_of(start, wait_all, tmp_path):
    """Run the script that prints its facts, with a template or without."""

    def run(entry, template=None, standbys=None):
        gang = start(entry, tee=Std.NONE, cwd=str(tmp_path), template=template, standbys=standbys)
        [exited] = wait_all(gang).values()
        gang.close()
        folder = max((tmp_path / "logs").glob("*/attempt_0/0"), key=lambda each: each.stat().st_mtime_ns)
        assert exited.exit_code == 0, (folder / "stderr.log").read_text()
        return json.loads((folder / "stdout.log").read_text())

    return run


@pytest.fixture
def template():
    template = Template(MODULES)
    assert template.wait_ready(240), template.why_not
    yield template
    template.close()


@pytest.mark.parametrize("entry", [Script("train.py", ("--flag", "a b", "\u00e9")), Module("train", ("x",))])
def test_a_program_sees_the_same_process_warm_and_cold(facts_of, script, template, tmp_path, entry):
    script(FACTS)

    cold, warm = facts_of(entry), facts_of(entry, template)

    assert (cold.pop("preloaded"), warm.pop("preloaded")) == (False, True)
    assert_alike(cold, warm)


def assert_alike(one, other):
    for key in ("environment", "shown environment"):  # each gang has folders and a token of its own
        one[key], other[key] = (_without_gang(facts[key]) for facts in (one, other))
    assert {key: (one[key], other[key]) for key in one if one[key] != other[key]} == {}


def test_a_program_sees_the_same_process_in_a_standby(facts_of, script, template):
    script(FACTS)
    standbys = Standbys(template, 1, workers=1, may_open=frozenset({"gpu", "nccl"}))
    try:
        standbys.look(0.0)
        select.select(standbys.filenos(), [], [], 60)
        standbys.look(0.0)
        forked = facts_of(Script("train.py"), template)
        stood_by = facts_of(Script("train.py"), template, standbys)
        assert standbys.filenos() == ()  # it was taken
    finally:
        standbys.close()

    assert_alike(forked, stood_by)


def test_a_program_sees_the_same_process_in_a_fork_of_a_kept_template(facts_of, script, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    script(FACTS)
    template = kept.keep(MODULES, os.environ, 600.0)
    try:
        assert template.wait_ready(240), template.why_not
        warm = facts_of(Script("train.py"), template)
    finally:
        template.close()
        os.kill(template.pid, signal.SIGKILL)
        os.waitpid(template.pid, 0)
    cold = facts_of(Script("train.py"))

    assert (cold.pop("preloaded"), warm.pop("preloaded")) == (False, True)
    assert (cold["session"].pop(), warm["session"].pop()) == (os.getpid(), template.pid)  # the keeper is its parent
    assert_alike(cold, warm)


def test_a_worker_inherits_what_its_agent_has_now_and_not_what_it_had_when_the_template_began(
    facts_of, script, template
):
    script(FACTS)
    before, umask = resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        cold, warm = facts_of(Script("train.py")), facts_of(Script("train.py"), template)
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert warm["limits"] == cold["limits"]
    assert warm["limits"]["RLIMIT_NOFILE"] == [before[0] - 1, before[1]]
    assert warm["identity"] == cold["identity"]
    assert "0027" in warm["identity"][0]


def _without_gang(pairs):
    """Leave only the names of variables that hold a gang's own folders or token."""
    shown = [pair if isinstance(pair, str) else "=".join(pair) for pair in pairs]
    return [
        each.partition("=")[0] if each.startswith(("HOLDFAST_", "TORCHELASTIC_ERROR_FILE")) else each for each in shown
    ]
