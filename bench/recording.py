"""Records a worker's death and what follows, in a real terminal, as an animated SVG: docs/images/recording.svg.

python -m bench.recording            needs tmux
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.top import PATIENCE_S, pid_of, training

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "recording.svg"
COLUMNS, LINES = 88, 17
#: Lines of the upper shell; the lower one has what is left below a rule.
UPPER = 14
EVERY_S = 0.2
#: How long the last frame stays before the recording begins again.
HOLD_S = 6.0
CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.05, 18.0, 16.0
COLOURS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "2": "#8b949e"}

#: What the training of `bench.top` says of itself here, after each step.
TOLD = """\
        if run.rank == 0 and step.number % 20 == 0:
            off = abs(state.weights - [1, 2, 3, 4]).max()
            print(f"step {step.number:3}, {run.world_size} workers, error {off:.5f}", flush=True)
"""


class Terminal:
    """One shell under tmux."""

    def __init__(self, folder: str, lines: int) -> None:
        self._tmux = ["tmux", "-L", f"holdfast-{os.getpid()}-{lines}"]
        self._lines = lines
        beside = Path(sys.executable).parent
        path = f"{beside}:{os.environ['PATH']}"
        shell = f"env PS1='$ ' PATH={path} HOLDFAST_HOME={folder} bash --norc --noprofile"
        size = ["-x", str(COLUMNS), "-y", str(lines)]
        subprocess.run([*self._tmux, "-f", "/dev/null", "new-session", "-d", *size, "-c", folder, shell], check=True)
        subprocess.run([*self._tmux, "set", "status", "off"], check=True)

    def type(self, text: str) -> None:
        subprocess.run([*self._tmux, "send-keys", "-l", "--", text], check=True)

    def enter(self) -> None:
        subprocess.run([*self._tmux, "send-keys", "Enter"], check=True)

    def screen(self) -> list[str]:
        told = subprocess.run([*self._tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=True)
        return (told.stdout.rstrip("\n").split("\n") + [""] * self._lines)[: self._lines]

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False)


class Recorder:
    """Two shells, one above the other, and what they have shown."""

    def __init__(self, folder: str) -> None:
        self.frames: list[tuple[float, str]] = []
        self.upper, self.lower = Terminal(folder, UPPER), Terminal(folder, LINES - UPPER - 1)
        self._began = time.monotonic()

    def screen(self) -> str:
        """Return both screens as one."""
        return "\n".join([*self.upper.screen(), f"\x1b[2m{'─' * COLUMNS}\x1b[0m", *self.lower.screen()]).rstrip()

    def look(self, until: str, seconds: float = PATIENCE_S, *, times: int = 1) -> None:
        """Note every change of the screens until a text is there so many times, or for some seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            screen = self.screen()
            if not self.frames or self.frames[-1][1] != screen:
                self.frames.append((time.monotonic() - self._began, screen))
            if until and screen.count(until) >= times:
                return
            time.sleep(EVERY_S)
        if until:
            raise SystemExit(f"'{until}' did not come in time:\n{self.screen()}")

    def type(self, terminal: Terminal, command: str) -> None:
        """Type a command as a person would, and send it off."""
        for place in range(0, len(command), 6):
            terminal.type(command[place : place + 6])
            self.look("", 0.05)
        terminal.enter()

    def close(self) -> None:
        self.upper.close()
        self.lower.close()


def record() -> list[tuple[float, str]]:
    """Return the screens, each with the time at which it was first seen."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_HOME"] = folder
        (Path(folder) / "train.py").write_text(training(20, 0.04) + TOLD)
        recorder = Recorder(folder)
        try:
            recorder.look("$", times=2)  # both shells are ready
            recorder.frames.clear()
            recorder.type(recorder.upper, "holdfast launch --nproc-per-node 4 --max-restarts 3 train.py")
            recorder.look("step  20")
            recorder.type(recorder.lower, f"kill -9 {pid_of(2, '')}    # one of the four workers")
            recorder.look("goodput")
            recorder.look("", 1.0)
        finally:
            recorder.close()
    return recorder.frames


def draw(frames: list[tuple[float, str]]) -> str:
    """Return the recording as an SVG that begins again when it is over."""
    lasts = frames[-1][0] + HOLD_S
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, LINES * LINE_HEIGHT + 2 * MARGIN + 22
    rules, groups = [], []
    for number, (begins, screen) in enumerate(frames):
        ends = frames[number + 1][0] if number + 1 < len(frames) else lasts
        low, high = begins / lasts * 100, ends / lasts * 100
        before = f"0%,{max(low - 0.001, 0):.3f}%{{visibility:hidden}}" if number else ""
        after = f"{high:.3f}%,100%{{visibility:hidden}}" if ends < lasts else "100%{visibility:visible}"
        rules.append(
            f"@keyframes k{number}{{{before}{low:.3f}%,{max(high - 0.001, low):.3f}%{{visibility:visible}}{after}}}"
        )
        rules.append(f".f{number}{{animation:k{number} {lasts:.1f}s infinite step-end}}")
        still = ' class="f{0} still"' if number + 1 == len(frames) else ' class="f{0}"'
        groups.append(f"<g{still.format(number)}>{lines_of(screen)}</g>")
    style = "text{white-space:pre}g[class^=f]{visibility:hidden}" + "".join(rules)
    style += "@media (prefers-reduced-motion: reduce){g{animation:none!important}.still{visibility:visible!important}}"
    dots = "".join(
        f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="{c}"/>'
        for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    font = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
        f"<title>A worker is killed, replaced, and training goes on</title><style>{style}</style>"
        f'<rect width="100%" height="100%" rx="9" fill="#0d1117"/>{dots}'
        f'<g font-family="{font}" font-size="13.2" fill="#e6edf3" '
        f'xml:space="preserve">{"".join(groups)}</g></svg>\n'
    )


def lines_of(screen: str) -> str:
    found = []
    for row, line in enumerate(screen.split("\n")):
        if not line.strip():
            continue
        y = MARGIN + 22 + (row + 0.8) * LINE_HEIGHT
        found.append(
            f'<text x="{MARGIN}" y="{y:.1f}" textLength="{len(plain(line)) * CELL_WIDTH:.1f}">{coloured(line)}</text>'
        )
    return "".join(found)


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def coloured(line: str) -> str:
    parts, colour = [], ""
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if piece.startswith("\x1b["):
            codes = piece[2:-1].split(";")
            colour = next((COLOURS[code] for code in codes if code in COLOURS), "")
        elif piece:
            text = html.escape(piece)
            parts.append(f'<tspan fill="{colour}">{text}</tspan>' if colour else text)
    return "".join(parts)


def main() -> None:
    PICTURE.write_text(draw(record()))
    print(f"wrote {PICTURE} ({PICTURE.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
