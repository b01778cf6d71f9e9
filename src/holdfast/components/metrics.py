"""Looking at a run: TensorBoard over its logs."""

from __future__ import annotations

from holdfast.specs import AppDef, Role, resource

#: Starts a program once a file is there, and ends it when another is, or after a time. No dollar sign may be in it.
_WATCH = """\
import os, signal, subprocess, sys, time
timeout, start_on, exit_on, *command = sys.argv[1:]
def here(path):
    if '://' not in path:
        return os.path.exists(path)
    import fsspec
    fs, inner = fsspec.core.url_to_fs(path)
    return fs.exists(inner)
while start_on and not here(start_on):
    time.sleep(1)
end = time.monotonic() + float(timeout)
program = subprocess.Popen(command)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    while program.poll() is None:
        if exit_on and here(exit_on):
            sys.exit(0)
        if time.monotonic() > end:
            sys.exit(f'ended after {timeout} s')
        time.sleep(0.2)
    sys.exit(program.returncode)
finally:
    program.terminate()
    program.wait()
"""


def tensorboard(
    logdir: str,
    image: str = "",
    timeout: float = 3600,
    port: int = 6006,
    start_on_file: str = "",
    exit_on_file: str = "",
) -> AppDef:
    """Run TensorBoard beside a training job.

    Args:
        logdir: Folder or URL of the logs to show.
        image: Image to run in, if the scheduler uses images; it needs tensorboard.
        timeout: Seconds after which it ends.
        port: Port on which it answers.
        start_on_file: Begin when this file exists, as written by the job that is looked at.
        exit_on_file: End when this file exists.
    """
    command = ["tensorboard", "--bind_all", "--port", str(port), "--logdir", logdir]
    role = Role(
        "tensorboard",
        image,
        entrypoint="python",
        args=["-c", _WATCH, str(timeout), start_on_file, exit_on_file, *command],
        port_map={"http": port},
        resource=resource(cpu=1, gpu=0, memMB=1024),
    )
    return AppDef("tensorboard", [role])
