"""Writes docs/OPTIONS.md from the table of flags.

python tests/launcher/options_page.py
"""

from __future__ import annotations

from pathlib import Path

from holdfast.launcher.options import OPTIONS, Group, Option

PAGE = Path(__file__).parent.parent.parent / "docs" / "OPTIONS.md"

HEAD = """\
# Flags of a launch

Written by `tests/launcher/options_page.py` from `holdfast.launcher.options`; a test says when it is out of date.

Each flag works in four places, with dashes or underscores:

| where | how |
|---|---|
| `holdfast launch` | `holdfast launch --max-restarts 3 train.py`; write all flags before the script |
| `holdfast run` with a script | `holdfast run -j 1x2 --max-restarts 3 train.py`; only flags with a mark under *job* |
| a component of `dist` | `holdfast run dist.ddp --max_restarts 3 --script train.py`, or `max_restarts=3` in a call |
| a settings file | `max_restarts = 3` under `[cli.launch]`, `[cli.run]` or `[component."dist.ddp"]` |

The command line wins over the variable, the variable over the settings file, and that over the default. You can
abbreviate a flag if only one fits (`--nproc 2`); torchrun's flags come first. Write times as `30s`, `5m`, `1h`, or as a
number of seconds, and sizes as `64K`, `10M`, `2G`.

*t* marks torchrun's own flags.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_section(group) for group in Group)


def _section(group: Group) -> str:
    rows = "\n".join(_row(option) for option in OPTIONS.values() if option.group is group)
    return f"\n## {group.value}\n\n| flag | | job | default | variable | |\n|---|---|---|---|---|---|\n{rows}\n"


def _row(option: Option) -> str:
    flag = ", ".join(f"`{each}`" for each in (option.short, option.flag) if each)
    default = option.otherwise or (f"`{option.shown_default}`" if option.shown_default else "")
    variable = f"`{option.variable}`" if option.variable else ""
    marks = ("t" if option.torchrun else "", "" if option.not_in_jobs else "✓")
    values = f" One of {', '.join(option.values)}." if option.values else ""
    cells = (flag, *marks, default, variable, f"{option.help}{values}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
