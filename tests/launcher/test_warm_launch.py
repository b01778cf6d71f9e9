"""`holdfast launch` with workers that are forked, or may be: scripts behave as under torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.conftest import Launch

pytestmark = [pytest.mark.torch, pytest.mark.slow]
StartLaunch = Callable[..., Launch]


@pytest.fixture(autouse=True)
def torch_is_there() -> None:
    pytest.importorskip("torch", reason="torch is not installed")


def test_unseeded_draws_differ_over_ranks_and_restarts(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import os
        import random
        import sys
        import numpy
        import torch
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            order = "-".join(str(int(each)) for each in DataLoader(range(20), shuffle=True))
            kept = "-".join(str(int(each)) for each in torch.nn.Dropout()(torch.ones(64)))
            print("drawn", "torch._dynamo" in sys.modules, order, kept, numpy.random.rand(), random.random())
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                open(os.environ["RANK"], "w").close()
                while not (os.path.exists("0") and os.path.exists("1")):  # both have drawn before either ends
                    pass
                sys.exit(3)
    """
    flags = ("--nproc-per-node", "2", "--max-restarts", "1", "--preload", "numpy,torch")
    code, out, err = launch(*flags, script=script).end()

    assert code == 0, err
    drawn = [line.split()[1:] for line in out.splitlines() if line.startswith("drawn")]
    assert [line[0] for line in drawn] == ["True"] * 4  # forked from the template
    assert [len(set(source)) for source in list(zip(*drawn, strict=True))[1:]] == [4] * 4


def test_first_workers_start_at_once_and_later_ones_are_forked(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import os
        import sys
        import time
        import holdfast

        if __name__ == "__main__":
            print("forked", "holdfast.train.run" in sys.modules, flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)
            sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
    """
    running = launch("--json", "--max-restarts", "1", script=script)
    assert running.process.stderr is not None
    kinds = [json.loads(running.process.stderr.readline())["kind"]]
    while kinds[-1] != "template_prepared":
        kinds.append(json.loads(running.process.stderr.readline())["kind"])
    (tmp_path / "go").touch()
    code, out, err = running.end()

    assert code == 0, err
    assert "workers_started" in kinds
    assert out.split("\n") == ["forked False", "forked True", ""]


def test_the_second_launch_forks_its_first_workers_from_what_the_first_has_kept(
    launch: StartLaunch, tmp_path: Path
) -> None:
    script = "import sys\nimport holdfast\nprint('forked', 'holdfast.train.run' in sys.modules)"
    (tmp_path / "train.py").write_text(script)
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}

    def warm(*words: str) -> str:
        command = [sys.executable, "-m", "holdfast", "warm", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=240).stdout

    def wait_kept() -> dict[str, Any]:
        """What is kept, once it answers and could serve the next launch."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            for kept in json.loads(warm("list", "--json")):
                if not (kept["importing"] or kept["busy"]):
                    return dict(kept)
        raise AssertionError(f"nothing is ready: {warm('list')}")

    said = []
    for _ in range(2):
        code, out, err = launch("--keep-warm", "10m", "train.py").end()
        assert code == 0, err
        said.append(out)
        kept = wait_kept()
    assert "in use" not in warm("list")
    assert "stopped" in warm("stop")
    pidfd = None
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(kept["pid"])
    if pidfd is not None:
        select.select([pidfd], [], [], 60)
        os.close(pidfd)

    assert said == ["forked False\n", "forked True\n"]
    assert warm("list").startswith("nothing is kept")


@pytest.mark.parametrize(
    "first",
    [
        "import settings",
        "import os\ndef setup():\n    os.environ['PYTORCH_JIT'] = '0'\nsetup()",
        "from fake_dotenv import load_dotenv\nload_dotenv()",
    ],
    ids=["module", "function", "dotenv"],
)
def test_variables_that_are_set_before_torch_is_imported_hold(launch: StartLaunch, tmp_path: Path, first: str) -> None:
    (tmp_path / "settings.py").write_text("import os\nos.environ['PYTORCH_JIT'] = '0'")
    (tmp_path / "fake_dotenv.py").write_text("import os\ndef load_dotenv():\n    os.environ['PYTORCH_JIT'] = '0'")
    script = f"{first}\nimport torch\nprint('compiles', torch.jit._state._enabled.enabled)"

    code, out, err = launch("--nproc-per-node", "2", script=script).end()

    assert code == 0, err
    assert out.split() == ["compiles", "False"] * 2


def test_workers_get_every_variable_that_torchrun_sets(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import json
        import os
        import sys
        if os.environ["RANK"] == "1":
            with open(sys.argv[1], "w") as file:
                json.dump(dict(os.environ), file)
    """
    code, _, err = launch("--standalone", "--nproc-per-node", "2", script=script, args=("ours.json",)).end()
    assert code == 0, err
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command, env = [*torchrun, "script0.py", "theirs.json"], dict(os.environ)
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=True, timeout=240)

    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("ours.json", "theirs.json"))

    own = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}  # each run's own
    expected = {name: value for name, value in theirs.items() if os.environ.get(name) != value}
    # Rank 0's worker listens itself here, see RoundView.
    assert (expected.pop("TORCHELASTIC_USE_AGENT_STORE"), ours["TORCHELASTIC_USE_AGENT_STORE"]) == ("True", "False")
    assert own <= set(ours)
    assert {name: ours.get(name) for name in expected if name not in own} == {
        name: value for name, value in expected.items() if name not in own
    }
