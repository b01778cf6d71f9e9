"""TorchElastic's `launch`, older than `run`: workers get `--local-rank=N` unless `--use-env` is given."""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence

from holdfast.compat.elastic import run as _run
from holdfast.compat.elastic.run import get_args_parser, run
from holdfast.errors import UsageError
from holdfast.launcher.options import OPTIONS, words_of

__all__ = ["get_args_parser", "launch", "main", "parse_args", "run"]

_USE_ENV = ("--use-env", "--use_env")


def parse_args(args: Sequence[str] | None) -> Namespace:
    """Read the command line of `torch.distributed.launch`."""
    parser = get_args_parser()
    parser.add_argument(*_USE_ENV, default=False, action="store_true", help="Do not pass --local-rank to workers.")
    return parser.parse_args(args)


def launch(args: Namespace) -> None:
    """Run this node's workers to their end."""
    _check(args)
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line of `torch.distributed.launch`: return, or raise `ChildFailedError` if workers failed."""
    warnings.warn("torch.distributed.launch is deprecated; use torchrun or holdfast launch", FutureWarning, 2)
    parsed = parse_args(sys.argv[1:] if args is None else args)
    _check(parsed)
    _run.launch_or_raise(_run._options(parsed))


def _be_the_command(words: list[str]) -> None:
    warnings.warn("torch.distributed.launch is deprecated; use torchrun or holdfast launch", FutureWarning, 2)
    parsed = parse_args(words)
    _check(parsed)
    options = _run._options(parsed)
    flags = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) != OPTIONS[name].default}
    _run.be_the_command([*words_of(flags), "--", options.script, *options.script_args])


def _check(args: Namespace) -> None:
    if args.no_python and not args.use_env:
        raise UsageError("When using the '--no-python' flag, you must also set the '--use-env' flag.")


if __name__ == "__main__":
    _be_the_command(sys.argv[1:])
