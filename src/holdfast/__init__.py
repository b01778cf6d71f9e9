"""Holdfast launches distributed training and keeps it running through every failure.

Launch and submit:

    launch          run a function or a script on every worker of this node; returns the results by rank
    submit          run a function as a job, here or on a cluster; the `Job` brings back results and exceptions,
                    and a `Call` is what its method `checkpoint` returns
    run             submit an app or a component as a job, and wait for its end
    get_runner      submit, follow, list and cancel jobs

Train in process, inside a launched worker:

    elastic         steps that survive the loss of a peer; `holdfast.torch.elastic` is the same for torch
    State           what training changes; `NumpyState`, `TreeState` and `PytreeState` are ready to use
    Checkpointer    keep the state in memory, with a neighbour and in storage, and restore the newest
    Notices         learn that this node is about to be taken away
    heartbeat       tell the agent that this worker makes progress; `pause` and `resume` around long waits

`errors` holds every exception that Holdfast raises. Names and modules (`holdfast.torch`, `holdfast.specs`...) are
imported when they are first used.
"""

# `typing` takes longer to import than the rest of this file, and Ctrl-C meanwhile would end in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import agent as agent
    from holdfast import checkpoint as checkpoint
    from holdfast import compat as compat
    from holdfast import components as components
    from holdfast import errors as errors
    from holdfast import events as events
    from holdfast import failures as failures
    from holdfast import health as health
    from holdfast import launcher as launcher
    from holdfast import metrics as metrics
    from holdfast import rendezvous as rendezvous
    from holdfast import runner as runner
    from holdfast import schedulers as schedulers
    from holdfast import specs as specs
    from holdfast import store as store
    from holdfast import testing as testing
    from holdfast import timer as timer
    from holdfast import torch as torch
    from holdfast import tracker as tracker
    from holdfast import train as train
    from holdfast import workspace as workspace
    from holdfast.calls.api import submit as submit
    from holdfast.calls.folder import Call as Call
    from holdfast.calls.job import Job as Job
    from holdfast.checkpoint.checkpointer import Checkpointer as Checkpointer
    from holdfast.checkpoint.notices import Notices as Notices
    from holdfast.launcher.call import launch as launch
    from holdfast.runner.api import get_runner as get_runner
    from holdfast.runner.api import run as run
    from holdfast.timer.heartbeat import heartbeat as heartbeat
    from holdfast.timer.heartbeat import pause as pause
    from holdfast.timer.heartbeat import resume as resume
    from holdfast.train.pytree import PytreeState as PytreeState
    from holdfast.train.run import elastic as elastic
    from holdfast.train.state import NumpyState as NumpyState
    from holdfast.train.state import State as State
    from holdfast.train.state import TreeState as TreeState

__version__ = "0.1.0"

#: The public names, and the modules that they come from.
_NAMES = {
    "launch": "holdfast.launcher.call",
    "submit": "holdfast.calls.api",
    "Job": "holdfast.calls.job",
    "Call": "holdfast.calls.folder",
    "run": "holdfast.runner.api",
    "get_runner": "holdfast.runner.api",
    "elastic": "holdfast.train.run",
    "State": "holdfast.train.state",
    "NumpyState": "holdfast.train.state",
    "TreeState": "holdfast.train.state",
    "PytreeState": "holdfast.train.pytree",
    "Checkpointer": "holdfast.checkpoint.checkpointer",
    "Notices": "holdfast.checkpoint.notices",
    "heartbeat": "holdfast.timer.heartbeat",
    "pause": "holdfast.timer.heartbeat",
    "resume": "holdfast.timer.heartbeat",
}
#: The public modules.
_MODULES = (
    "agent",
    "checkpoint",
    "compat",
    "components",
    "errors",
    "events",
    "failures",
    "health",
    "launcher",
    "metrics",
    "rendezvous",
    "runner",
    "schedulers",
    "specs",
    "store",
    "testing",
    "timer",
    "torch",
    "tracker",
    "train",
    "workspace",
)
__all__ = ["__version__", *_NAMES, *_MODULES]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name):
        """Import a public name when it is first used."""
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"holdfast.{name}")
        if name not in _NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_NAMES[name]), name)
        return value


def __dir__() -> "list[str]":
    return sorted(__all__)
