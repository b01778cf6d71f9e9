"""The facts of checkpoints, from which metrics are made."""

from __future__ import annotations

from typing import Any

from holdfast import worker_telemetry
from holdfast.checkpoint.keys import Key
from holdfast.facts import DEBUG, INFO, WARNING, Fact, facts
from holdfast.quantities import size


def written(key: Key, tier: str, nbytes: int, duration_ms: float, blocked_ms: float) -> None:
    """Report a shard that was saved to a tier; training waited `blocked_ms` for the copy."""
    _tell(
        Fact(
            "checkpoint_written",
            f"step {key.step}: shard {key.shard} of {key.world} is in {tier} ({size(nbytes)}) "
            f"after {duration_ms:.0f} ms; training waited {blocked_ms:.0f} ms",
            {**key.as_data(), "tier": tier, "bytes": nbytes, "duration_ms": duration_ms, "blocked_ms": blocked_ms},
            DEBUG if tier == "memory" else INFO,
        )
    )


def read(data: dict[str, Any], tier: str, nbytes: int, duration_ms: float, sentence: str) -> None:
    """Report a checkpoint that was read, mostly from this tier."""
    _tell(
        Fact(
            "checkpoint_read",
            f"{sentence}; read from {tier} in {duration_ms:.0f} ms ({size(nbytes)})",
            {**data, "tier": tier, "bytes": nbytes, "duration_ms": duration_ms},
        )
    )


def failed(step: int, tier: str, error: BaseException | str, **data: Any) -> None:
    """Report a shard that could not be saved to a tier; training goes on."""
    said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    _tell(
        Fact(
            "checkpoint_failed",
            f"step {step} could not be saved to {tier}: {said}",
            {"step": step, "tier": tier, "error": said, **data},
            WARNING,
        )
    )


def refused(step: int, tier: str, place: str, error: BaseException) -> None:
    """Report a shard that could not be read, or with step -1 a tier; another copy or an older step is used."""
    what = f"step {step} in {tier}{f' ({place})' if place else ''} is refused"
    _tell(
        Fact(
            "checkpoint_refused",
            f"{what if step >= 0 else f'what {tier} holds cannot be used'}: {error}",
            {"step": step, "tier": tier, "place": place, "error": str(error)},
            WARNING,
        )
    )


def absent(sentence: str, data: dict[str, Any]) -> None:
    """Report that there was nothing to restore."""
    _tell(Fact("checkpoint_absent", sentence, data, WARNING if data["passed_over"] else INFO))


def _tell(fact: Fact) -> None:
    worker_telemetry.tell_facts()
    facts.publish(fact)
