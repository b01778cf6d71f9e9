"""The base of a sub-command."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod


class SubCommand(ABC):
    """A sub-command: a class of your own is added by an entry point of the group `torchx.cli.cmds`."""

    @abstractmethod
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add the flags and arguments of the command to its parser."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Do what the command does."""
