"""What the documentation site shows beside the files in docs/: the README as its first page, and every command's help.

A hook of mkdocs; see mkdocs.yml. `make docs` builds the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: Notes for people who would edit a page that is made.
_WRITTEN_BY = re.compile(
    r"^(Written by `tests/[^`]*` from .*?out of date\.( |\n\n)|`python -m [^`]*` writes this page.*?\n\n)", re.M | re.S
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    for name, text in (("index.md", index()), ("commands.md", commands()), ("CHANGELOG.md", changelog())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links out of docs/ lead to pages of the site, or be plain text; leave out which script writes a page."""
    markdown = _WRITTEN_BY.sub("", markdown, count=1)
    markdown = markdown.replace("](../CHANGELOG.md)", "](CHANGELOG.md)")
    markdown = re.sub(r"\]\(\.\./\.\./README\.md(#[\w-]+)?\)", r"](../index.md\1)", markdown)
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:examples|CONTRIBUTING\.md|src|bench|tests)[^)]*\)", r"\1", markdown)


def index() -> str:
    """Return the README with links as the site has them."""
    text = (ROOT / "README.md").read_text()
    return text.replace("](docs/", "](")


def changelog() -> str:
    """Return what changed."""
    return (ROOT / "CHANGELOG.md").read_text()


def commands() -> str:
    """Return the help of every command, as it prints it."""
    from holdfast.cli import cli
    from holdfast.cli.manual import every_command

    parts = ["# Commands\n\nMade from the commands themselves: the same words as `--help` and `holdfast man`.\n"]
    for name, command, context in every_command(cli, "holdfast"):
        context.terminal_width = context.max_content_width = 78
        parts.append(f"## {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)
