"""`python -m holdfast` is the `holdfast` command."""

from holdfast.interrupts import UntilImported


def main() -> None:
    """Run the command line; Ctrl-C before it has been imported, or while the interpreter ends, leaves no traceback."""
    with UntilImported():
        from holdfast.cli import main as run
    try:
        run()
    finally:
        UntilImported().begin()  # and never ended: all that is left is the interpreter's


if __name__ == "__main__":
    main()
