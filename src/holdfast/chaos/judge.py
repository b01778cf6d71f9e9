"""What the workers of a run left behind, beside what an undisturbed run leaves. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

#: So far may two models be apart that were trained by another number of workers, in double precision.
TOLERANCE = 1e-9

MODEL = ("weights", "momentum")


def judge(results: Sequence[Mapping[str, Any]], expected: Mapping[str, Any] | None) -> list[str]:
    """Return what is wrong: all must have the same bits, and every sample as often as there were epochs.

    The model must also have the bits of the undisturbed run or, where the results say that steps were done by another
    number of workers, be as good as equal to it.
    """
    if not results:
        return ["no worker has left a result"]
    complaints = []
    first = results[0]
    for one in results:
        if any(one[part] != first[part] for part in MODEL):
            complaints.append(f"ranks {first['rank']} and {one['rank']} ended with different models")
        if expected is not None and (difference := _difference(one, expected)):
            complaints.append(f"rank {one['rank']} ended with another model than the undisturbed run{difference}")
        if len(set(one["used"])) != 1:
            wrong = {index: count for index, count in enumerate(one["used"]) if count != one["used"][0]}
            complaints.append(f"rank {one['rank']}: samples were not used equally often: {str(wrong)[:200]}")
        elif expected is not None and one["used"] != expected["used"]:
            complaints.append(f"rank {one['rank']}: every sample was used {one['used'][0]} times")
    return complaints


def is_same_size(result: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether every step was done by as many workers as in the undisturbed run, or that makes no difference."""
    return bool(result.get("sizes") == expected.get("sizes"))


def _difference(one: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Say how far two models are apart, empty if that is not too far."""
    if all(one[part] == expected[part] for part in MODEL):
        return ""
    if is_same_size(one, expected):
        return ", bit by bit"
    far = max(abs(a - b) for part in MODEL for a, b in zip(_numbers(one[part]), _numbers(expected[part]), strict=True))
    return "" if far <= TOLERANCE else f" by {far:.3g}"


def _numbers(text: str) -> tuple[float, ...]:
    data = bytes.fromhex(text)
    return struct.unpack(f"<{len(data) // 8}d", data)
