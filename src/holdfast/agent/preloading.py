"""Warm starts: the agent's template process, started early and watched until its imports are done."""

from __future__ import annotations

import os

from holdfast.facts import Fact, facts
from holdfast.workers import Template


class Preloading:
    """One agent's template; without modules to import, or once they cannot be forked, workers are started cold."""

    def __init__(self, modules: tuple[str, ...], *, several: bool) -> None:
        self._modules = modules
        self._several = several
        self._template: Template | None = None
        #: Whether the user was told that the agent waits for imports.
        self._is_told = False

    @property
    def importing(self) -> bool:
        """Whether the template is still importing."""
        return self._template is not None and self._template.importing

    def begin(self) -> None:
        """Begin to import the workers' modules, in the background."""
        if self._modules and self._template is None:
            # As workers will have it: numpy and torch read this once, when they are imported.
            base = {"OMP_NUM_THREADS": "1"} if self._several and "OMP_NUM_THREADS" not in os.environ else {}
            self._template = Template(self._modules, {**os.environ, **base})

    def look(self) -> bool:
        """Read the template's messages, without waiting; return whether its imports are done or given up."""
        template = self._template
        if template is not None and template.importing:
            template.wait_ready(0.0)
        if self._is_told and template is not None and template.usable:
            self._is_told = False
            sentence = f"imported {self._names} in {template.seconds:.1f} s; workers are forked from there"
            facts.publish(Fact("template_ready", sentence, {"modules": self._names, "seconds": template.seconds}))
        return not self.importing

    def tell(self, *, busy: bool) -> None:
        """Tell the user that the agent waits for imports."""
        if busy:
            sentence = f"a round is running; importing {self._names} before asking to be let in"
            facts.publish(Fact("waiting", sentence))
        self._is_told = True
        sentence = f"importing {self._names}; workers start when that is done"
        facts.publish(Fact("template_importing", sentence, {"modules": self._names}))

    def take(self) -> Template | None:
        """Return the template to fork workers from, or None to start them cold."""
        template = self._template
        if template is None or template.usable:
            return template
        facts.warn("template_unusable", f"starting workers cold: {template.why_not}")
        self.close()
        self._modules = ()
        return None

    def fileno(self) -> int | None:
        """What becomes readable when `look` has something to do."""
        return self._template.fileno() if self._template is not None and self._template.importing else None

    def wakeup(self) -> float | None:
        """Say when to look in any case: when the imports have taken too long."""
        return self._template.import_deadline if self._template is not None and self._template.importing else None

    def close(self) -> None:
        """End the template; may be called again."""
        if self._template is not None:
            self._template.close()
            self._template = None

    @property
    def _names(self) -> str:
        return ", ".join(dict.fromkeys(self._modules))
