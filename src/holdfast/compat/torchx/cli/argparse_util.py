"""Actions of argparse's for flags that settings may fill in, and that may be given only once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from holdfast.compat.torchx.config import get_configs


class ArgOnceAction(argparse.Action):
    """Takes a flag once; a second time ends the process with 1."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Keep the value."""
        seen = namespace.__dict__.setdefault("_seen", set())
        if option_string is not None and self.dest in seen:
            parser.print_usage(sys.stderr)
            parser.exit(1, f"{option_string} is specified more than once\n")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


class torchxconfig(ArgOnceAction):  # noqa: N801 - the name that commands are written with
    """Takes a flag whose default is what `[cli:<subcmd>]` of the settings says; then it need not be given."""

    def __init__(
        self,
        subcmd: str,
        dest: str,
        option_strings: Sequence[str],
        required: bool = False,
        default: Any = None,
        **kwargs: Any,
    ) -> None:
        default = get_configs("cli", subcmd).get(dest, default)
        super().__init__(option_strings, dest, required=required and not default, default=default, **kwargs)


class torchxconfig_run(torchxconfig):  # noqa: N801 - the name that commands are written with
    """Takes a flag whose default is what `[cli:run]` of the settings says."""

    def __init__(
        self, dest: str, option_strings: Sequence[str], required: bool = False, default: Any = None, **kwargs: Any
    ) -> None:
        super().__init__("run", dest, option_strings, required, default, **kwargs)
