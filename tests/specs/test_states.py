"""How a job is doing, in words."""

from __future__ import annotations

import pytest

from holdfast.specs import AppState, AppStatus, ReplicaStatus, RoleStatus


@pytest.mark.parametrize(
    ("replica", "sentence"),
    [
        (ReplicaStatus(0, AppState.RUNNING, "main", "here", started_at=1.0), "main/0 RUNNING on here"),
        (
            ReplicaStatus(1, AppState.SUCCEEDED, "main", exit_code=0, started_at=10.0, ended_at=12.25),
            "main/1 SUCCEEDED, ran 2.2 s, exit code 0",
        ),
        (
            ReplicaStatus(2, AppState.FAILED, "main", exit_code=3, cause="exited with code 3", reason="", restarts=2),
            "main/2 FAILED, restarts: 2, exit code 3",
        ),
        (
            ReplicaStatus(2, AppState.FAILED, "main", exit_code=3, cause="code 3: x", reason="", last_line="x"),
            "main/2 FAILED, exit code 3: its last line was: x",
        ),
        (
            ReplicaStatus(2, AppState.FAILED, "main", exit_code=1, cause="no (exit code 1)", reason="no"),
            "main/2 FAILED, exit code 1: no",
        ),
        (
            ReplicaStatus(2, AppState.FAILED, "main", exit_code=3, cause="error code 3 of the disk"),
            "main/2 FAILED, exit code 3: error code 3 of the disk",
        ),
        (
            ReplicaStatus(2, AppState.FAILED, "main", exit_code=-9, cause="killed by SIGKILL from outside", reason="x"),
            "main/2 FAILED: killed by SIGKILL from outside",
        ),
        (
            ReplicaStatus(
                3, AppState.FAILED, "main", exit_code=1, cause="ValueError: no", started_at=0.0, ended_at=3725.0
            ),
            "main/3 FAILED, ran 1 h 2 min, exit code 1: ValueError: no",
        ),
        (
            ReplicaStatus(4, AppState.SUCCEEDED, "main", started_at=0.0, ended_at=125.4),
            "main/4 SUCCEEDED, ran 2 min 5 s",
        ),
    ],
)
def test_a_replica_says_each_thing_once(replica: ReplicaStatus, sentence: str) -> None:
    assert replica.sentence == sentence
    assert AppStatus(replica.state, roles=[RoleStatus("main", [replica])]).format().splitlines()[-1].strip() == sentence


def test_a_state_and_a_status_show_themselves_as_those_of_torchx_do() -> None:
    replica = ReplicaStatus(0, AppState.FAILED, "trainer", "host", exit_code=3)
    status = AppStatus(AppState.FAILED, 1, "boom", roles=[RoleStatus("trainer", [replica])])

    assert (repr(AppState.RUNNING), str(AppState.RUNNING)) == ("RUNNING (3)", "RUNNING")
    assert repr(status).splitlines() == [
        "AppStatus:",
        "  msg: boom",
        "  num_restarts: 1",
        "  roles:",
        "    - replicas:",
        "        - exit_code: 3",
        "          hostname: host",
        "          id: 0",
        "          role: trainer",
        "          state: FAILED (5)",
        "          structured_error_msg: <NONE>",
        "      role: trainer",
        "  state: FAILED (5)",
        "  structured_error_msg: <NONE>",
        "  ui_url: null",
    ]
    failed = AppStatus(AppState.FAILED, structured_error_msg='{"message": "test error"}')
    assert repr(failed).splitlines() == [
        "AppStatus:",
        "  msg: ''",
        "  num_restarts: 0",
        "  roles: []",
        "  state: FAILED (5)",
        "  structured_error_msg:",
        "    message: test error",
        "  ui_url: null",
    ]
