"""`python -m holdfast` is the `holdfast` command."""

import gc

from holdfast.interrupts import UntilImported


def main() -> None:
    """Run the command line; Ctrl-C before it has been imported, or while the interpreter ends, leaves no traceback."""
    gc.disable()  # an import makes objects that stay: to look through them for garbage, again and again, finds none
    with UntilImported():
        from holdfast.cli import main as run
    gc.enable()
    try:
        run()
    finally:
        gc.freeze()  # nor need the interpreter look through them once more at its end: that took a tenth of a launch
        UntilImported().begin()  # and never ended: all that is left is the interpreter's


if __name__ == "__main__":
    main()
