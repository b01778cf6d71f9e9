"""Jobs of a home of the test's own."""

from tests.cli.conftest import environ

__all__ = ["environ"]
