"""What every scheduler must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_scheduler)

`make()` returns a scheduler that knows no jobs, and `make()` called again another object that sees the same ones. The
apps that the cases submit run `sh`, `echo`, `sleep` and `exit`; `settings` say what else they need on your cluster. A
case fails with an `AssertionError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.api import (
    DescribeAppResponse,
    LogQuery,
    Scheduler,
    Stream,
    list_jobs,
    read_log,
    validate,
    wait_news,
)
from holdfast.specs import AppDef, AppState, CfgVal, Resource, Role, is_terminal, macros, parse_app_handle, runopts
from holdfast.testing.cases import Cases, raises

#: How long a case waits for a job before it fails.
PATIENCE_S = 90.0
#: How long a job sleeps that is meant to be cancelled.
FOREVER_S = 3600


@dataclass
class Settings:
    """What the apps of the cases need besides their commands."""

    image: str = "busybox"
    cfg: dict[str, CfgVal] = field(default_factory=dict)
    resource: Resource = field(default_factory=lambda: Resource(cpu=1, gpu=0, memMB=64))
    #: Whether stdout and stderr can be told apart in the logs.
    tells_streams: bool = True
    #: Whether `since` and `until` choose lines.
    knows_times: bool = True


@dataclass
class Bench:
    """What a case works with."""

    make: Callable[[], Scheduler[Any]]
    settings: Settings

    def app(self, script: str, replicas: int = 1, name: str = "contract") -> AppDef:
        """Make an app of one role, `main`, whose replicas run this script."""
        role = Role(
            "main",
            self.settings.image,
            entrypoint="sh",
            args=["-c", script],
            num_replicas=replicas,
            resource=Resource.copy(self.settings.resource),
        )
        return AppDef(name, [role])

    def submit(self, scheduler: Scheduler[Any], script: str, replicas: int = 1) -> str:
        """Submit such an app and return the job's id."""
        return scheduler.submit(self.app(script, replicas), self.settings.cfg)

    def wait(
        self, scheduler: Scheduler[Any], app_id: str, until: Callable[[DescribeAppResponse], bool] | None = None
    ) -> DescribeAppResponse:
        """Wait until a job has ended, or is as wanted, and return what is said of it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = scheduler.describe(app_id)
            assert found is not None, f"the job {app_id} is gone"
            if until(found) if until is not None else is_terminal(found.state):
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"the job {app_id} is still {found.state.name}: {found.msg}"
            wait_news(scheduler, app_id, min(left, 1.0))

    def lines(self, scheduler: Scheduler[Any], app_id: str, **options: Any) -> list[str]:
        """Return the log of the first replica."""
        return lines_of(scheduler.log_iter(app_id, "main", **options))


Case = Callable[[Bench], None]
_case: Cases[Case] = Cases()


def scheduler_cases() -> list[Callable[..., None]]:
    """Return every case, in a fixed order; each takes `make`, and `settings` where yours differ."""
    return [_with_bench(case) for case in _case.all()]


def _with_bench(case: Case) -> Callable[..., None]:
    def run(make: Callable[[], Scheduler[Any]], settings: Settings | None = None) -> None:
        case(Bench(make, settings or Settings()))

    run.__name__, run.__doc__ = case.__name__, case.__doc__
    return run


def lines_of(found: Iterable[str]) -> list[str]:
    """Return lines without their ends, which older schedulers leave on."""
    return [line.removesuffix("\n") for line in found]


# -- before a job ------------------------------------------------------------------------------------------------------


@_case
def a_dry_run_shows_the_request_and_starts_nothing(bench: Bench) -> None:
    """The request can be printed, knows its app and options, and no job is there."""
    scheduler = bench.make()
    app = bench.app("echo hello")
    validate(scheduler, app, bench.settings.cfg)
    info = scheduler.submit_dryrun(app, bench.settings.cfg)

    assert str(info)
    assert info.app is app
    assert set(bench.settings.cfg) <= set(info.cfg)
    assert list_jobs(scheduler) == []


@_case
def a_dry_run_can_be_submitted(bench: Bench) -> None:
    """What the dry run shows is what runs."""
    scheduler = bench.make()
    app_id = scheduler.schedule(scheduler.submit_dryrun(bench.app("echo hello"), bench.settings.cfg))

    assert bench.wait(scheduler, app_id).state is AppState.SUCCEEDED


@_case
def run_options_explain_themselves(bench: Bench) -> None:
    """Every option has a help text, and the defaults can be resolved."""
    options = bench.make().run_opts()

    assert isinstance(options, runopts)
    assert all(option.help for _, option in options)
    assert dict(bench.settings.cfg).items() <= options.resolve(bench.settings.cfg).items()


# -- the life of a job -------------------------------------------------------------------------------------------------


@_case
def a_job_that_succeeds_says_so(bench: Bench) -> None:
    """The state, each replica, and what was submitted can be asked for afterwards."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo hello", replicas=2)
    found = bench.wait(scheduler, app_id)

    assert found.app_id == app_id
    assert found.state is AppState.SUCCEEDED
    assert [role.role for role in found.roles_statuses] == ["main"]
    assert [(each.id, each.state) for each in found.roles_statuses[0].replicas] == [
        (0, AppState.SUCCEEDED),
        (1, AppState.SUCCEEDED),
    ]
    assert [(role.name, role.num_replicas) for role in found.roles] == [("main", 2)]


