"""From what Slurm prints, in two versions, to a status."""

from dataclasses import replace

import pytest

from holdfast.schedulers import cluster
from holdfast.schedulers.local.record import JobRecord, ReplicaRecord
from holdfast.schedulers.slurm.parse import (
    STATES,
    BatchRecord,
    JobInfo,
    Seen,
    describe,
    describe_array,
    expand_nodes,
    judge,
    parse_accounts,
    parse_jobs,
)
from holdfast.specs import AppDef, AppState, Role

# Printed by `SLURM_TIME_FORMAT=%s scontrol show job -o` of 22.05.8, shortened.
SHOWN = (
    "JobId=1 JobName=t.sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=COMPLETED Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=3:9 "
    "RunTime=00:00:00 TimeLimit=00:05:00 SubmitTime=1794809499 StartTime=1794809500 EndTime=1794809501 Deadline=N/A "
    "AllocNode:Sid=localhost:6670 NodeList=n[1-3] BatchHost=n1 NumNodes=3 ReqB:S:C:T=0:0:*:* TRES=cpu=3,node=3 "
    "Command=/a b/t.sh WorkDir=/a b StdOut=/a b/o.log Power= \n"
)
# Printed by the same command of 24.11.5, shortened: a job that failed, one number of an array, and a job that waits.
SHOWN_24 = (
    "JobId=1 JobName=bad.sh UserId=root(0) Account=(null) QOS=(null) JobState=FAILED Reason=NonZeroExitCode "
    "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=7:0 TimeLimit=UNLIMITED SubmitTime=1794814624 StartTime=1794814626 "
    "EndTime=1794814626 NodeList=n[1-2] BatchHost=n1 ReqTRES=cpu=2,mem=8000M,node=2,billing=2 StdOut=/w/o1 \n"
    "JobId=4 ArrayJobId=2 ArrayTaskId=0 JobName=wrap UserId=root(0) JobState=COMPLETED Reason=None Restarts=0 "
    "ExitCode=0:0 SubmitTime=1794814624 StartTime=1794814626 EndTime=1794814626 NodeList=n1 BatchHost=n1 \n"
    "JobId=5 JobName=long.sh UserId=root(0) JobState=PENDING Reason=Resources Restarts=0 ExitCode=0:0 "
    "SubmitTime=1794814630 AccrueTime=Unknown StartTime=Unknown EndTime=Unknown NodeList= NumNodes=4-4 \n"
)
# A line of the job completion file of 22.05.8.
COMPLETED = (
    "JobId=7 UserId=root(0) GroupId=root(0) Name=t.sh JobState=NODE_FAIL Partition=main TimeLimit=5 "
    "StartTime=2026-11-16T06:11:40 EndTime=2026-11-16T06:11:40 NodeList=n[1-3] NodeCnt=3 ProcCnt=3 WorkDir=/tmp "
    "ReservationName= Tres=cpu=1 Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-11-16T06:11:39 ExitCode=0:1 \n"
)


def test_fields_are_found_by_name():
    assert parse_jobs(SHOWN) == [
        JobInfo("1", "COMPLETED", "", 3, 9, 1794809499.0, 1794809500.0, 1794809501.0, "n[1-3]", 2)
    ]


def test_a_newer_slurm_is_read_alike():
    assert parse_jobs(SHOWN_24) == [
        JobInfo("1", "FAILED", "NonZeroExitCode", 7, 0, 1794814624.0, 1794814626.0, 1794814626.0, "n[1-2]"),
        JobInfo("2_0", "COMPLETED", "", 0, 0, 1794814624.0, 1794814626.0, 1794814626.0, "n1"),
        JobInfo("5", "PENDING", "Resources", 0, 0, 1794814630.0),
    ]


def test_the_completion_file_is_read_alike():
    (found,) = parse_jobs(COMPLETED)

    assert (found.id, found.state, found.signal, found.started) == ("7", "NODE_FAIL", 1, None)


def test_accounts_are_read_without_steps():
    text = (
        "JobID|State|ExitCode|Reason|Submit|Start|End|NodeList\n"
        "7|CANCELLED by 0|0:15|None|1|2|3|n[1-2]\n7.batch|CANCELLED|0:15||1|2|3|n1\n"
    )
    assert parse_accounts(text) == [JobInfo("7", "CANCELLED", "", 0, 15, 1.0, 2.0, 3.0, "n[1-2]")]
    assert parse_accounts("") == []


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],m", ["n1", "n2", "n3", "n07", "m"]),
        ("r[1-2]c[08-09]x", ["r1c08x", "r1c09x", "r2c08x", "r2c09x"]),
        ("", []),
    ],
)
def test_lists_of_nodes_are_written_out(text, nodes):
    assert expand_nodes(text) == nodes


# -- a status ----------------------------------------------------------------------------------------------------------


def seen(state, records=(), *, batch=None, replicas=2, reason="", last_line=""):
    app = AppDef("app", [Role("main", "", entrypoint="x", num_replicas=replicas)])
    job = cluster.plan(app, {}, cluster.Site("slurm", "s", "1", {"main": "/"}))
    infos = [JobInfo("1", state, reason, exit_code=1)] if state else []
    found = {
        ("main", n): JobRecord(host=f"n{n}", replicas=[ReplicaRecord(role="main", id=n, **each)])
        for n, each in enumerate(records)
    }
    return Seen("1", job, infos, batch, found, last_line)


