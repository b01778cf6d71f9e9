"""TorchX's command line: what each mistake ends with."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

from torchx.cli.argparse_util import ArgOnceAction, torchxconfig
from torchx.cli.cmd_log import find_role_replicas, get_logs, validate
from torchx.cli.main import main
from torchx.runner import get_runner
from torchx.specs import AppDef, Role

HERE = Path.cwd()


def run(*words: str) -> str:
    """Run a command line and say how it ended."""
    sys.argv = ["torchx", *words]
    ArgOnceAction.called_args = set()  # theirs belong to the process
    torchxconfig.called_args = set()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(list(words))
        except SystemExit as ended:
            return f"exit {ended.code}"
    return "returned"


def ends(call: object, *args: object) -> str:
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return f"returned {call(*args)}"
        except SystemExit as ended:
            return f"exit {ended.code}"


def show_mistakes() -> None:
    for command in ("status", "describe", "cancel"):
        print(command, run(command, "local_cwd://torchx/none-such"))
    print("log", run("log", "nonsense"), run("log", "local_cwd://torchx/x/r/notanumber"))
    print(
        "run",
        run("run", "-s", "local_cwd", "no.such.component"),
        run("run", "-s", "local_cwd", "-s", "local_cwd", "utils.echo"),
    )
    print("run", run("run", "-s", "local_cwd", "-cfg", "log_dir=a", "-cfg", "log_dir=b", "utils.echo"))
    print("none", run(), run("--no-such-flag"), run("run", "-s", "local_cwd", "--dryrun", "utils.echo", "--msg", "hi"))
    print(run("builtins"), run("configure", "--print", "-s", "local_cwd"))


def show_jobs() -> None:
    print(run("run", "-s", "local_cwd", "-cfg", f"log_dir={HERE}/logs", "--wait", "utils.echo", "--msg", "hi"))
    print(os.environ.get("TORCHX_CONTEXT_NAME"))
    print(run("run", "-s", "local_cwd", "--wait", "utils.sh", "exit", "3"))


def show_logs() -> None:
    print(
        ends(validate, "nonsense"), ends(validate, "local_cwd://torchx/x"), ends(validate, "local_cwd://torchx/x/r/0,1")
    )
    app = AppDef(
        "app",
        [Role("a", "", entrypoint="sh", args=["-c", "echo hello"], num_replicas=2), Role("b", "", entrypoint="true")],
    )
    print(find_role_replicas(app, None), find_role_replicas(app, "a"), find_role_replicas(app, "none"))
    with get_runner() as runner:
        handle = runner.run(app, "local_cwd", {"log_dir": str(HERE / "logs")})
        runner.wait(handle, 0.1)
        written = io.StringIO()
        get_logs(written, f"{handle}/a", None, runner=runner)
        print(sorted(re.sub(r"\x1b\[\d+m", "", line) for line in written.getvalue().splitlines()))
        print(runner.status(handle).state.name, ends(get_logs, written, f"{handle}/none", None, False, runner))


if __name__ == "__main__":
    show_mistakes()
    show_jobs()
    show_logs()
