"""What the documents show works as it stands, and what they link to exists.

A page is a story, told in one folder from top to bottom:

- a `python` block is run, and prints what the comments behind its `print`s promise;
- a block of any language whose first line is a comment with a file's name is saved under that name;
- a `console` block has its commands (`$ ...`) run, and each prints what stands below it. `...` stands for anything
  within a line, and alone on a line for any lines;
- `localhost:29400` and other ports that begin with 29 stand for free ports of this machine.

Blocks without a language are for the eye only. A page that needs a package which is not installed is skipped.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.variables import all_names
from tests import variables_page
from tests.processes import free_port

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TIMEOUT_S = 240
#: What some pages import, and not every environment has.
OPTIONAL = ("fsspec", "lightning", "numpy", "torch")
#: Lines that a fast machine does not show.
ONLY_WHERE_SLOW = re.compile(r"^.*holdfast: importing .*; workers start when that is done\n", re.MULTILINE)
#: Before the end of a job, this line comes only where the end takes long.
STOPPING = re.compile(r"^.*holdfast: stopping workers: .*\n", re.MULTILINE)
#: What would make a command behave otherwise than in a fresh shell.
NOT_OURS = (
    "PYTHONUNBUFFERED",
    "HOLDFAST_",
    "PET_",
    "TORCHELASTIC_",
    "TORCHX",
    "PYTEST_",
    "LOGLEVEL",
    "NO_COLOR",
    "COLUMNS",
)


class Block(NamedTuple):
    """One fenced block."""

    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """The name in its first line, if that is a comment with one."""
        named = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        return named[1] if named else None

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield each command, with its lines joined, and what it is to print."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, expected = re.sub(r"\\\n\s*", "", part).partition("\n")
            yield command, expected


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)]


class Reader:
    """Does what a page says, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()
        self._ports: dict[str, int] = {}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        self.env |= {
            "HOME": str(folder / "home"),
            "HOLDFAST_HOME": str(folder / "home" / "state"),
            "TMPDIR": str(folder / "tmp"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    def follow(self, block: Block) -> None:
        block = block._replace(text=re.sub(r"(?<=localhost:)29\d{3}\b", self._free_port, block.text))
        if block.file_name is not None:
            (self.folder / block.file_name).write_text(block.text)
        elif block.language == "python":
            self._run_python(block.text)
        elif block.language == "console":
            for command, expected in block.commands():
                self._run_command(command, expected)

    def _free_port(self, shown: re.Match[str]) -> str:
        """Return the port that stands for the one in a page; the same one throughout the page."""
        if shown[0] not in self._ports:
            self._ports[shown[0]] = free_port()
        return str(self._ports[shown[0]])

    def _run_python(self, code: str) -> None:
        (self.folder / "example.py").write_text(code)
        done = self._run([sys.executable, "example.py"], subprocess.PIPE)

        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", code)

    def _run_command(self, command: str, expected: str) -> None:
        if command == "pip install --editable .":
            self._install()
            return
        done = self._run(["sh", "-c", command], subprocess.STDOUT)
        said = ONLY_WHERE_SLOW.sub("", done.stdout)

        matches = [re.fullmatch(_pattern(expected), each) for each in (said, STOPPING.sub("", said))]
        assert any(matches), f"$ {command}\n{done.stdout}"

    def _install(self) -> None:
        """Do what pip would: put the folder on Python's path, with the entry points of its pyproject.toml."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        info = self.folder / f"{project['name'].replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        groups = project["entry-points"].items()
        lines = [
            line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.folder), self.env.get("PYTHONPATH")]))

    def _run(self, argv: list[str], stderr: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=self.folder,
            env=self.env,
            check=False,
            timeout=TIMEOUT_S,
        )


def _pattern(expected: str) -> str:
    """Turn what a page shows into a pattern."""
    lines = [r"(?:.*\n)*" if line.strip() == "..." else re.escape(line) + r"\n" for line in expected.splitlines()]
    return "".join(lines).replace(r"\.\.\.", ".*")


@pytest.mark.timeout(600)  # a page is many commands, one after the other
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    blocks = blocks_of(page)
    for package in OPTIONAL:
        if any(re.search(rf"^ *(import|from) (holdfast\.)?{package}\b", block.text, re.MULTILINE) for block in blocks):
            pytest.importorskip(package)

    for block in blocks:
        reader.follow(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors_of(linked), f"{page.name} links to {target}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r'<a (?:id|name)="([^"]+)"', text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(named)


#: A row of the comparison in the README, the row of docs/BENCHMARKS.md that it comes from, and pairs of cells: one of
#: each that say the same.
COMPARED = [
    ("a plain torch script, one of 2 workers killed", "one of 2 workers killed, warm", [(1, 1), (2, 2)]),
    ("a node lost: until", "a node lost, another carries the coordinator", [(1, 1), (2, 2)]),
    ("the coordinator's node lost", "a node lost, it carried the coordinator", [(1, 1)]),
    ("training in process", "one of two killed: survivor's stall", [(1, 1)]),
    ("training in process", "... beside torchft tuned to 0.4 s", [(3, 2)]),
    ("an agent killed", "an agent killed: processes left behind", [(1, 1), (2, 2)]),
]


@pytest.mark.parametrize(("ours", "theirs", "cells"), COMPARED)
def test_the_comparison_in_the_readme_has_the_figures_of_the_benchmarks(
    ours: str, theirs: str, cells: list[tuple[int, int]]
) -> None:
    said, measured = row_of("README.md", ours), row_of("docs/BENCHMARKS.md", theirs)
    for here, there in cells:
        figure = said[here].split()[0]
        decimals = len(figure.partition(".")[2])
        assert figure == f"{float(measured[there].split()[0]):.{decimals}f}", f"{said[0]}: {measured[there]}"


def row_of(page: str, begin: str) -> list[str]:
    """Return the cells of the first row of a page's tables whose first cell begins so."""
    rows = (line.strip("|").split("|") for line in (ROOT / page).read_text().splitlines() if line.startswith("|"))
    cells = ([cell.strip().replace("&nbsp;", "") for cell in row] for row in rows)
    return next(row for row in cells if row[0].startswith(begin))


def test_every_how_to_is_found_from_the_readme_and_shows_something() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in ROOT.glob("docs/howto/*.md"):
        assert f"docs/howto/{page.name}" in readme, f"{page.name} is not in README.md"
        assert any(block.language in ("python", "console") for block in blocks_of(page)), f"{page.name} shows nothing"


def test_every_variable_of_ours_is_explained() -> None:
    named = re.compile(r"\"(HOLDFAST_[A-Z0-9_]*[A-Z0-9])\"")
    table = SOURCE / "variables.py"
    used = {name for path in SOURCE.rglob("*.py") if path != table for name in named.findall(path.read_text())}
    ours = {name for name in all_names() if name.startswith("HOLDFAST_")}

    assert used == ours


def test_the_page_of_variables_is_up_to_date() -> None:
    assert variables_page.page() == variables_page.PAGE.read_text(), "run: python tests/variables_page.py"


def test_every_variable_of_torchruns_is_explained() -> None:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        pytest.skip("torch is not installed")
    there = Path(found.origin).parent / "distributed"
    sources = [there / "run.py", *(there / "launcher").rglob("*.py"), *(there / "elastic").rglob("*.py")]
    named = re.compile(
        r"\"((?:TORCH|TORCHELASTIC)_[A-Z0-9_]*[A-Z0-9]|PYTHON_EXEC|USE_LIBUV|LOGLEVEL|OMP_NUM_THREADS)\""
    )
    used = {name for path in sources for name in named.findall(path.read_text())}
    text = "".join((ROOT / "docs" / name).read_text() for name in ("VARIABLES.md", "howto/from-torchrun.md"))

    assert "TORCHELASTIC_RUN_ID" in used
    assert sorted(name for name in used if f"`{name}`" not in text) == []


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}

    assert listed - pages == {"index.md", "commands.md", "CHANGELOG.md"}  # which tests/docs_site.py makes
    assert pages <= listed
