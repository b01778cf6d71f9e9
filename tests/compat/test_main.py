"""`python -m holdfast.compat` and `holdfast launch --compat`: programs that do not ask by themselves."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.compat.conftest import Run

#: A program written for TorchElastic and the first torchelastic, with no word of ours.
PROGRAM = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
import torch.distributed.elastic.metrics as metrics
import torchelastic.metrics, torchx.specs

@record
def main():
    names = [metrics.put_metric, torchelastic.metrics.put_metric, torchx.specs.AppDef]
    modules = {each.__module__ for each in names}
    assert all(name.startswith("holdfast.") for name in modules), modules
    print("rank", os.environ.get("RANK", "-"), sys.argv[1:], __name__)

main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_script_finds_ours_behind_the_names(run: Run, program: Path) -> None:
    done = run("-m", "holdfast.compat", str(program), "--lr", "1", "-m")

    assert done.stdout == "rank - ['--lr', '1', '-m'] __main__\n"


def test_a_module_finds_ours_behind_the_names(run_without_torch: Run, program: Path) -> None:
    done = run_without_torch("-m", "holdfast.compat", "-m", "program", "x")

    assert done.stdout == "rank - ['x'] __main__\n"


def test_a_script_ends_as_it_would_without_us(run_without_torch: Run, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import torch.distributed.elastic\nraise SystemExit(7)\n")
    (tmp_path / "raises.py").write_text("raise ValueError('x')\n")

    run_without_torch("-m", "holdfast.compat", "fails.py", code=7)
    done = run_without_torch("-m", "holdfast.compat", "raises.py", code=1)

    assert done.stderr.count("File ") == 1
    assert "raises.py" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("-m",), ("--what",)])
def test_without_a_program_the_usage_is_said(run_without_torch: Run, arguments: tuple[str, ...]) -> None:
    done = run_without_torch("-m", "holdfast.compat", *arguments, code=2)

    assert done.stderr.startswith("usage: python -m holdfast.compat SCRIPT")


def test_help_is_said(run_without_torch: Run) -> None:
    assert "torch.distributed.run" in run_without_torch("-m", "holdfast.compat", "--help").stdout


@pytest.mark.parametrize("module", ["torch.distributed.run", "torchelastic.distributed.launch"])
def test_torchrun_by_its_module_is_our_launcher(run_without_torch: Run, program: Path, module: str) -> None:
    done = run_without_torch(
        *("-m", "holdfast.compat", "-m", module, "--standalone", "--nproc_per_node=2", "--nnodes", "1"),
        *(str(program), "--nnodes", "9"),
    )

    assert sorted(done.stdout.splitlines()) == [f"rank {rank} ['--nnodes', '9'] __main__" for rank in (0, 1)]
    assert "holdfast: finished in " in done.stderr


def test_the_older_launcher_passes_the_local_rank(run_without_torch: Run, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("import sys; print(sys.argv[1:])\n")
    old = ("-W", "ignore", "-m", "holdfast.compat", "-m", "torch.distributed.launch", "--nproc_per_node=2")

    with_argument = run_without_torch(*old, "old.py", "x")
    with_variable = run_without_torch(*old, "--use_env", "old.py", "x")

    assert sorted(with_argument.stdout.splitlines()) == ["['--local-rank=0', 'x']", "['--local-rank=1', 'x']"]
    assert with_variable.stdout.splitlines() == ["['x']", "['x']"]


def test_a_mistake_on_torchruns_command_line_is_one_sentence(run_without_torch: Run) -> None:
    done = run_without_torch("-m", "holdfast.compat", "-m", "torch.distributed.run", "--nnodes", "many", "x.py", code=2)

    assert "holdfast: there is no script 'x.py' here" in done.stderr or "--nnodes 'many'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("preload", ["none", "json"])
@pytest.mark.parametrize("entry", [("program.py",), ("-m", "program")])
def test_workers_of_a_launch_find_ours_where_asked(
    run_without_torch: Run, program: Path, preload: str, entry: tuple[str, ...]
) -> None:
    del program
    launch = ("-m", "holdfast", "launch", "--standalone", "--nproc-per-node", "2", "--preload", preload)

    done = run_without_torch(*launch, "--compat", *entry)

    assert sorted(done.stdout.splitlines()) == [f"rank {rank} [] __main__" for rank in (0, 1)]


def test_workers_of_a_launch_find_the_real_one_where_not_asked(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "real.py").write_text(
        "import torch.distributed.elastic.metrics as metrics\nprint(metrics.put_metric.__module__)\n"
    )

    done = run("-W", "ignore", "-m", "holdfast", "launch", "--standalone", "real.py")

    assert done.stdout == "torch.distributed.elastic.metrics.api\n"


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_functions_as_workers_find_ours_however_they_are_started(
    run_without_torch: Run, tmp_path: Path, start_method: str
) -> None:
    (tmp_path / "own.py").write_text(
        textwrap.dedent(f"""
            import torch.distributed.elastic.metrics as metrics
            from torch.distributed.launcher.api import LaunchConfig, elastic_launch

            def work():
                import torch.distributed.elastic.timer as timer
                return metrics.put_metric.__module__, timer.expires.__module__

            if __name__ == "__main__":
                config = LaunchConfig(1, 1, 1, rdzv_endpoint="localhost:0", run_id="r", start_method="{start_method}")
                print(elastic_launch(config, work)())
        """)
    )

    done = run_without_torch("-m", "holdfast.compat", "own.py")

    assert done.stdout == "{0: ('holdfast.metrics.api', 'holdfast.timer.api')}\n"
