"""Local jobs with real processes: they run, end, are retried, cancelled and told apart, from any shell."""

import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers.local import folders
from holdfast.schedulers.local.folders import Jobs
from holdfast.schedulers.local.keep import Policy
from holdfast.schedulers.local.record import JobRecord
from holdfast.schedulers.local.scheduler import LocalScheduler, _start_supervisor
from holdfast.specs import NONE, AppDef, AppState, RetryPolicy, Role

FOREVER = "echo up; sleep 1000"


# -- how a job ends ----------------------------------------------------------------------------------------------------


def test_a_failed_replica_has_its_true_exit_code_and_its_last_words(bench):
    app_id = bench.submit("echo fine; echo 'no such file' >&2; exit 42")
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert bench.replica(app_id).exit_code == 42
    assert found.msg == "main/0 failed: exited with code 42; its last line was: no such file"


def test_a_replica_that_was_killed_has_the_signal_as_its_exit_code(bench):
    app_id = bench.submit("kill -SEGV $$$$")

    assert bench.wait(app_id).state is AppState.FAILED
    assert bench.replica(app_id).exit_code == -signal.SIGSEGV
    assert "SIGSEGV" in bench.replica(app_id).cause


def test_the_error_file_tells_the_cause(bench):
    error = '{"message": {"message": "ValueError: bad loss", "extraInfo": {"timestamp": "1"}}}'
    app_id = bench.submit(f"echo '{error}' > $$TORCHELASTIC_ERROR_FILE; echo noise >&2; exit 1")
    found = bench.wait(app_id)

    assert found.msg == "main/0 failed: ValueError: bad loss"
    assert found.structured_error_msg == bench.replica(app_id).structured_error_msg == error


def test_a_program_that_is_not_there_is_named(bench):
    app = AppDef("job", [Role("main", "", entrypoint="no-such-program")])
    app_id = bench.scheduler.submit(app, {})
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert "cannot start 'no-such-program'" in found.msg
    assert bench.replica(app_id).exit_code is None
    assert bench.lines(app_id) == ["[holdfast: " + bench.replica(app_id).cause + "]"]


def test_one_dead_replica_ends_the_others(bench):
    app_id = bench.submit("test ${replica_id} = 1 && exit 7; sleep 1000", num_replicas=3)
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert "main/1 failed" in found.msg
    assert [(each.state, each.exit_code) for each in found.roles_statuses[0].replicas] == [
        (AppState.CANCELLED, -signal.SIGTERM),
        (AppState.FAILED, 7),
        (AppState.CANCELLED, -signal.SIGTERM),
    ]


def test_what_a_replica_leaves_behind_ends_with_it(bench, wait_gone):
    """It neither lives on nor keeps the job from ending, though it holds the pipes and ignores signals."""
    app_id = bench.submit("trap '' TERM HUP; setsid sh -c 'sleep 1000' & echo $$!")
    assert bench.wait(app_id).state is AppState.SUCCEEDED

    wait_gone([int(bench.lines(app_id)[0])])


def test_replicas_know_their_job_and_number(bench):
    names = ("HOLDFAST_JOB_ID", "TORCHX_JOB_ID", "HOLDFAST_ROLE", "HOLDFAST_REPLICA_ID", "HOLDFAST_RESTART_COUNT")
    app_id = bench.submit(
        f"printenv {' '.join(names)} ${{rank0_env}} PYTHONUNBUFFERED; echo ${{app_id}}", num_replicas=2
    )
    handle = f"local://test/{app_id}"

    for k in range(2):
        assert bench.lines(app_id, k) == [handle, handle, "main", str(k), "0", "localhost", "1", app_id]


def test_replicas_that_meet_get_a_port_of_their_own(bench):
    ids = [bench.submit("echo $$HOLDFAST_LOCAL_RDZV_PORT; sleep 1000", num_replicas=2) for _ in range(2)]
    ports = []
    for app_id in ids:
        of_job = {next(iter(bench.scheduler.log_iter(app_id, "main", k, should_tail=True))) for k in range(2)}
        assert len(of_job) == 1
        ports += of_job

    assert len(set(ports)) == 2
    assert all(1024 < int(port) < 65536 for port in ports)


