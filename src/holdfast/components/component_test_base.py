"""For the tests of components of your own: is it one, and does what it makes run?"""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from holdfast.components.arguments import help_text
from holdfast.components.finder import get_component
from holdfast.runner.api import get_runner
from holdfast.specs import AppDef, AppStatus


class ComponentTestCase(unittest.TestCase):
    """A test case with what tests of components need: `test_dir` is a folder of each test's own."""

    def setUp(self) -> None:
        """Make the folder; it goes when the test has ended."""
        folder = tempfile.TemporaryDirectory(prefix="holdfast-component-")
        self.addCleanup(folder.cleanup)
        self.test_dir = folder.name

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fail unless a function of a module is a component whose help can be shown."""
        component = get_component(f"{module.__file__}:{function_name}")
        assert function_name in help_text(component.fn, function_name)

    def run_component(
        self,
        component: Callable[..., AppDef],
        args: Mapping[str, Any] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        scheduler: str = "local_cwd",
        interval: float = 0.1,
        timeout: float | None = None,
    ) -> AppStatus | None:
        """Run what a component makes of `args` and return its status once it has ended.

        Raises `JobTimeoutError` if that takes longer than `timeout` seconds.
        """
        app = component(**(args or {}))
        with get_runner(**(scheduler_params or {})) as runner:
            return runner.wait(runner.run(app, scheduler), interval, timeout)
