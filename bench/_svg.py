"""A few shapes as SVG, on a card of their own colour, so that a picture reads the same on a light and on a dark page.

The same calls give the same text, to the byte: pictures are kept under version control and compared.
"""

from __future__ import annotations

from html import escape

PAPER, FRAME, INK, QUIET, RULE = "#fdfcf9", "#dcd8ce", "#22303a", "#66727b", "#e7e4dc"
OURS, THEIRS, ALARM = "#0e7c7b", "#b9b3a6", "#c8382f"
#: One for each round, around the circle; neighbours are told apart without colour vision by their lightness.
ROUNDS = ("#0e7c7b", "#5aa9e6", "#3d5a98", "#e0a030", "#7a5195", "#8aa53f")

FONT = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
#: How wide a letter is, in sizes of its font: on the safe side for the fonts above.
LETTER = 0.56


class Picture:
    """A card of a given size that shapes are put on, in the order in which they lie on each other."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" '
            f'width="{_n(width)}" height="{_n(height)}" font-family="{FONT}" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="7" height="7" fill="{PAPER}"/>'
            f'<rect width="3.4" height="7" fill="{THEIRS}"/></pattern></defs>',
        ]
        self.box(0.5, 0.5, width - 1, height - 1, PAPER, radius=10, stroke=FRAME)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        radius: float = 0,
        stroke: str = "",
        opacity: float = 1,
        tip: str = "",
    ) -> None:
        """A rectangle; `tip` is what a browser shows when the picture is opened alone and pointed at."""
        more = (f' rx="{_n(radius)}"' if radius else "") + (f' stroke="{stroke}"' if stroke else "")
        more += f' opacity="{_n(opacity)}"' if opacity != 1 else ""
        inside = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" fill="{fill}"{more}{inside}'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        fill: str = INK,
        bold: bool = False,
        anchor: str = "start",
        clear: bool = False,
    ) -> None:
        """Words on a baseline, `clear` of the lines below it; `anchor` is start, middle or end."""
        more = f' stroke="{PAPER}" stroke-width="3" paint-order="stroke"' if clear else ""
        more += (' font-weight="600"' if bold else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{fill}"{more}>{escape(words)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1, dashes: str = ""
    ) -> None:
        """A straight line."""
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" stroke="{stroke}" '
            f'stroke-width="{_n(width)}"{more}/>'
        )

    def cross(self, x: float, y: float, arm: float = 6) -> None:
        """A kill."""
        for stroke, width in ((PAPER, 6), (ALARM, 3)):
            for way in (arm, -arm):
                self.line(x - arm, y - way, x + arm, y + way, stroke, width=width)

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def width_of(words: str, size: float = 13) -> float:
    """Say how wide some words are at most, roughly."""
    return len(words) * size * LETTER


def ticks(end: float, wanted: int = 6) -> list[float]:
    """Return round numbers from 0 to the end, about as many as wanted."""
    step = 10.0**-6
    factors = (2.0, 2.5, 2.0)
    turn = 0
    while end / step > wanted:
        step *= factors[turn % 3]
        turn += 1
    return [round(number * step, 9) for number in range(int(end / step + 1e-9) + 1)]


def _n(value: float) -> str:
    """A coordinate: a tenth of a point is finer than anybody sees."""
    return f"{value:.1f}".removesuffix(".0")
