"""Manual pages, made from the commands themselves: the same words as --help. Pure but for what a command prints."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

SECTION = "1"
_PARAGRAPHS = re.compile(r"\n\s*\n")


def every_command(root: click.Command, name: str) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield each command with its full name, `holdfast secret new`, and a context to ask it with."""
    context = click.Context(root, info_name=name)
    yield name, root, context
    yield from _below(root, context, name)


def _below(
    command: click.Command, context: click.Context, name: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        return
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        if found is not None:
            inner = click.Context(found, info_name=each, parent=context)
            yield f"{name} {each}", found, inner
            yield from _below(found, inner, f"{name} {each}")


def file_name(name: str) -> str:
    """Return the name of a command's page: `holdfast-secret-new.1`."""
    return f"{name.replace(' ', '-')}.{SECTION}"


def page(name: str, command: click.Command, context: click.Context, version: str) -> str:
    """Return the manual page of a command, as man(1) reads it."""
    paragraphs = _PARAGRAPHS.split((command.help or "").strip())
    first, *rest = paragraphs
    usage = command.collect_usage_pieces(context)
    lines = [
        f'.TH {_quoted(name.replace(" ", "-").upper())} {SECTION} "" {_quoted(f"holdfast {version}")} "Holdfast"',
        ".SH NAME",
        f"{_text(name.replace(' ', '-'))} \\- {_text(_joined(first).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(name)}",
        _text(" ".join(usage)),
    ]
    examples = [each for each in rest if each.lstrip().startswith("\b")]
    description = [each for each in rest if each not in examples]
    if description:
        lines += [".SH DESCRIPTION", *(line for each in description for line in (".PP", _text(_joined(each))))]
    lines += _options(command, context)
    if isinstance(command, click.Group):
        lines += _commands(command, context, name)
    if examples:
        lines += [".SH EXAMPLES", *(line for each in examples for line in _example(each))]
    return "\n".join(lines) + "\n"


def _options(command: click.Command, context: click.Context) -> list[str]:
    records = [param.get_help_record(context) for param in command.get_params(context)]
    lines = [".SH OPTIONS"]
    for record in records:
        if record is not None:
            lines += [".TP", f".B {_text(record[0])}", _text(_joined(record[1]))]
    return lines


def _commands(group: click.Group, context: click.Context, name: str) -> list[str]:
    lines = [".SH COMMANDS"]
    for each in group.list_commands(context):
        found = group.get_command(context, each)
        if found is not None:
            lines += [".TP", f".B {_text(f'{name} {each}'.replace(' ', '-'))}({SECTION})"]
            lines.append(_text(found.get_short_help_str(limit=200)))
    return lines


def _example(paragraph: str) -> list[str]:
    shown = [line for line in paragraph.replace("\b", "").split("\n") if line.strip()]
    return [".nf", *(_text(line.strip()) for line in shown), ".fi"]


def _joined(text: str) -> str:
    return " ".join(text.split())


def _text(text: str) -> str:
    """Write text so that roff takes none of it as a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "'") + '"'
