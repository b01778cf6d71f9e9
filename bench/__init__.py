"""Measurements beside others' tools, in one run; `python -m bench` prints them all."""

import os
import sys

# Other packages were compiled when pip installed them. Ours often runs from a clone; where bytecode may not be written,
# each of its processes would compile it anew, and we would measure the compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
