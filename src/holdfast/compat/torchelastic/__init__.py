"""Adapters for the first torchelastic, 0.1: training inside the process."""
