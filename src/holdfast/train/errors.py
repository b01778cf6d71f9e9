"""What can go wrong in a training loop, by what is done about it."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class RoundOver(HoldfastError, RuntimeError):
    """The round ended under this step: it is rolled back, the workers regroup, and the step is done again."""


class StopException(HoldfastError):
    """This worker should leave the training, for good and without harm to the others."""


class NonRetryableException(HoldfastError):
    """Trying again cannot help: this worker ends, the others go on."""