def test_replicas_that_meet_share_a_secret_that_no_other_job_has(bench, monkeypatch):
    for name in ("HOLDFAST_SECRET", "HOLDFAST_SECRET_FILE", "HOLDFAST_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    show = "echo $$HOLDFAST_SECRET_FILE; stat -c %a $$HOLDFAST_SECRET_FILE; cat $$HOLDFAST_SECRET_FILE"
    ids = [bench.submit(show, num_replicas=2, env={"HOME": "/nonexistent"}) for _ in range(2)]
    found = [[bench.lines(app_id, k) for k in range(2)] for app_id in ids]

    assert found[0][0] == found[0][1] != found[1][0]
    path, mode, key = found[0][0]
    assert (path, mode, len(key)) == (str(bench.folder(ids[0]) / "secret"), "600", 64)
    assert key not in (bench.folder(ids[0]) / "job.json").read_text()


def test_a_secret_of_the_role_is_left_alone(bench):
    app_id = bench.submit("printenv HOLDFAST_SECRET_FILE HOLDFAST_SECRET", num_replicas=2, env={"HOLDFAST_SECRET": "x"})

    assert bench.lines(app_id) == ["x"]


def test_a_secret_that_the_submitter_chose_reaches_the_replicas(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_SECRET_FILE", "job.secret")  # which replicas in other folders find too
    app_id = bench.submit("cd /; echo $$HOLDFAST_SECRET_FILE", num_replicas=2)

    assert bench.lines(app_id) == [str(tmp_path / "job.secret")]
    assert not (bench.folder(app_id) / "secret").exists()


# -- retries -----------------------------------------------------------------------------------------------------------


def starts_of(bench, app_id, replicas):
    return [len([line for line in bench.lines(app_id, k) if line.startswith("start")]) for k in range(replicas)]


#: Replica 1 fails the first time.
FAIL_ONCE = "echo start $$HOLDFAST_RESTART_COUNT; test ${replica_id}$$HOLDFAST_RESTART_COUNT != 10"


def test_by_replica_only_the_dead_one_is_started_again(bench):
    app_id = bench.submit(FAIL_ONCE, num_replicas=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    assert found.num_restarts == 1
    assert starts_of(bench, app_id, 2) == [1, 2]
    assert [each.restarts for each in found.roles_statuses[0].replicas] == [0, 1]


@pytest.mark.parametrize(("policy", "restarts_of_other"), [(RetryPolicy.ROLE, 0), (RetryPolicy.APPLICATION, 1)])
def test_by_role_or_app_all_of_it_is_started_again(bench, gate, policy, restarts_of_other):
    app = bench.app(FAIL_ONCE, num_replicas=2, max_retries=1, retry_policy=policy)
    # The other role waits for a word the first time it is started, so it must be stopped to start again.
    wait_once = f"test $$HOLDFAST_RESTART_COUNT = 1 || {gate.wait}"
    app.roles.append(Role("other", "", entrypoint="sh", args=["-c", wait_once]))
    app_id = bench.scheduler.submit(app, {})
    if not restarts_of_other:
        gate.open()
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    assert found.num_restarts == 1
    assert [each.restarts for each in found.roles_statuses[0].replicas] == [1, 1]
    assert [each.restarts for each in found.roles_statuses[1].replicas] == [restarts_of_other]
    assert "start 1" in bench.lines(app_id, 0)


def test_when_retries_are_spent_the_job_has_failed(bench):
    app_id = bench.submit("exit 5", max_retries=1)
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert found.num_restarts == 1
    assert found.msg == "main/0 failed: exited with code 5 without a traceback (after 1 retries)"


def test_the_job_goes_on_with_enough_replicas(bench):
    app_id = bench.submit("test ${replica_id} != 2 || exit 1; echo done", num_replicas=3, min_replicas=2)
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    assert "main/2 failed" in found.msg
    assert bench.replica(app_id, 2).exit_code == 1


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_has_true_exit_codes(bench):
    app_id = bench.submit("trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done")
    bench.wait_line(app_id, "up")
    bench.scheduler.cancel(app_id)
    found = bench.wait(app_id)

    assert found.state is AppState.CANCELLED
    assert found.msg == "the job was cancelled"
    assert (bench.replica(app_id).state, bench.replica(app_id).exit_code) == (AppState.CANCELLED, 9)


def test_who_ignores_sigterm_is_killed_after_the_grace_time(bench):
    app_id = bench.submit("trap '' TERM; echo up; while :; do sleep 0.05; done", {"cancel_grace_s": 0.3})
    bench.wait_line(app_id, "up")
    bench.scheduler.cancel(app_id)

    assert bench.wait(app_id).state is AppState.CANCELLED
    assert bench.replica(app_id).exit_code == -signal.SIGKILL


def test_a_job_that_takes_its_time_to_end_can_be_killed(bench):
    app_id = bench.submit("trap 'echo no' TERM; echo up; while :; do sleep 0.05; done", {"cancel_grace_s": 1000.0})
    bench.wait_line(app_id, "up")
    bench.scheduler.cancel(app_id)
    bench.wait_line(app_id, "no")
    bench.scheduler.kill(app_id)

    assert bench.wait(app_id).state is AppState.CANCELLED
    assert bench.replica(app_id).exit_code == -signal.SIGKILL


def test_a_job_that_is_cancelled_before_its_supervisor_begins_never_starts(bench):
    """The wish is left in the folder, and seen whenever the supervisor comes."""
    request = bench.scheduler.submit_dryrun(bench.app("echo never"), {}).request
    folder, lock = bench.scheduler._jobs.create(request, JobRecord(name="job", boot_id=folders.boot_id()))
    bench.scheduler.cancel(request.app_id)
    _start_supervisor(folder, lock)
    os.close(lock)

    found = bench.wait(request.app_id)
    assert found.state is AppState.CANCELLED
    assert bench.lines(request.app_id) == []


def test_jobs_that_are_cancelled_at_any_moment_of_their_start_end(bench):
    ids = []
    for _ in range(4):
        ids.append(bench.submit("sleep 1000"))
        bench.scheduler.cancel(ids[-1])

    assert {bench.wait(app_id).state for app_id in ids} == {AppState.CANCELLED}


def test_a_job_that_is_cancelled_while_it_waits_for_a_retry_is_not_started_again(bench):
    app_id = bench.submit("echo start; exit 1", max_retries=9)
    # Each retry waits longer than the one before: there is time to be early for one of them.
    bench.wait(app_id, lambda found: found.state is AppState.PENDING and found.num_restarts >= 3)
    bench.scheduler.cancel(app_id)
    found = bench.wait(app_id)

    assert found.state is AppState.CANCELLED
    assert starts_of(bench, app_id, 1)[0] == bench.replica(app_id).restarts + 1 < 10


def test_a_supervisor_that_is_told_to_end_ends_its_job_and_says_why(bench):
    """As happens to every process at a shutdown."""
    app_id = bench.submit(FOREVER)
    bench.wait_line(app_id, "up")
    bench.wait(app_id, lambda found: found.state is AppState.RUNNING)
    os.kill(bench.state(app_id)["supervisor"]["pid"], signal.SIGTERM)
    found = bench.wait(app_id)

    assert found.state is AppState.CANCELLED
    assert found.msg == "its supervisor was told to end, as happens at a shutdown"


def test_a_job_of_many_replicas_gets_the_files_it_needs(bench):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, hard))
    try:
        app_id = bench.submit("echo ${replica_id}", num_replicas=24)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert bench.wait(app_id).state is AppState.SUCCEEDED
    assert [bench.lines(app_id, k) for k in range(24)] == [[str(k)] for k in range(24)]


def test_deleting_a_running_job_ends_it_and_lets_its_followers_go(bench, wait_gone):
    app_id = bench.submit("echo $$$$; sleep 1000")
    lines = iter(bench.scheduler.log_iter(app_id, "main", should_tail=True))
    pid = int(next(lines))
    bench.scheduler.delete(app_id)

    wait_gone([pid])
    assert list(lines) == []
    assert bench.scheduler.describe(app_id) is None
    assert bench.scheduler.list() == []
    assert not bench.folder(app_id).exists()


# -- from any shell ----------------------------------------------------------------------------------------------------


def test_a_job_outlives_the_shell_that_submitted_it(bench, gate):
    shell = bench.shell(
        f"import time; print(submit({f'echo before; {gate.wait}; echo after'!r}), flush=True); time.sleep(1000)"
    )
    app_id = shell.stdout.readline().strip()
    os.kill(shell.pid, signal.SIGKILL)
    shell.communicate()
    bench.wait_line(app_id, "before")
    gate.open()

    assert bench.wait(app_id).state is AppState.SUCCEEDED
    assert bench.lines(app_id) == ["before", "after"]


def test_other_shells_see_follow_and_end_the_job(bench):
    app_id = bench.submit(FOREVER)
    bench.wait_line(app_id, "up")

    assert bench.shell_says(f"print(scheduler.describe({app_id!r}).state.name)") == "RUNNING"
    assert bench.shell_says("print([app.app_id for app in scheduler.list()])") == str([app_id])
    follower = bench.shell(f"print(list(scheduler.log_iter({app_id!r}, 'main', should_tail=True)))")
    waiter = bench.shell(f"""
        while scheduler.describe({app_id!r}).state.name != "CANCELLED":
            scheduler.wait_news({app_id!r}, 60)
        print("over")
    """)
    bench.shell_says(f"scheduler.cancel({app_id!r})")
    assert follower.communicate()[0].strip() == "['up']"
    assert waiter.communicate()[0].strip() == "over"
    assert bench.replica(app_id).exit_code == -signal.SIGTERM


def test_a_dead_follower_does_not_disturb_the_job(bench, gate):
    app_id = bench.submit(f"echo one; {gate.wait}; echo two")
    follower = bench.shell(f"""
        for line in scheduler.log_iter({app_id!r}, "main", should_tail=True):
            print(line, flush=True)
    """)
    assert follower.stdout.readline() == "one\n"
    follower.kill()
    follower.communicate()
    gate.open()

    assert bench.lines(app_id) == ["one", "two"]


def test_sessions_do_not_see_each_others_jobs(bench):
    app_id = bench.submit("echo mine")
    bench.wait(app_id)
    other = LocalScheduler("another session/with odd name", bench.home)

    assert other.list() == []
    assert other.describe(app_id) is None
    assert other.describe("../test/" + app_id) is None


# -- when no process is left to say what happened ----------------------------------------------------------------------


@pytest.fixture
def abandoned(bench, wait_gone):
    """A job whose supervisor was killed, and the pids of its processes."""
    app_id = bench.submit("echo $$$$; sleep 1000 & echo $$!; wait", num_replicas=2)
    pids = []
    for k in range(2):
        lines = iter(bench.scheduler.log_iter(app_id, "main", k, should_tail=True))
        pids += [int(next(lines)), int(next(lines))]
    bench.wait(app_id, lambda found: found.state is AppState.RUNNING)
    supervisor = bench.state(app_id)["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGKILL)
    wait_gone([supervisor])
    return app_id, pids


def test_a_job_whose_supervisor_was_killed_has_failed_and_nothing_of_it_runs(bench, abandoned, wait_gone):
    app_id, pids = abandoned
    wait_gone(pids)
    found = bench.scheduler.describe(app_id)

    assert found.state is AppState.FAILED
    assert "its supervisor (process" in found.msg
    assert "was killed while the job was RUNNING" in found.msg
    assert {each.state for each in found.roles_statuses[0].replicas} == {AppState.FAILED}
    assert [app.state for app in bench.scheduler.list()] == [AppState.FAILED]
    assert bench.lines(app_id) == [str(pid) for pid in pids[:2]]
    bench.scheduler.cancel(app_id)
    assert bench.scheduler.describe(app_id).state is AppState.FAILED


def test_a_reboot_is_noticed(bench, abandoned):
    app_id, _ = abandoned
    bench.change_state(app_id, boot_id="another boot")
    found = bench.scheduler.describe(app_id)

    assert found.state is AppState.FAILED
    assert found.msg.startswith("the machine was rebooted at 2")


def test_a_job_of_another_machine_is_not_judged(bench, abandoned):
    app_id, _ = abandoned
    bench.change_state(app_id, boot_id="another boot", host="elsewhere")
    found = bench.scheduler.describe(app_id)

    assert found.state is AppState.UNKNOWN
    assert "elsewhere" in found.msg
    for end in (bench.scheduler.cancel, bench.scheduler.kill, bench.scheduler.delete):
        with pytest.raises(UsageError, match="cannot be ended from here"):
            end(app_id)
    assert Jobs(bench.home / "jobs" / "test").prune(Policy(jobs=0, days=0, fresh_s=-1)) == []
    bench.change_state(app_id, host=os.uname().nodename)


def test_a_process_that_has_got_the_supervisors_pid_is_never_signalled(bench):
    """The record names a living process, but not the one that was started at that time."""
    app_id = bench.submit(FOREVER)
    bench.wait_line(app_id, "up")
    true = bench.state(app_id)["supervisor"]
    folder = bench.scheduler._jobs.folder(app_id)
    with folder._supervisor() as pidfd:
        assert pidfd is not None
    for wrong in ({"pid": os.getpid()}, {"start": true["start"] + 1}, {"boot_id": "another"}):
        bench.change_state(app_id, supervisor={**true, **wrong})
        with folder._supervisor() as pidfd:
            assert pidfd is None
    bench.change_state(app_id, supervisor=true)


def test_a_supervisor_that_breaks_says_so_and_leaves_no_process(bench):
    """It is started on a job that it cannot run: the replica's folder for logs is a file."""
    blocked = bench.home / "blocked"
    bench.home.mkdir()
    blocked.write_text("")
    app_id = bench.submit("echo hello", {"log_dir": str(blocked)})
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert "Not a directory" in found.msg


# -- records -----------------------------------------------------------------------------------------------------------


def test_what_was_submitted_can_be_asked_for(bench):
    app = bench.app("echo ${replica_id}", max_retries=2, env={"A": "1"})
    app.metadata["team"] = "seals"
    app_id = bench.scheduler.submit(app, {})
    found = bench.wait(app_id)

    assert found.roles == app.roles
    assert found.metadata == {"team": "seals"}
    assert found.name == "job"
    assert found.submitted_at <= found.started_at <= found.ended_at
    assert found.structured_error_msg == NONE


def test_a_damaged_record_costs_only_its_own_job(bench, caplog):
    good, bad = bench.submit("echo hello"), bench.submit("echo hello")
    for app_id in (good, bad):
        bench.wait(app_id)
        bench.lines(app_id)  # until its supervisor has gone
    (bench.folder(bad) / "state.json").write_text("{torn")

    assert [app.app_id for app in bench.scheduler.list()] == [good]
    assert "damaged" in caplog.text
    with pytest.raises(UsageError, match="delete the job"):
        bench.scheduler.describe(bad)
    bench.scheduler.delete(bad)
    assert not bench.folder(bad).exists()


def test_records_can_be_read_by_their_owner_alone(bench):
    app_id = bench.submit("echo hello")
    bench.wait(app_id)

    assert bench.folder(app_id).stat().st_mode & 0o077 == 0
    assert (bench.folder(app_id) / "job.json").stat().st_mode & 0o077 == 0


def test_a_request_is_submitted_once(bench):
    info = bench.scheduler.submit_dryrun(bench.app("echo hello"), {})
    bench.scheduler.schedule(info)

    with pytest.raises(UsageError, match="already been submitted"):
        bench.scheduler.schedule(info)
    assert bench.wait(info.request.app_id).state is AppState.SUCCEEDED


def test_old_jobs_are_dropped_and_running_ones_never(bench, gate):
    running = bench.submit(gate.wait)
    finished = []
    for _ in range(3):
        finished.append(app_id := bench.submit("echo hello"))
        bench.wait(app_id)
        bench.lines(app_id)  # until its supervisor has gone
    jobs = Jobs(bench.home / "jobs" / "test")
    leftover = jobs.path / ".new-1-2"
    leftover.mkdir()
    os.utime(leftover, (1, 1))

    assert jobs.prune(Policy(jobs=1)) == [], "all have just ended"
    assert sorted(jobs.prune(Policy(jobs=1, fresh_s=-1))) == sorted(finished[:2])
    assert not leftover.exists()
    assert jobs.prune(Policy(jobs=0, fresh_s=-1)) == finished[2:]
    assert [app.app_id for app in bench.scheduler.list()] == [running]
    gate.open()
    assert bench.wait(running).state is AppState.SUCCEEDED


def test_a_supervisor_drops_old_jobs_when_it_goes(bench, monkeypatch):
    monkeypatch.setenv("HOLDFAST_KEEP_DAYS", "1")
    old = bench.submit("echo hello")
    bench.lines(old)
    bench.change_state(old, ended_at=time.time() - 2 * 86400)
    (bench.folder(old).parent / ".pruned").unlink(missing_ok=True)
    new = bench.submit("echo hello")
    bench.lines(new)
    until = time.monotonic() + 60
    while bench.folder(old).exists():
        assert time.monotonic() < until
        time.sleep(0.01)

    assert bench.scheduler.describe(new).state is AppState.SUCCEEDED


def test_a_limit_that_is_set_wrongly_is_told_to_the_submitter(bench, monkeypatch):
    monkeypatch.setenv("HOLDFAST_KEEP_DAYS", "a week")

    with pytest.raises(UsageError, match="HOLDFAST_KEEP_DAYS='a week'"):
        bench.submit("echo hello")


def test_logs_may_go_to_a_folder_of_ones_own_and_outlive_the_job(bench, tmp_path):
    app_id = bench.submit("echo hello", {"log_dir": str(tmp_path / "mine")})

    assert bench.lines(app_id) == ["hello"]
    bench.scheduler.delete(app_id)
    assert (tmp_path / "mine" / "test" / app_id / "main" / "0" / "stdout.log").read_text() == "hello\n"


def test_replicas_run_in_the_current_folder_or_in_that_of_their_image(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = bench.submit("pwd")
    there = bench.app("pwd; echo ${img_root}")
    there.roles[0].image = str(bench.home)
    there = bench.scheduler.submit(there, {})

    assert bench.lines(here) == [str(tmp_path)]
    assert bench.lines(there) == [str(bench.home)] * 2


@pytest.fixture
def code(tmp_path):
    """A workspace with a script that says where it runs and what it found."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.sh").write_text("pwd; cat note")
    (folder / "note").write_text("as written\n")
    return folder


def with_workspace(*workspaces):
    """An app whose roles run what their workspaces hold."""
    roles = [
        Role(f"role{number}", "", entrypoint="sh", args=["train.sh"], workspace=workspace)
        for number, workspace in enumerate(workspaces)
    ]
    return AppDef("job", roles)


def test_a_workspace_is_copied_when_the_job_is_submitted_and_goes_with_the_job(bench, code):
    info = bench.scheduler.submit_dryrun(with_workspace(str(code)), {})
    assert not bench.home.exists()
    (code / "note").write_text("as submitted\n")
    app_id = bench.scheduler.schedule(info)
    (code / "note").write_text("later\n")
    bench.wait(app_id)
    copy = bench.folder(app_id) / "workspace" / "role0"

    assert list(bench.scheduler.log_iter(app_id, "role0")) == [str(copy), "as submitted"]
    bench.scheduler.delete(app_id)
    assert not copy.exists()


def test_a_workspace_may_be_used_as_it_lies(bench, code):
    app_id = bench.scheduler.submit(with_workspace(str(code)), {"copy_workspace": False})
    bench.wait(app_id)

    assert list(bench.scheduler.log_iter(app_id, "role0")) == [str(code), "as written"]
    assert not (bench.folder(app_id) / "workspace").exists()


def test_each_role_has_its_own_workspace_and_equal_ones_share_a_copy(bench, code, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "note").write_text("from another root\n")
    several = {str(code): "", str(tmp_path / "more"): "", str(tmp_path / "code" / "note"): "below"}
    app_id = bench.scheduler.submit(with_workspace(str(code), several, str(code)), {"copy_workspace": False})
    bench.wait(app_id)
    in_place, together, same = (list(bench.scheduler.log_iter(app_id, f"role{k}")) for k in range(3))

    assert in_place == same == [str(code), "as written"]
    assert together == [str(bench.folder(app_id) / "workspace" / "role1"), "from another root"]
    assert (bench.folder(app_id) / "workspace" / "role1" / "below" / "note").read_text() == "as written\n"
    shared = bench.scheduler.submit_dryrun(with_workspace(str(code), several, str(code)), {}).request
    assert [shipment.folder for shipment in shared.shipments] == ["role0", "role1"]
    assert shared.replicas[0].cwd == shared.replicas[2].cwd


def test_a_dry_run_says_what_would_be_shipped(bench, code):
    said = str(bench.scheduler.submit_dryrun(with_workspace({str(code): "deep"}), {}))

    assert f"ships {code} (2 files, 24 B) as workspace/role0/deep" in said
    assert not bench.home.exists()


def test_a_submit_that_fails_leaves_no_copy_behind(bench, code):
    info = bench.scheduler.submit_dryrun(with_workspace(str(code)), {})
    app_id = bench.scheduler.schedule(info)
    with pytest.raises(UsageError, match="already been submitted"):
        bench.scheduler.schedule(info)
    lost = bench.scheduler.submit_dryrun(with_workspace({str(code): "", str(code / "note"): "x"}), {})
    (code / "note").unlink()
    with pytest.raises(UsageError, match="does not exist"):
        bench.scheduler.schedule(lost)

    there = [path.name for path in (bench.home / "jobs" / "test").iterdir() if path.name != ".pruned"]
    assert there == [app_id]
    bench.wait(app_id)


def test_our_own_folder_is_never_shipped(bench, tmp_path, code):
    del code
    first = bench.scheduler.submit(with_workspace(str(tmp_path)), {})
    again = bench.scheduler.submit(with_workspace(str(tmp_path)), {})

    assert [path.name for path in (bench.folder(again) / "workspace" / "role0").iterdir()] == ["code"]
    for app_id in (first, again):
        bench.wait(app_id)


@pytest.mark.slow
def test_fifty_jobs_from_eight_shells_at_once_are_all_right(bench):
    """Each shell submits its share, lists, cancels every second job, and waits; no shell sees anything torn."""
    code = """
    import sys
    mine = [submit("sleep 1000" if n % 2 else "echo hello") for n in range(int(sys.stdin.readline()))]
    assert set(mine) <= {app.app_id for app in scheduler.list()}
    for app_id in mine[1::2]:
        scheduler.cancel(app_id)
    for n, app_id in enumerate(mine):
        while (found := scheduler.describe(app_id)).state.value < 4:
            scheduler.wait_news(app_id, 60)
        assert found.state.name == ("CANCELLED" if n % 2 else "SUCCEEDED"), found
        if not n % 2:
            assert list(scheduler.log_iter(app_id, "main", should_tail=True)) == ["hello"]
        scheduler.list()
    scheduler.delete(mine[0])
    print(" ".join(mine))
    """
    shells = [bench.shell(code, stdin=-1) for _ in range(8)]
    for number, shell in enumerate(shells):
        with contextlib.closing(shell.stdin):
            shell.stdin.write(f"{7 if number < 2 else 6}\n")
    ids = []
    for shell in shells:
        shell.stdin = None
        out, err = shell.communicate()
        assert shell.returncode == 0, err
        ids += out.split()

    assert len(set(ids)) == 50
    assert len(bench.scheduler.list()) == 50 - 8
    assert not [*(bench.home / "jobs" / "test").glob(".new*"), *(bench.home / "jobs" / "test").glob(".gone*")]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_of_two_hundred_echoes_every_line_arrives(bench, part):
    """A follower in another process gets exactly the line, however the machine is loaded."""
    code = f"""
    for n in range(50):
        app_id = submit(f"echo line {part}.{{n}}")
        assert list(scheduler.log_iter(app_id, "main", should_tail=True)) == [f"line {part}.{{n}}"], (app_id, n)
        assert scheduler.describe(app_id).state.name == "SUCCEEDED", app_id
    """
    bench.shell_says(code)


def test_the_python_of_an_environment_that_is_not_active_comes_first(bench, monkeypatch):
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "prefix", "/some/venv")
    path = bench.scheduler.submit_dryrun(bench.app(""), {}).request.replicas[0].env["PATH"]
    assert path.split(":")[0] == str(Path(sys.executable).parent)

    monkeypatch.setenv("VIRTUAL_ENV", "/active")
    path = bench.scheduler.submit_dryrun(bench.app(""), {}).request.replicas[0].env["PATH"]
    assert path == f"{os.environ['PATH']}:{Path.cwd()}"


def test_a_program_in_the_working_folder_is_found_by_its_name(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o755)
    job = bench.scheduler.submit(AppDef("job", [Role("main", "", entrypoint="tool")]), {})

    assert bench.wait(job).state is AppState.SUCCEEDED
    assert list(bench.scheduler.log_iter(job, "main")) == ["found"]
