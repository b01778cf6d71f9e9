"""What workers find in their environment."""

from __future__ import annotations

from holdfast.agent.environment import RoundView, WorkerView, fill_local_rank, worker_environment

VIEW = RoundView("run7", "trainer", 2, 1, 3, "10.0.0.1", 4242, 1, 3, "SIGTERM,SIGUSR1", round_number=5)
WORKER = WorkerView(local_rank=1, rank=3, world_size=6, role_rank=3, role_world_size=6)


def test_workers_get_every_variable_that_torchrun_sets() -> None:
    assert worker_environment({}, VIEW, WORKER) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "ROLE_NAME": "trainer",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4242",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "run7",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGUSR1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "HOLDFAST_ROUND": "5",
    }


def test_what_the_user_set_is_kept() -> None:
    env = worker_environment({"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, VIEW, WORKER)

    assert "OMP_NUM_THREADS" not in env
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_a_virtual_local_rank_sees_one_device_of_its_own() -> None:
    assert worker_environment({}, VIEW, WORKER, virtual_local_rank=True)["CUDA_VISIBLE_DEVICES"] == "1"
    env = worker_environment({"CUDA_VISIBLE_DEVICES": "4,6"}, VIEW, WORKER, virtual_local_rank=True)
    assert (env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"]) == ("6", "0")


def test_only_the_local_rank_macro_is_replaced_in_arguments() -> None:
    assert fill_local_rank(["--rank=${local_rank}", "cost$$", "${HOME}"], 3) == ("--rank=3", "cost$$", "${HOME}")
