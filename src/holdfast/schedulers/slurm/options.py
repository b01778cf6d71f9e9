"""The run options of Slurm, and which flags of sbatch they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.errors import UsageError
from holdfast.specs.cfg import CfgVal

#: Options that are flags of sbatch by the same name, with what they are for.
SBATCH_OPTIONS = {
    "partition": "partition, or several separated by commas",
    "account": "account that the job is charged to",
    "qos": "quality of service",
    "time": "time limit, as in 30, 2:00:00 or 1-12; a job that may be requeued goes on after it",
    "gres": "generic resources of each node, as in gpu:a100:8, in place of the GPUs that the app asks for",
    "constraint": "features that the nodes must have",
    "nodelist": "nodes that must be among those of the job",
    "exclude": "nodes that must not be among those of the job",
    "reservation": "reservation to use",
    "dependency": "jobs to wait for, as in afterok:1234",
    "array": "run the app once for every number, as in 0-3 or 1,5%2; each run is a job with the id JOB_NUMBER",
    "mem": "memory of each node, as in 64G, or 0 for all of it, in place of what the app asks for",
    "comment": "a note on the job",
    "mail-user": "address to write to",
    "mail-type": "what to write about, as in END,FAIL",
}
#: Flags that are ours to set: a job would not work as promised with others.
OURS = {
    "output": "logs are found by `holdfast log`",
    "error": "logs are found by `holdfast log`",
    "nodes": "-j says how many nodes there are",
    "ntasks": "every node runs one agent",
    "ntasks-per-node": "every node runs one agent",
    "wrap": "the app says what is run",
    "parsable": "the job's id is printed anyway",
    "signal": "notice_s says how long before the end workers are told",
    "hold": "submit it, and run: scontrol hold JOB",
}
#: Short flags are written out, so that a flag is given once.
_TIME = re.compile(r"(?:\d+-)?\d+(?::\d+){0,2}")
_LONG = {"p": "partition", "A": "account", "q": "qos", "t": "time", "C": "constraint", "w": "nodelist", "x": "exclude"}


def time_limit_s(text: str) -> float | None:
    """Read a time limit as sbatch does: `30` is minutes, `1-12` days and hours; None where there is none."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, _, rest = match[0].rpartition("-")
    numbers = [int(number) for number in rest.split(":")]
    if days:  # DAYS-HOURS[:MINUTES[:SECONDS]]
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    else:  # MINUTES, MINUTES:SECONDS or HOURS:MINUTES:SECONDS
        hours, minutes, seconds = [(0, *numbers, 0), (0, *numbers), tuple(numbers)][len(numbers) - 1]
    return float((int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds) or None


def sbatch_flags(cfg: Mapping[str, CfgVal]) -> dict[str, str]:
    """Return the flags that the user chose, by their long names; one without a value is an empty text."""
    flags = {name: str(cfg[name]) for name in SBATCH_OPTIONS if cfg.get(name) not in (None, "")}
    more = cfg.get("sbatch") or {}
    assert isinstance(more, Mapping)
    for given, value in more.items():
        bare = given.lstrip("-")
        name = _LONG.get(bare, bare)
        if name in OURS:
            raise UsageError(f"-cfg sbatch={given}:{value} cannot be given to sbatch: {OURS[name]}")
        if name in flags:
            raise UsageError(f"--{name} is given twice: as {name}={flags[name]} and as sbatch={given}:{value}")
        flags[name] = str(value)
    return flags
