"""`python -m holdfast` is the `holdfast` command."""

from holdfast.interrupts import UntilImported


def main() -> None:
    """Run the command line; Ctrl-C before it has been imported leaves no traceback."""
    with UntilImported():
        from holdfast.cli import main as run
    run()


if __name__ == "__main__":
    main()
