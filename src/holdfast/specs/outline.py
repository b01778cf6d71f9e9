"""Nested data as readable text, in the style of YAML. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,<-][A-Za-z0-9_./:=@%+, $(){}*<>-]*")


def outline(data: Any, indent: str = "") -> list[str]:
    """Write nested data in the manner of YAML."""
    lines: list[str] = []
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(value, Mapping | list | tuple) and value:
                lines += [f"{indent}{_scalar(key)}:", *outline(value, indent + "  ")]
            else:
                lines += [f"{indent}{_scalar(key)}: {_scalar(value)}"]
    elif isinstance(data, list | tuple):
        for value in data:
            if isinstance(value, Mapping | list | tuple) and value:
                first, *rest = outline(value, indent + "  ")
                lines += [f"{indent}- {first[len(indent) + 2 :]}", *rest]
            else:
                lines += [f"{indent}- {_scalar(value)}"]
    else:
        lines += [f"{indent}{_scalar(data)}"]
    return lines


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    text = str(value)
    if not text:
        return "''"
    looks_plain = _PLAIN.fullmatch(text) and ": " not in text and text == text.strip() and not text.endswith(":")
    if looks_plain and not re.fullmatch(r"-|-.*|[\d.eE+-]+|(?i:true|false|null|yes|no|on|off)", text):
        return text
    return json.dumps(text, ensure_ascii=False)
