"""Warm starts, as the agent goes about them: one template, made early, waited for when workers are due."""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.facts import Fact, facts
from holdfast.workers import Template

#: How often the wait for a template looks for a signal.
LOOK_S = 0.2


class Preloading:
    """One agent's template; without modules to import, or once they cannot be forked, workers are started cold."""

    def __init__(self, modules: tuple[str, ...], *, several: bool, is_interrupted: Callable[[], bool]) -> None:
        self._modules = modules
        self._several = several
        self._is_interrupted = is_interrupted
        self._template: Template | None = None

    @property
    def importing(self) -> bool:
        """Whether the template is still busy with what it imports."""
        return self._template is not None and self._template.importing

    @property
    def names(self) -> str:
        """What it imports, for people."""
        return ", ".join(dict.fromkeys(self._modules))

    def begin(self) -> None:
        """Begin to import what workers will need, in the background."""
        if self._modules and self._template is None:
            # As workers will have it: numpy and torch read this once, when they are imported.
            base = {"OMP_NUM_THREADS": "1"} if self._several and "OMP_NUM_THREADS" not in os.environ else {}
            self._template = Template(self._modules, {**os.environ, **base})

    def wait_ready(self) -> Template | None:
        """Wait for the imports, which cost a worker that is started cold just as much, each; None to start cold."""
        self.begin()
        template = self._template
        if template is None:
            return None
        fresh = template.importing
        if fresh:
            sentence = f"importing {self.names}; workers start when that is done"
            facts.publish(Fact("template_importing", sentence, {"modules": self.names}))
        while template.importing and not self._is_interrupted():
            template.wait_ready(LOOK_S)
        if fresh and template.usable:
            sentence = f"imported {self.names} in {template.seconds:.1f} s; workers are forked from there"
            facts.publish(Fact("template_ready", sentence, {"modules": self.names, "seconds": template.seconds}))
        if template.usable or template.importing:
            return template
        facts.warn("template_unusable", f"starting workers cold: {template.why_not}")
        self.close()
        self._modules = ()
        return None

    def close(self) -> None:
        """End the template; may be called again."""
        if self._template is not None:
            self._template.close()
            self._template = None
