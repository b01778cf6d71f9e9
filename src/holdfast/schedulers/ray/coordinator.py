"""The coordinator of a job on Ray, beside its driver: it ends, and removes its files, when the driver is gone.

The secret comes through standard input, so it is in no file that would be left where Ray kills all at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from holdfast.wire.secret import SECRET_VARIABLE, VARIABLES
from holdfast.workers.linux import set_parent_death_signal

#: How long the coordinator may take to end before it is killed.
END_S = 10.0


def main(folder: str, port: str) -> None:
    """Serve until standard input, whose first line is the secret, is closed."""
    # Ray tells all processes of a job to end at the same time; this one ends after the driver, and cleans up.
    signal.signal(signal.SIGTERM, lambda *_: None)
    secret = sys.stdin.buffer.readline().strip().decode()
    words = [sys.executable, "-P", "-m", "holdfast", "serve", f"0.0.0.0:{port}", "--quiet"]
    words += ["--state-dir", folder]
    env = {**{name: value for name, value in os.environ.items() if name not in VARIABLES}, SECRET_VARIABLE: secret}
    try:
        serving = subprocess.Popen(words, stdin=subprocess.DEVNULL, env=env, preexec_fn=set_parent_death_signal)
        while sys.stdin.buffer.read(4096):
            pass
        serving.terminate()
        try:
            serving.wait(END_S)
        except subprocess.TimeoutExpired:
            serving.kill()
            serving.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
