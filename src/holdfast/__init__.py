"""Holdfast launches distributed training anywhere and keeps it running through every failure."""

__version__ = "0.1.0.dev0"
