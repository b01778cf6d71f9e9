"""Kept templates: the next launch of the same kind forks from what an earlier one has left, and no other does."""

import contextlib
import os
import signal
import textwrap
import time
import uuid
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError
from holdfast.workers import kept
from holdfast.workers.gangs import stopped_by_signal

PATIENCE_S = 240.0
PAUSES = "import os, signal; print('runs', os.getpid(), flush=True); signal.pause()"


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Have templates kept in a folder of the test's own; all keepers are gone when it ends."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / ("a-long-name" * 12)))
    taken, pids = [], set()

    def take(*modules, keep_s=600.0, **env):
        template = kept.keep(modules or ("json",), {**os.environ, **env}, keep_s)
        taken.append(template)
        pids.add(template.pid)
        return template

    yield take
    for template in taken:
        template.close()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def wait_idle(pid):
    """Wait until a keeper has noticed that its launch is gone."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if [each for each in kept.keepers() if each.get("pid") == pid and not each["busy"]]:
            return
        time.sleep(0.01)
    raise AssertionError("the keeper is still busy")


def test_the_next_launch_forks_from_the_template_that_was_left(keep, start, script, console, wait_all):
    path = script("import os; print('parent', os.getppid()); raise SystemExit(40 + int(os.environ['RANK']))")
    keepers = []
    for _ in range(2):
        template = keep("decimal")
        assert template.wait_ready(PATIENCE_S), template.why_not
        gang = start(path, 2, template=template)
        assert {rank: each.exit_code for rank, each in wait_all(gang).items()} == {0: 40, 1: 41}
        console.wait_line(f"parent {template.pid}".encode())
        gang.close()
        template.close()
        wait_idle(template.pid)
        keepers.append(template.pid)

    assert keepers[0] == keepers[1]
    [keeper] = kept.keepers()
    assert (keeper["modules"], keeper["launches"], keeper["busy"]) == (["decimal"], 2, False)


def test_a_worker_that_a_signal_ends_is_reported_as_such(keep, start, script, console, wait_all):
    template = keep()
    assert template.wait_ready(PATIENCE_S), template.why_not
    gang = start(script(PAUSES), template=template)
    console.wait_line(b"runs")
    os.kill(gang.pids()[0], signal.SIGSTOP)
    until = time.monotonic() + PATIENCE_S
    while not stopped_by_signal(gang.pids().values()):
        assert time.monotonic() < until
    os.kill(gang.pids()[0], signal.SIGKILL)

    assert wait_all(gang)[0].exit_code == -signal.SIGKILL


def test_what_a_worker_leaves_running_is_ended_with_its_gang(keep, start, script, console, wait_all, marked):
    marker = uuid.uuid4().hex
    template = keep()
    assert template.wait_ready(PATIENCE_S), template.why_not
    text = """
        import subprocess
        for anew in (False, True):
            subprocess.Popen(["sleep", "600"], start_new_session=anew)
    """
    gang = start(script(text), template=template, env={"MARK": marker})
    wait_all(gang)
    gang.close()

    assert marked(f"MARK={marker}") == []


@pytest.mark.parametrize("other", [{"PYTHONHASHSEED": "5"}, {"OMP_NUM_THREADS": "3"}])
def test_another_environment_gets_another_template(keep, other):
    first = keep()
    assert first.wait_ready(PATIENCE_S), first.why_not

    assert keep(**other).pid != first.pid


def test_other_modules_get_another_template_and_only_so_many_are_kept(keep):
    for name in ("json", "decimal", "fractions", "string"):
        assert keep(name).wait_ready(PATIENCE_S)

    assert len(kept.kept_keys(kept.warm_folder())) == kept.KEPT_MAX
    with pytest.raises(UnavailableError, match="holdfast warm stop"):
        keep("uuid")


def test_a_template_that_a_launch_uses_is_not_shared(keep):
    assert keep().wait_ready(PATIENCE_S)

    with pytest.raises(UnavailableError, match="another launch uses it"):
        keep()


def test_a_module_that_has_changed_since_is_imported_anew(
    keep, tmp_path, monkeypatch, start, script, console, wait_all
):
    name = f"kept_{uuid.uuid4().hex}"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module = tmp_path / f"{name}.py"
    path = script(f"import sys; print({name!r} in sys.modules); import {name}; print('value', {name}.VALUE)")
    for number in range(2):
        module.write_text(textwrap.dedent(f"VALUE = {number}"))
        os.utime(module, (number, number))  # bytecode is known by whole seconds
        template = keep(name)
        assert template.wait_ready(PATIENCE_S), template.why_not
        wait_all(start(path, template=template))
        console.wait_line(b"True", f"value {number}".encode())
        template.close()
        wait_idle(template.pid)


def test_workers_of_a_launch_that_has_gone_are_ended(keep, start, script, console, wait_all):
    template = keep()
    assert template.wait_ready(PATIENCE_S), template.why_not
    gang = start(script(PAUSES), template=template)
    console.wait_line(b"runs")
    template._control.shutdown(2)  # as the end of the launch's process does

    assert wait_all(gang)[0].failed
    wait_idle(template.pid)


def test_workers_die_with_their_keeper_and_the_next_ones_start_cold(keep, start, script, console, wait_all):
    template = keep()
    assert template.wait_ready(PATIENCE_S), template.why_not
    gang = start(script(PAUSES), template=template)
    console.wait_line(b"runs")
    os.kill(template.pid, signal.SIGKILL)

    assert wait_all(gang)[0].exit_code == -signal.SIGKILL
    gang = start(script("print('begun')", "other.py"), template=template)
    assert not wait_all(gang)[0].failed
    console.wait_line(b"begun")
    assert list(kept.keepers()) == []


def test_a_keeper_ends_when_no_launch_comes(keep, wait_gone):
    template = keep(keep_s=0.0)
    assert template.wait_ready(PATIENCE_S), template.why_not
    template.close()

    wait_gone([template.pid])
    os.waitpid(template.pid, 0)
    assert list(Path(os.environ["HOLDFAST_HOME"], "warm").iterdir()) == []


def test_a_caller_that_talks_nonsense_harms_no_launch(keep, start, script, wait_all):
    template = keep()
    assert template.wait_ready(PATIENCE_S), template.why_not
    [key] = kept.kept_keys(kept.warm_folder())
    for data in (b"", b"{", b"[]", b'{"ask": "attach"}', b'{"ask": "attach", "keep_s": null}', b"fork"):
        with kept._call(kept.warm_folder(), key) as connection:
            if data:
                connection.send(data)

    assert not wait_all(start(script("pass"), template=template))[0].failed
