"""Warm starts, as the agent goes about them: one template, looked at until its imports are done.

The first workers are started at once, and the template is prepared beside them when they leave a core to it (see
`spare_cores`). It comes first where that is asked for, where there are many workers to a core, and on a node that
would break a round that runs: the others should not wait for its imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.agent.machine import PreloadBegun, Preloaded
from holdfast.agent.spare_cores import SpareCores, forks_first
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.facts import Fact, facts
from holdfast.workers import Template
from holdfast.workers.cores import cpu_seconds, usable_cores

if TYPE_CHECKING:
    from holdfast.workers.standbys import Opened, Standbys

#: How long a kept template may take to say what it has.
ATTACH_TIMEOUT_S = 1.0


class Preloading:
    """One agent's template; without modules to import, or once they cannot be forked, workers are started cold."""

    def __init__(
        self,
        modules: tuple[str, ...],
        *,
        workers: int,
        first: bool = True,
        keep_s: float | None = None,
        standbys: int = 0,
        standbys_open: frozenset[Opened] = frozenset(),
    ) -> None:
        self._modules = modules
        self._keep_s = keep_s
        self._workers = workers
        self._number, self._standbys_open = standbys, standbys_open
        #: Processes that wait to become workers, once there is a template.
        self.standbys: Standbys | None = None
        cores = usable_cores()
        self._first = first or forks_first(workers, cores)
        self._spare = SpareCores(cores)
        self._template: Template | None = None
        #: Whether the user was told that the agent waits for imports.
        self._is_told = False
        #: Whether the end of the imports is still to be reported.
        self._reports = False

    @property
    def is_asked_for(self) -> bool:
        """Whether there is, or will be, a template."""
        return bool(self._modules)

    @property
    def comes_first(self) -> bool:
        """Whether even the first workers are forked from it."""
        return self._first

    @property
    def importing(self) -> bool:
        """Whether the template is still importing."""
        return self._template is not None and self._template.importing

    def attach(self) -> None:
        """Take the template that an earlier launch has left for this one, if there is one."""
        if self._modules and self._template is None and self._keep_s is not None:
            from holdfast.workers.kept import find  # few launches keep one, and all would wait for the import

            try:
                self._template = find(self._modules, self._environment(), self._keep_s)
            except HoldfastError as error:
                self._give_up_keeping(error)
            if self._template is not None:
                self._reports = not self._template.wait_ready(ATTACH_TIMEOUT_S)

    def begin(self) -> None:
        """Begin to import what workers will need, in the background."""
        self._spare.end()
        if self._modules and self._template is None:
            self._template = self._make()
            self._reports = True

    def _make(self) -> Template:
        if self._keep_s is not None:
            from holdfast.workers.kept import keep

            try:
                return keep(self._modules, self._environment(), self._keep_s)
            except HoldfastError as error:
                self._give_up_keeping(error)
        return Template(self._modules, self._environment())

    def _environment(self) -> dict[str, str]:
        # As workers will have it: numpy and torch read this once, when they are imported.
        base = {"OMP_NUM_THREADS": "1"} if self._workers > 1 and "OMP_NUM_THREADS" not in os.environ else {}
        return {**os.environ, **base}

    def _give_up_keeping(self, error: HoldfastError) -> None:
        self._keep_s = None
        facts.warn("template_not_kept", f"--keep-warm has no effect: {error}")

    def begin_later(self, now: float, *, workers: bool) -> None:
        """Begin when a core is left over; `workers`: they have just been started, else none runs yet."""
        if self._modules and self._template is None:
            self._spare.begin(now, workers=workers)

    def look(self, pids: Iterable[int], now: float) -> PreloadBegun | Preloaded | None:
        """Look without waiting at the template, or at the cores that the workers of these pids leave to it."""
        if (due := self._spare.wakeup()) is not None and now >= due and self._spare.look(cpu_seconds(pids), now):
            self.begin()
            return PreloadBegun()
        self._look_at_standbys(now)
        template = self._template
        if template is None or not self._reports:
            return None
        template.wait_ready(0.0)
        if template.importing:
            return None
        if not template.usable and self._keep_s is not None:
            # Another launch may have been quicker to keep the same one; a template of our own will do.
            self._give_up_keeping(UnavailableError(template.why_not))
            template.close()
            self._template = Template(self._modules, self._environment())
            return None
        self._reports = False
        if template.usable:
            kind = "template_ready" if self._is_told else "template_prepared"
            sentence = f"imported {self._names} in {template.seconds:.1f} s; workers are forked from there"
            facts.publish(Fact(kind, sentence, {"modules": self._names, "seconds": template.seconds}))
        self._is_told = False
        return Preloaded()

    def _look_at_standbys(self, now: float) -> None:
        template = self._template
        if self.standbys is None and self._number and template is not None and template.usable:
            from holdfast.workers.standbys import Standbys  # few launches want them

            self.standbys = Standbys(template, self._number, workers=self._workers, may_open=self._standbys_open)
        if self.standbys is not None:
            self.standbys.look(now)

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
        if template.importing:
            return None  # one worker is replaced while the others go on; it does not wait
        facts.warn("template_unusable", f"starting workers cold: {template.why_not}")
        self.close()
        self._modules = ()
        return None

    def filenos(self) -> tuple[int, ...]:
        """What becomes readable when `look` has something to do."""
        if self._template is not None and self._template.importing:
            return (self._template.fileno(),)
        return self.standbys.filenos() if self.standbys is not None else ()

    def wakeup(self) -> float | None:
        """Say when to look in any case: at the cores, or when the imports have taken too long."""
        if self._template is not None and self._template.importing:
            return self._template.import_deadline
        return self._spare.wakeup() if self.standbys is None else self.standbys.wakeup()

    def close(self) -> None:
        """End the template, or leave it to its keeper; may be called again.

        A launch that was over before there was time for one still leaves one to be kept.
        """
        if self._keep_s is not None and self._spare.wakeup() is not None:
            self.begin()
        self._spare.end()
        if self.standbys is not None:
            self.standbys.close()
            self.standbys = None
        if self._template is not None:
            self._template.close()
            self._template = None

    @property
    def _names(self) -> str:
        return ", ".join(dict.fromkeys(self._modules))
