"""Commands in this process, with a home of the test's own."""

from tests.cli.conftest import environ, invoke, start

__all__ = ["environ", "invoke", "start"]
