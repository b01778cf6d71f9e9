"""TorchElastic's `argparse_util`: arguments that can also be set by a variable, `PET_<DEST>`."""

from __future__ import annotations

import os
from argparse import Action, ArgumentParser, Namespace
from typing import Any

__all__ = ["check_env", "env"]

PREFIX = "PET_"


class env(Action):  # noqa: N801 - the name that users know
    """An argument with a value: what is typed counts before the variable, and that before the default."""

    def __init__(self, dest: str, default: Any = None, required: bool = False, **kwargs: Any) -> None:
        default = os.environ.get(f"{PREFIX}{dest.upper()}", default)
        super().__init__(dest=dest, default=default, required=required and not default, **kwargs)

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Take the value."""
        del parser, option_string
        setattr(namespace, self.dest, values)


class check_env(Action):  # noqa: N801 - the name that users know
    """An argument without a value: the variable is `1` to set it."""

    def __init__(self, dest: str, default: Any = False, **kwargs: Any) -> None:
        name = f"{PREFIX}{dest.upper()}"
        default = bool(int(os.environ.get(name, "1" if default else "0")))
        super().__init__(dest=dest, const=True, default=default, nargs=0, **kwargs)

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Set it."""
        del parser, values, option_string
        setattr(namespace, self.dest, self.const)
