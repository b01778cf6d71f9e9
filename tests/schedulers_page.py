"""Writes the table of docs/SCHEDULERS.md: what each scheduler was seen to do, from the results of the contract suites.

HOLDFAST_TEST_CLUSTERS=1 python -m pytest tests/schedulers -k contract --junitxml contract.xml
python tests/schedulers_page.py contract.xml

Several files may be given, as Ray has an environment of its own. What none of them says anything of stays as it was.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "SCHEDULERS.md"
BEGIN, END = "<!-- made by tests/schedulers_page.py -->\n", "<!-- end -->\n"
SCHEDULERS = ("local", "slurm", "ssh", "docker", "podman", "kubernetes", "ray")
MARKS = {"passed": "yes", "cannot": "no", "skipped": "not run", "failed": "NO"}


def results(text: str) -> dict[str, dict[str, str]]:
    """Return what became of each case on each scheduler."""
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        match = re.fullmatch(r"test_contract\[(.+)\]", case.get("name", ""))
        if match is None or "contract" not in case.get("classname", ""):
            continue
        words = match[1].split("-")
        module = case.get("classname", "").split(".")[-2]
        scheduler = module if module in SCHEDULERS else next((word for word in words if word in SCHEDULERS), "")
        name = next(word for word in words if "_" in word)
        outcome = "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"
        if (skipped := case.find("skipped")) is not None:
            outcome = "cannot" if skipped.get("message", "").startswith("cannot") else "skipped"
        if scheduler:
            found.setdefault(name, {})[scheduler] = outcome
    return found


def table(found: dict[str, dict[str, str]], before: dict[str, dict[str, str]]) -> str:
    """Return the table; a mark that is not found is that of the table before."""
    lines = [f"| | {' | '.join(SCHEDULERS)} |", f"|---|{'---|' * len(SCHEDULERS)}"]
    for name in {**before, **found}:
        known = {each: MARKS[outcome] for each, outcome in found.get(name, {}).items() if outcome != "skipped"}
        marks = [known.get(each) or before.get(name, {}).get(each, MARKS["skipped"]) for each in SCHEDULERS]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def read_table(text: str) -> dict[str, dict[str, str]]:
    """Return the marks of a table."""
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return {row[0].replace(" ", "_"): dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def main() -> None:
    """Put the table in place."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    found: dict[str, dict[str, str]] = {}
    for path in sys.argv[1:]:
        for name, outcomes in results(Path(path).read_text()).items():
            found.setdefault(name, {}).update(outcomes)
    PAGE.write_text(f"{head}{BEGIN}{table(found, read_table(old))}{END}{tail}")


if __name__ == "__main__":
    main()
