"""The starter: what it is given is called, and a caller is not left waiting."""

import threading

import pytest

from holdfast.errors import InternalError
from holdfast.workers import starter as module
from holdfast.workers.starter import Starter


def test_results_and_errors_come_back_to_the_caller():
    starter = Starter()

    assert starter.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        starter.call(lambda: 1 / 0)
    with pytest.raises(SystemExit):
        starter.call(lambda: (_ for _ in ()).throw(SystemExit))
    assert starter.call(threading.current_thread).name == "holdfast-starter"


def test_a_caller_does_not_wait_for_a_thread_that_has_died(monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(Starter, "_run", lambda self: None)
    starter = Starter()
    starter._thread.join()

    with pytest.raises(InternalError, match="holdfast-starter has died"):
        starter.call(lambda: 5)
