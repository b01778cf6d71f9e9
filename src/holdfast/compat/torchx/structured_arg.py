"""Arguments that hold several values in one text: the name of a run and the size of a job.

Components of others take `-j` and `--name` as ours do, and read them with these.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import PurePath

from holdfast.errors import UsageError
from holdfast.specs import named_resources


@dataclass
class StructuredNameArgument:
    """The name of an experiment and of one run of it, written `experiment/run`."""

    experiment_name: str
    run_name: str

    @staticmethod
    def parse_from(
        name: str,
        m: str | None = None,
        script: str | None = None,
        default_experiment_name: str = "default-experiment",
    ) -> StructuredNameArgument:
        """Read `experiment/run`, `run`, `experiment/` or `/`; a run without a name is called after what it runs."""
        if (m is None) == (script is None):
            raise UsageError("give either m, a module to run, or script, a file to run")
        experiment, _, run = name.rpartition("/")
        ran = m.rpartition(".")[2] if m is not None else PurePath(str(script)).stem
        return StructuredNameArgument(experiment or default_experiment_name, run or ran)

    def __str__(self) -> str:
        return f"{self.experiment_name}/{self.run_name}"


@dataclass
class StructuredJArgument:
    """How many nodes, and how many workers on each, written `NODESxWORKERS`."""

    nnodes: int
    nproc_per_node: int

    @staticmethod
    def parse_from(h: str, j: str) -> StructuredJArgument:
        """Read `NODES`, with a worker for each GPU of the machine `h`, or `NODESxWORKERS`; raises `UsageError`."""
        gpus = int(named_resources[h].gpu)
        nodes, x, workers = j.partition("x")
        if not nodes.isdecimal() or (x and not workers.isdecimal()):
            raise UsageError(f"-j '{j}' must be NODES or NODESxWORKERS, as in 2 or 2x8")
        if not x and gpus < 1:
            raise UsageError(f"-j '{j}' says no number of workers and {h} has no GPUs; write -j {nodes}x1")
        if x and gpus > 0 and int(workers) != gpus:
            warnings.warn(
                f"-j {j} asks for {workers} workers on each node, and {h} has {gpus} GPUs; -j {nodes} asks for as many",
                UserWarning,
                stacklevel=2,
            )
        return StructuredJArgument(int(nodes), int(workers) if x else gpus)

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"
