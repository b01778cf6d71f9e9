"""Measurements beside others' tools, in one run; `python -m bench` prints them all."""