@_case
def a_job_that_fails_says_so(bench: Bench) -> None:
    """One replica that fails makes the job fail."""
    scheduler = bench.make()
    found = bench.wait(scheduler, bench.submit(scheduler, "echo oh no; exit 3"))

    assert found.state is AppState.FAILED
    replica = found.roles_statuses[0].replicas[0]
    assert replica.state is AppState.FAILED
    assert replica.exit_code in (3, None), "an exit code is the true one, or not known"


@_case
def a_job_that_runs_is_running(bench: Bench) -> None:
    """It is seen running, and nothing ends it by itself."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, f"echo up; sleep {FOREVER_S}")
    found = bench.wait(scheduler, app_id, lambda found: found.state is AppState.RUNNING)

    assert not is_terminal(found.state)
    assert found.ended_at is None
    scheduler.cancel(app_id)
    bench.wait(scheduler, app_id)


@_case
def every_submission_is_a_job_of_its_own(bench: Bench) -> None:
    """The same app twice gives two ids."""
    scheduler = bench.make()
    first, second = (bench.submit(scheduler, "echo hello") for _ in range(2))

    assert first != second
    assert bench.wait(scheduler, first).app_id == first
    assert bench.wait(scheduler, second).app_id == second


@_case
def another_scheduler_object_sees_the_job(bench: Bench) -> None:
    """What one object submitted another can watch; closing the first changes nothing."""
    with bench.make() as first:
        app_id = bench.submit(first, "echo hello")
    other = bench.make()

    assert other.exists(app_id)
    assert bench.wait(other, app_id).state is AppState.SUCCEEDED
    assert bench.lines(other, app_id) == ["hello"]


# -- what there is -----------------------------------------------------------------------------------------------------


@_case
def the_list_holds_every_job(bench: Bench) -> None:
    """Each has its id, its state, and a handle that leads back to it."""
    scheduler = bench.make()
    ids = [bench.submit(scheduler, "echo hello") for _ in range(3)]
    for app_id in ids:
        bench.wait(scheduler, app_id)
    found = list_jobs(scheduler)

    assert sorted(app.app_id for app in found) == sorted(ids)
    assert {app.state for app in found} == {AppState.SUCCEEDED}
    assert all(parse_app_handle(app.app_handle).app_id == app.app_id for app in found)


@_case
def a_job_that_is_not_there_is_none(bench: Bench) -> None:
    """Asking for it and ending it raise no error."""
    scheduler = bench.make()

    assert scheduler.describe("never-was") is None
    assert not scheduler.exists("never-was")
    scheduler.cancel("never-was")
    scheduler.delete("never-was")


# -- the end -----------------------------------------------------------------------------------------------------------


@_case
def a_cancelled_job_ends_as_cancelled(bench: Bench) -> None:
    """It stays there to be looked at, and cancelling again changes nothing."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, f"echo up; sleep {FOREVER_S}", replicas=2)
    bench.wait(scheduler, app_id, lambda found: found.state is AppState.RUNNING)
    scheduler.cancel(app_id)
    scheduler.cancel(app_id)
    found = bench.wait(scheduler, app_id)
    scheduler.cancel(app_id)

    assert found.state is AppState.CANCELLED
    assert not any(each.state is AppState.SUCCEEDED for each in found.roles_statuses[0].replicas)
    again = scheduler.describe(app_id)
    assert again is not None
    assert again.state is AppState.CANCELLED


@_case
def cancelling_a_job_that_has_ended_changes_nothing(bench: Bench) -> None:
    """It stays succeeded."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo hello")
    bench.wait(scheduler, app_id)
    scheduler.cancel(app_id)

    assert bench.wait(scheduler, app_id).state is AppState.SUCCEEDED


@_case
def a_deleted_job_does_not_run_on(bench: Bench) -> None:
    """A running one is ended; it is gone, or at least cancelled where the cluster keeps its jobs."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, f"echo up; sleep {FOREVER_S}")
    bench.wait(scheduler, app_id, lambda found: found.state is AppState.RUNNING)
    scheduler.delete(app_id)
    found = scheduler.describe(app_id)

    assert found is None or bench.wait(scheduler, app_id).state is AppState.CANCELLED


