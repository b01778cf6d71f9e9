"""What Python runs first on a host. Pure.

The command that ssh runs is `python3 -c "<one line>"`, which every login shell takes alike. That line reads the program
below from its standard input, where it is followed by one line of JSON and, for some calls, by more. So nothing has to
be there before, nothing is written to a command line that others could read, and quotes need no care.

The program finds Holdfast: the same version, installed with that Python, or what was sent before. Where it finds none
it says what it needs and exits with `NEEDS_PACKAGES`.
"""

from __future__ import annotations

import json

#: The line that ssh runs. It must hold no quote, dollar or backslash beyond these quotes, which any shell takes.
LINE = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
#: Exits of the program: Holdfast is not there, or this Python is too old for it.
NEEDS_PACKAGES, TOO_OLD = 75, 76
PYTHON_MIN = (3, 11)

_PROGRAM = """
import json, os, sys
order = json.loads(sys.stdin.buffer.readline())
def leave(code, **facts):
    facts.update(python=list(sys.version_info[:2]), machine=os.uname().machine, executable=sys.executable)
    print(json.dumps(facts))
    sys.stdout.flush()
    os._exit(code)
if sys.version_info < (3, 11):
    leave(76)
home = os.environ.get("HOLDFAST_HOME") or os.path.join(
    os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "holdfast")
packages = os.path.join(home, "packages", order["packages"])
if order["verb"] == "unpack":
    import io, shutil, tarfile
    draft = packages + "." + str(os.getpid())
    os.makedirs(draft, mode=0o700)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
            tar.extractall(draft, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(draft)
        os.rename(draft, packages)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not os.path.isdir(packages):
            leave(1, error=str(error))
    leave(0)
found = ""
if os.path.isdir(packages):
    sys.path.insert(0, packages)
    found = packages
else:
    from importlib import metadata
    try:
        if metadata.version("holdfast") != order["version"]:
            raise ImportError
        import holdfast, msgspec
    except (ImportError, metadata.PackageNotFoundError):
        leave(75)
from holdfast.schedulers.ssh.remote import main
main(order, found)
"""


def opening(order: dict[str, object]) -> bytes:
    """Return what goes to a host first: the program, and what it is asked to do."""
    program = _PROGRAM.encode()
    return b"%d\n%b%b\n" % (len(program), program, json.dumps(order).encode())
