"""Small jobs: print a message, run a command, run Python, copy a file.

`image` is the scheduler's own by default; the local one needs none. Arguments reach the program exactly as given, but
for macros such as `${app_id}`; write `$$` for a dollar sign.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath

from holdfast.errors import UsageError
from holdfast.specs import AppDef, Role, parse_mounts, resource

#: Copies without anything installed, and by fsspec what is no path of this machine. No dollar sign may be in it.
_COPY = """\
import os, shutil, sys
src, dst = (url[7:] if url.startswith('file://') else url for url in sys.argv[1:])
try:
    if '://' in src or '://' in dst:
        import fsspec
        with fsspec.open(src, 'rb') as source, fsspec.open(dst, 'wb') as target:
            shutil.copyfileobj(source, target)
    else:
        if os.path.isdir(dst) or dst.endswith('/'):
            dst = os.path.join(dst, os.path.basename(os.path.abspath(src)))
        os.makedirs(os.path.dirname(os.path.abspath(dst)), exist_ok=True)
        (shutil.copytree if os.path.isdir(src) else shutil.copy2)(src, dst)
except ImportError as error:
    sys.exit(f'cannot copy {src} to {dst}: {error}; pip install fsspec, or what it asks for')
except Exception as error:
    sys.exit(f'cannot copy {src} to {dst}: {error}')
"""


#: The function of Booth, a test of optimisers: its least value is 0, at (1, 3). No dollar sign may be in it.
_BOOTH = """\
import json, os, sys
x1, x2, trial, base = sys.argv[1:]
x1, x2 = float(x1), float(x2)
value = (x1 + 2 * x2 - 7) ** 2 + (2 * x1 + x2 - 5) ** 2
text = json.dumps({'booth_eval': value}, indent=2)
if '://' in base:
    import fsspec
    with fsspec.open(f'{base}/{trial}', 'wt', auto_mkdir=True) as file:
        file.write(text)
else:
    os.makedirs(base, exist_ok=True)
    with open(os.path.join(base, trial), 'w') as file:
        file.write(text)
print(f'booth({x1:g}, {x2:g}) = {value:g}')
"""


def echo(msg: str = "hello world", image: str = "", num_replicas: int = 1) -> AppDef:
    """Print a message, to see whether jobs run at all.

    Args:
        msg: What to print.
        image: Image to run in, if the scheduler uses images.
        num_replicas: How many times to print it, side by side.
    """
    return _app("echo", Role("echo", image, entrypoint="echo", args=[msg], num_replicas=num_replicas))


def touch(file: str, image: str = "") -> AppDef:
    """Create an empty file if it does not exist, and set its time to now.

    Args:
        file: Path of the file.
        image: Image to run in, if the scheduler uses images.
    """
    return _app("touch", Role("touch", image, entrypoint="touch", args=[file]))


def sh(
    *args: str,
    image: str = "",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
) -> AppDef:
    """Run a command in a shell.

    One argument is a line of shell, with variables, pipes and all; several are a program and its arguments, passed on
    as they are: nothing in them is expanded.

    Args:
        args: The command.
        image: Image to run in, if the scheduler uses images.
        num_replicas: How many to run side by side.
        cpu: CPUs of each replica.
        gpu: GPUs of each replica.
        memMB: Memory of each replica, in MB.
        h: Named resource of each replica; it replaces cpu, gpu and memMB.
        env: Environment variables.
        max_retries: How often the scheduler may start it again.
        mounts: Mounts, as in type=bind,src=/data,dst=/data,readonly.
        entrypoint: Shell to use instead of sh.
    """
    if not args:
        raise UsageError("say what to run, as in: utils.sh ls -l")
    line = args[0] if len(args) == 1 else shlex.join(args)
    role = Role(
        "sh",
        image,
        entrypoint=entrypoint or "sh",
        args=["-c", line],
        env=dict(env or {}),
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=resource(cpu, gpu, memMB, h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef("sh", [role])


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = "",
    name: str = "python",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    num_replicas: int = 1,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
) -> AppDef:
    """Run a Python module, a line of Python, or a script.

    Args:
        args: Arguments of the program.
        m: Module to run.
        c: Line of Python to run.
        script: Script to run.
        image: Image to run in, if the scheduler uses images.
        name: Name of the job.
        cpu: CPUs of each replica.
        gpu: GPUs of each replica.
        memMB: Memory of each replica, in MB.
        h: Named resource of each replica; it replaces cpu, gpu and memMB.
        num_replicas: How many to run side by side.
        env: Environment variables.
        max_retries: How often the scheduler may start it again.
        mounts: Mounts, as in type=bind,src=/data,dst=/data,readonly.
    """
    ways = [[*flag, value] for flag, value in ((["-m"], m), (["-c"], c), ([], script)) if value is not None]
    if len(ways) != 1:
        raise UsageError("give one of -m, a module, -c, a line of Python, or --script, a file")
    role = Role(
        name,
        image,
        entrypoint="python",
        args=[*ways[0], *args],
        env=dict(env or {}),
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=resource(cpu, gpu, memMB, h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name, [role])


def binary(
    *args: str,
    entrypoint: str,
    name: str = "binary",
    image: str = "",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
) -> AppDef:
    """Run a program, without a shell.

    Args:
        args: Arguments of the program.
        entrypoint: The program.
        name: Name of the job.
        image: Image to run in, if the scheduler uses images.
        num_replicas: How many to run side by side.
        cpu: CPUs of each replica.
        gpu: GPUs of each replica.
        memMB: Memory of each replica, in MB.
        h: Named resource of each replica; it replaces cpu, gpu and memMB.
    """
    role = Role(
        PurePath(entrypoint).name or name,
        image,
        entrypoint=entrypoint,
        args=list(args),
        num_replicas=num_replicas,
        resource=resource(cpu, gpu, memMB, h),
    )
    return AppDef(name, [role])


def copy(src: str, dst: str, image: str = "", mounts: list[str] | None = None) -> AppDef:
    """Copy a file or a folder; from or to a URL with what fsspec knows.

    Args:
        src: What to copy, a path or a URL.
        dst: Where to; a folder that exists gets the copy inside it.
        image: Image to run in, if the scheduler uses images.
        mounts: Mounts, as in type=bind,src=/data,dst=/data,readonly.
    """
    args = ["-c", _COPY, src, dst]
    return _app("copy", Role("copy", image, entrypoint="python", args=args, mounts=parse_mounts(mounts or [])))


def booth(
    x1: float,
    x2: float,
    trial_idx: int = 0,
    tracker_base: str = "/tmp/torchx-util-booth",
    image: str = "",
) -> AppDef:
    """Evaluate the function of Booth, to try out an optimiser that submits jobs.

    Args:
        x1: First argument.
        x2: Second argument.
        trial_idx: Number of the trial; the result is kept under it.
        tracker_base: Folder or URL where results are kept.
        image: Image to run in, if the scheduler uses images.
    """
    args = ["-c", _BOOTH, str(x1), str(x2), str(trial_idx), tracker_base]
    return _app("booth", Role("booth", image, entrypoint="python", args=args))


def _app(name: str, role: Role) -> AppDef:
    """Make an app of one small role."""
    role.resource = resource(cpu=1, gpu=0, memMB=1024)
    return AppDef(name, [role])
