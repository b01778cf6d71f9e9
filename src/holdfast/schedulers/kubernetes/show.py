"""Objects as YAML, as people write it for kubectl. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.schedulers.kubernetes.render import KubernetesRequest
from holdfast.schedulers.local.render import show_parts

#: Texts that YAML would take for something else.
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n", "~"})
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")


def to_yaml(value: Any) -> str:
    """Write one object."""
    return "\n".join(_lines(value)) + "\n"


def show(request: KubernetesRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Write a request out for people."""
    secrets = [f"# Secret {request.name}: the app with its environment, and the run's secret"]
    secrets += [f"# Secrets {request.name}-code-N: the code that is shipped"] if request.job.shipments else []
    parts = [f"# {line.strip()}" for each in show_parts(request.job, sizes) for line in each.splitlines()]
    head = f"# job {request.job.app_id}"
    return "---\n".join(["\n".join([head, *secrets, ""]), *(to_yaml(each) for each in request.objects)]) + "\n".join(
        ["# what each pod runs:", *parts]
    )


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        found: list[str] = []
        for key, each in value.items():
            if _is_deep(each):
                indent = "" if isinstance(each, list) else "  "
                found += [f"{_scalar(key)}:", *(f"{indent}{line}" for line in _lines(each))]
            else:
                found.append(f"{_scalar(key)}: {_scalar(each)}")
        return found
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        found = []
        for each in value:
            first, *others = _lines(each) if _is_deep(each) else [_scalar(each)]
            found += [f"- {first}", *(f"  {line}" for line in others)]
        return found
    return [_scalar(value)]


def _is_deep(value: Any) -> bool:
    return isinstance(value, Mapping | list) and bool(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