# -- logs --------------------------------------------------------------------------------------------------------------


@_case
def logs_hold_every_line_in_order(bench: Bench) -> None:
    """Also those of a job that has ended, and the same each time."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo one; echo two; echo three")
    bench.wait(scheduler, app_id)

    assert bench.lines(scheduler, app_id) == ["one", "two", "three"]
    assert bench.lines(scheduler, app_id, should_tail=True) == ["one", "two", "three"]


@_case
def following_a_log_ends_with_the_job(bench: Bench) -> None:
    """A reader that follows from the beginning misses nothing, and is released at the end."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo one; echo two")

    assert bench.lines(scheduler, app_id, should_tail=True) == ["one", "two"]
    assert is_terminal(bench.wait(scheduler, app_id).state)


@_case
def lines_come_while_the_job_runs(bench: Bench) -> None:
    """A follower sees a line of a job that has not ended, and is let go when it is cancelled."""
    scheduler = bench.make()
    # With exec: where every process of a job is told to end, a shell may outlive its child, and say of what it died.
    app_id = bench.submit(scheduler, f"echo up; exec sleep {FOREVER_S}")
    lines = iter(scheduler.log_iter(app_id, "main", should_tail=True))

    assert next(lines).removesuffix("\n") == "up"
    bench.make().cancel(app_id)
    assert list(lines) == []


@_case
def each_replica_has_its_own_log(bench: Bench) -> None:
    """Asked for by role and number; the macros were filled in."""
    scheduler = bench.make()
    app = bench.app(f"echo I am {macros.replica_id}", replicas=3)
    app_id = scheduler.submit(app, bench.settings.cfg)
    bench.wait(scheduler, app_id)
    found = [lines_of(scheduler.log_iter(app_id, "main", k)) for k in range(3)]

    assert found == [["I am 0"], ["I am 1"], ["I am 2"]]


@_case
def a_regex_keeps_the_lines_in_which_it_is_found(bench: Bench) -> None:
    """Anywhere in the line."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo loss 1; echo step 2; echo loss 3")
    bench.wait(scheduler, app_id)

    assert bench.lines(scheduler, app_id, regex=r"loss \d") == ["loss 1", "loss 3"]


@_case
def streams_are_told_apart(bench: Bench) -> None:
    """Where the scheduler can."""
    if not bench.settings.tells_streams:
        return
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo out; echo err >&2")
    bench.wait(scheduler, app_id)

    assert bench.lines(scheduler, app_id, streams=Stream.STDOUT) == ["out"]
    assert bench.lines(scheduler, app_id, streams=Stream.STDERR) == ["err"]
    assert sorted(bench.lines(scheduler, app_id, streams=Stream.COMBINED)) == ["err", "out"]


@_case
def times_choose_lines(bench: Bench) -> None:
    """Where the scheduler knows when each was written."""
    if not bench.settings.knows_times:
        return
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo now")
    bench.wait(scheduler, app_id)
    hour = timedelta(hours=1)
    now = datetime.now(UTC)

    assert bench.lines(scheduler, app_id, since=now - hour, until=now + hour) == ["now"]
    assert bench.lines(scheduler, app_id, since=now + hour) == []
    assert bench.lines(scheduler, app_id, until=now - hour) == []


@_case
def lines_may_come_with_their_times(bench: Bench) -> None:
    """The same lines as without; where the scheduler keeps no times, each is 0.0."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo one; echo two; echo three")
    bench.wait(scheduler, app_id)
    entries = list(read_log(scheduler, app_id, LogQuery("main")))
    times = [at for at, _ in entries]

    assert lines_of(line for _, line in entries) == ["one", "two", "three"]
    assert times == [0.0] * 3 or (times == sorted(times) and abs(times[0] - time.time()) < FOREVER_S)


@_case
def a_log_that_is_not_there_is_refused(bench: Bench) -> None:
    """A mistyped job, role or replica is an error at once, and no endless wait."""
    scheduler = bench.make()
    app_id = bench.submit(scheduler, "echo hello")
    bench.wait(scheduler, app_id)

    for wrong in (("never-was", "main", 0), (app_id, "mian", 0), (app_id, "main", 7)):
        assert raises(UsageError, lambda wrong=wrong: list(scheduler.log_iter(*wrong, should_tail=True)))  # type: ignore[misc]
