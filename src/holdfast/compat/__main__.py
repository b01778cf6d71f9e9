"""`python -m holdfast.compat script.py args`, or `-m module args`: run a program with foreign names that mean ours.

So `python -m holdfast.compat -m torch.distributed.run --nproc-per-node 2 train.py` is torchrun's command line on our
launcher, and the names mean our modules in the workers too.
"""

from __future__ import annotations

import os
import sys

from holdfast.compat import VARIABLE, install, module_behind
from holdfast.workers import bootstrap

USAGE = "usage: python -m holdfast.compat SCRIPT [ARGS...]\n       python -m holdfast.compat -m MODULE [ARGS...]\n"


def main() -> None:
    """Run what the command line names, as `python` itself would."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(f"{USAGE}\n{(__doc__ or '').strip()}\n")
        return
    kind, arguments = ("module", arguments[1:]) if arguments[:1] == ["-m"] else ("script", arguments)
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        sys.exit(2)
    if not sys.flags.safe_path:
        del sys.path[0]  # where we were started; the program gets its own
    os.environ[VARIABLE] = "all"  # for the workers that it starts
    install()
    # Python imports the parents of a module that it runs, and those of ours are there without torch too.
    what = module_behind(arguments[0]) if kind == "module" else arguments[0]
    bootstrap.run(kind, what, arguments[1:])


if __name__ == "__main__":
    main()
