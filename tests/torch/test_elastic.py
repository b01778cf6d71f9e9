"""`holdfast.elastic` with a state of torch, and without torch."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import UsageError
from holdfast.rendezvous import RendezvousParameters
from holdfast.train.events import Blame, TrainerEvent
from holdfast.train.membership import Membership, worker_settings
from holdfast.train.trainer import Trainer
from holdfast.wire.ports import HeldPort

torch = pytest.importorskip("torch", reason="needs torch")

from holdfast.torch import TorchRun, TorchState  # noqa: E402
from holdfast.torch.run import TorchBackend  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_same_call_trains_a_state_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    model = torch.nn.Linear(2, 1, bias=False)
    state = TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    held = HeldPort()
    settings = worker_settings(1)
    membership = Membership(RendezvousParameters("holdfast", f"127.0.0.1:{held.port}", "torch", **settings))
    before = model.weight.detach().clone()
    with holdfast.elastic(state, membership=membership, backend="ring") as run:
        assert isinstance(run, TorchRun)
        assert run.groups is None, "what only torch knows is handed on"
        for step, data in run.batches(torch.ones(4, 2), 4):
            with step:
                state.optimizer.zero_grad()
                model(data).sum().backward()
                step.reduce_gradients(model)
                state.optimizer.step()
    held.close()

    assert torch.equal(model.weight.detach(), before - 4)


def test_what_only_torch_knows_is_refused_elsewhere() -> None:
    with pytest.raises(UsageError, match="backend: only for a training with a TorchState"):
        holdfast.elastic(holdfast.NumpyState(), backend="gloo")  # type: ignore[call-overload]


def test_no_torch_is_imported_for_a_state_without_it() -> None:
    code = """
import sys
import holdfast
try:
    holdfast.elastic(holdfast.NumpyState())
except holdfast.errors.UsageError as error:
    assert "holdfast launch" in str(error), error
assert "torch" not in sys.modules
"""
    environ = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "is_own"),
    [(torch.cuda.OutOfMemoryError("no memory left"), True), (RuntimeError("connection closed by peer"), False)],
)
def test_an_error_that_no_other_worker_can_cause_is_not_tried_again(error: Exception, is_own: bool) -> None:
    state = TorchState(model=torch.nn.Linear(2, 2))
    trainer = Trainer(NoRounds(), state, backend=TorchBackend(None, state))

    assert (trainer._blame(error) is Blame.OWN) is is_own


class NoRounds:
    """Rounds that are never asked for."""

    news: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
