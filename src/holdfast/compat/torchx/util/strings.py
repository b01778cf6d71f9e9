"""Names that every cluster takes."""

from __future__ import annotations

import re


def normalize_str(data: str) -> str:
    """Keep small letters, digits and dashes, and no dash in front; large letters become small."""
    return re.sub(r"[^a-z0-9-]", "", data.removeprefix("-").lower())
