"""What the run options of Docker and Podman mean. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from holdfast.errors import UsageError
from holdfast.specs.cfg import CfgVal

PULLS = ("missing", "always", "never")
#: Flags of `create` that are ours to set: a job would not work as promised with others.
OURS = {
    "--name": "the name says which replica it is",
    "--rm": "containers are removed when they have ended",
    "--restart": "max_retries says how often a failure is answered by another start",
    "--entrypoint": "the app says what is run",
    "--network": "name a network with -cfg network=NAME",
    "--net": "name a network with -cfg network=NAME",
    "--detach": "a job is in the background anyway",
    "-d": "a job is in the background anyway",
    "-t": "streams are told apart, so there is no terminal",
    "--tty": "streams are told apart, so there is no terminal",
}


def check_flags(flags: CfgVal) -> list[str]:
    """Return the flags that the user chose as NAME:VALUE or --NAME=VALUE; raises `UsageError` for one of ours."""
    assert flags is None or isinstance(flags, list)
    found = [_flag(str(flag)) for flag in flags or []]
    for flag in found:
        name = flag.partition("=")[0]
        if name in OURS:
            raise UsageError(f"the flag {flag} cannot be given: {OURS[name]}")
    return found


def _flag(text: str) -> str:
    if text.startswith("-"):
        return text
    name, colon, value = text.partition(":")
    if not colon:
        raise UsageError(f"'{text}' is not a flag: write its name and value, as in cap-add:IPC_LOCK")
    return f"--{name}={value}" if value else f"--{name}"


def check_pull(pull: CfgVal) -> str:
    """Return when images are pulled; raises `UsageError` for a word that says nothing of that."""
    found = str(pull or PULLS[0])
    if found not in PULLS:
        raise UsageError(f"pull={found} must be one of {', '.join(PULLS)}")
    return found


def chosen_env(cfg: Mapping[str, CfgVal], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the options give to every replica."""
    patterns, more = cfg.get("copy_env") or [], cfg.get("env") or {}
    assert isinstance(patterns, list)
    assert isinstance(more, Mapping)
    copied = {
        name: value for name, value in environ.items() if any(fnmatch.fnmatchcase(name, each) for each in patterns)
    }
    return {**copied, **{str(name): str(value) for name, value in more.items()}}
