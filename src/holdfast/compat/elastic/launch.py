"""TorchElastic's `launch`, older than `run`: workers get `--local-rank=N` unless `--use-env` is given."""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence

from holdfast.agent.environment import LOCAL_RANK_MACRO
from holdfast.compat.elastic import run as _run
from holdfast.compat.elastic.run import get_args_parser, run
from holdfast.errors import UsageError

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
    """Be `holdfast launch` with the command line of `torch.distributed.launch`."""
    warnings.warn("torch.distributed.launch is deprecated; use torchrun or holdfast launch", FutureWarning, 2)
    given = list(sys.argv[1:] if args is None else args)
    parsed = parse_args(given)
    _check(parsed)
    of_script = parsed.training_script_args
    ours = [each for each in given[: len(given) - len(of_script)] if each not in _USE_ENV]
    _run.main([*ours, *([] if parsed.use_env else [f"--local-rank={LOCAL_RANK_MACRO}"]), *of_script])


def _check(args: Namespace) -> None:
    if args.no_python and not args.use_env:
        raise UsageError("When using the '--no-python' flag, you must also set the '--use-env' flag.")


if __name__ == "__main__":
    main()