def states(found):
    return [each.state.name for each in found.roles_statuses[0].replicas]


def test_a_job_that_waits_says_for_what():
    found = describe(seen("PENDING", reason="Resources"))

    assert found.state is AppState.PENDING
    assert found.msg == "waits in the queue: Resources (the nodes that it needs are not free)"
    assert states(found) == ["PENDING", "PENDING"]


def test_a_requeued_job_forgets_how_its_replicas_were():
    ended = {"state": "FAILED", "exit_code": 1}
    found = describe(seen("PENDING", [ended, ended], batch=BatchRecord(starts=1, requeues=1, msg="a node was lost")))

    assert states(found) == ["PENDING", "PENDING"]
    assert found.msg.startswith("a node was lost; waits in the queue")
    assert found.num_restarts == 1


def test_a_job_that_runs_shows_the_nodes_that_it_got():
    found = describe(
        seen("RUNNING", [{"state": "RUNNING"}], batch=BatchRecord(starts=1, sizes={"main": 2}), replicas=4)
    )

    assert [(each.state.name, each.hostname) for each in found.roles_statuses[0].replicas] == [
        ("RUNNING", "n0"),
        ("PENDING", ""),
    ]


def test_a_replica_whose_node_slurm_took_away_is_failed_while_the_others_run():
    running = seen("RUNNING", [{"state": "RUNNING"}] * 2, batch=BatchRecord(starts=1, sizes={"main": 2}))
    shrunk = replace(running, infos=[replace(running.infos[0], nodes="n0")])

    assert states(describe(shrunk)) == ["RUNNING", "FAILED"]


def test_a_failed_job_brings_its_verdict_and_its_error_back():
    bad = {"state": "FAILED", "exit_code": 3, "cause": "boom", "error": '{"message": "m"}', "ended_at": 5.0}
    done = BatchRecord(starts=1, ended="FAILED", msg="main/1 on n1 failed: boom", ended_at=6.0, sizes={"main": 2})
    found = describe(seen("FAILED", [{"state": "SUCCEEDED"}, bad], batch=done))

    assert found.state is AppState.FAILED
    assert found.msg == "main/1 on n1 failed: boom"
    assert found.structured_error_msg == '{"message": "m"}'
    assert found.roles_statuses[0].replicas[1].exit_code == 3


def test_a_replica_whose_node_was_lost_is_failed_and_the_job_may_still_succeed():
    done = BatchRecord(starts=1, ended="SUCCEEDED", msg="went on", sizes={"main": 2})
    found = describe(seen("COMPLETED", [{"state": "SUCCEEDED"}, {"state": "RUNNING"}], batch=done))

    assert found.state is AppState.SUCCEEDED
    assert states(found) == ["SUCCEEDED", "FAILED"]
    assert found.roles_statuses[0].replicas[1].cause == "its node was lost"


def test_a_job_that_slurm_ended_says_why():
    found = describe(seen("TIMEOUT", [{"state": "RUNNING"}], batch=BatchRecord(starts=1), replicas=1))

    assert found.msg == "Slurm ended the job: it reached its time limit"
    assert found.roles_statuses[0].replicas[0].cause == "Slurm ended the job: it reached its time limit"


def test_a_cancelled_job_says_so_for_each_replica():
    told = {"state": "CANCELLED", "cause": "its supervisor was told to end"}
    first = {"state": "FAILED", "cause": "killed by SIGTERM", "exit_code": -15}  # before its supervisor was told
    records = [told, {"state": "RUNNING"}, first]
    found = describe(seen("CANCELLED", records, batch=BatchRecord(starts=1), replicas=3))

    assert states(found) == ["CANCELLED"] * 3
    assert {each.cause for each in found.roles_statuses[0].replicas} == {"the job was cancelled"}


def test_a_batch_program_that_could_not_start_is_told_with_its_last_line():
    found = describe(seen("FAILED", last_line="sh: /no/python: not found"))

    assert found.msg == "the batch program could not start (exit code 1): sh: /no/python: not found"


def test_a_job_that_slurm_has_forgotten_is_as_its_last_word_has_it():
    assert judge([], BatchRecord(ended="SUCCEEDED")) is AppState.SUCCEEDED
    assert judge([], BatchRecord(starts=1)) is AppState.UNKNOWN
    assert "left no last word" in describe(seen("")).msg


def test_a_job_that_its_nodes_ended_without_the_batch_program_is_as_they_say():
    for ended in ("SUCCEEDED", "FAILED", "CANCELLED"):
        assert judge([JobInfo("7", "CANCELLED")], BatchRecord(ended=ended)) is AppState[ended]
    assert judge([JobInfo("7", "RUNNING")], BatchRecord(ended="SUCCEEDED")) is AppState.RUNNING


def test_an_array_is_as_its_runs_are():
    app = AppDef("app", [Role("main", "", entrypoint="x")])
    job = cluster.plan(app, {}, cluster.Site("slurm", "s", "1", {"main": "/"}))
    found = describe_array("9", job, [JobInfo("9_0", "COMPLETED"), JobInfo("9_1", "RUNNING")])

    assert found.state is AppState.RUNNING
    assert "1 RUNNING, 1 SUCCEEDED; each is a job of its own, as in 9_0" in found.msg


def test_every_word_of_slurm_means_something():
    assert AppState.UNKNOWN not in STATES.values()
    assert JobInfo("1", "SOMETHING_NEW").app_state is AppState.UNKNOWN
