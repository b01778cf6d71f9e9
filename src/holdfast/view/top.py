"""The screen of `holdfast top`: lines that fit a terminal, from where runs stand. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from holdfast.events.account import Phase
from holdfast.events.summary import losses_by_cause, percent, phase_name, short_cause, without_asides
from holdfast.printable import printable
from holdfast.quantities import count, length, size
from holdfast.view.state import RunState

#: Lines of the table of runs, where there are several; the rest of the screen is for the chosen one.
RUNS_SHOWN_MAX = 8
CAUSES_SHOWN_MAX, EVENTS_SHOWN_MIN = 3, 3
BAR_WIDTH = 40
#: How long back the speed of a rank is measured.
RATE_WINDOW_S = 10.0

#: The style of each phase, and its mark where colours are not shown.
PHASES = {
    Phase.STEPPING: ("green", "="),
    Phase.STARTING: ("blue", "s"),
    Phase.WAITING: ("yellow", "w"),
    Phase.REDONE: ("magenta", "r"),
    Phase.IDLE: ("dim", "."),
}
_OUTCOMES = {"running": "green", "succeeded": "green", "failed": "red", "gone": "red", "signalled": "yellow"}

#: A line in pieces, each with its style.
Line = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One rank at a moment; None for what is not known."""

    rank: int
    host: str
    pid: int
    step: int | None = None
    rate: float | None = None
    silent_s: float | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    gpu_percent: float | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One run at a moment, with its ranks."""

    state: RunState
    rows: Sequence[Row] = ()


@dataclass(slots=True)
class Rates:
    """How fast ranks make steps, over the last seconds."""

    _seen: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def take(self, now: float, steps: Mapping[int, int]) -> dict[int, float]:
        """Take how many steps each rank has made, and return the steps per second of each that is known."""
        found = {}
        self._seen = {rank: self._seen.get(rank, []) for rank in steps}
        for rank, made in steps.items():
            seen = [each for each in self._seen[rank] if each[0] >= now - RATE_WINDOW_S and each[1] <= made]
            self._seen[rank] = [*seen, (now, made)]
            if seen and now > seen[0][0]:
                found[rank] = (made - seen[0][1]) / (now - seen[0][0])
        return found


def render(
    runs: Sequence[Seen], chosen: int, now: float, clock: Callable[[float], str], width: int, height: int
) -> list[Line]:
    """Return the lines of the screen: the runs, where there are several, and the chosen one in full."""
    live = sum(seen.state.is_live for seen in runs)
    head = f"holdfast top  {clock(now)}  {count(live, 'live run')}, {len(runs) - live} ended"
    keys = "up/down choose, q quits" if len(runs) > 1 else "q quits"
    lines: list[Line] = [[(head, "bold"), (keys.rjust(width - len(head)), "dim")]]
    if not runs:
        return [*lines, [], [("No run has left a journal on this host yet.", "")]]
    if len(runs) > 1:
        lines += [[], *_table(runs, chosen, width)]
    lines += [[], *_detail(runs[chosen], clock, width, height - len(lines) - 1)]
    return [_cut(line, width) for line in lines[:height]]


def as_line(seen: Seen, now: float, clock: Callable[[float], str]) -> str:
    """Return one run as one line, for where there is no terminal."""
    state = seen.state
    steps = [row.step for row in seen.rows if row.step is not None]
    so_far = f"{'for' if state.is_live else 'after'} {length(state.end - state.begin)}"
    parts = [
        f"{clock(now)} {state.run}: {state.outcome} {so_far}",
        f"round {state.round}",
        count(state.world_size, "worker"),
        f"step {max(steps)}" if steps else "",
        _rate(seen.rows),
        f"goodput {percent(state.account)}" if percent(state.account) else "",
        f"{length(state.account.lost_s)} lost",
        count(state.restarts_used, "restart"),
        state.waiting,
    ]
    return printable(", ".join(filter(None, parts)))


def _rate(rows: Sequence[Row]) -> str:
    rates = [row.rate for row in rows if row.rate is not None]
    return f"{median(rates):.3g} steps/s" if rates else ""


# -- the table of runs -------------------------------------------------------------------------------------------------


def _table(runs: Sequence[Seen], chosen: int, width: int) -> list[Line]:
    first = max(0, min(chosen - RUNS_SHOWN_MAX + 1, len(runs) - RUNS_SHOWN_MAX))
    shown = list(enumerate(runs))[first : first + RUNS_SHOWN_MAX]
    name_width = min(max(len(seen.state.run) for _, seen in shown), max(width - 58, 12))
    lines: list[Line] = [
        [(f"  {'RUN':<{name_width}}  OUTCOME    FOR           GOODPUT  WORKERS  RESTARTS", "dim")],
    ]
    for number, seen in shown:
        state = seen.state
        name = printable(state.run)[:name_width]
        rest = (
            f"{length(state.end - state.begin):<14}{percent(state.account) or '-':<9}"
            f"{state.world_size:<9}{state.restarts_used}"
        )
        mark, style = (">", "bold") if number == chosen else (" ", "")
        lines.append(
            [(f"{mark} {name:<{name_width}}  ", style), (f"{state.outcome:<11}", _OUTCOMES[state.outcome]), (rest, "")]
        )
    if len(runs) > len(shown):
        lines.append([(f"  and {len(runs) - len(shown)} more", "dim")])
    return lines


# -- one run -----------------------------------------------------------------------------------------------------------


def _detail(seen: Seen, clock: Callable[[float], str], width: int, height: int) -> list[Line]:
    state, account = seen.state, seen.state.account
    left = "" if state.restarts_left is None else f", {state.restarts_left} left"
    facts = (
        f" {length(state.end - state.begin)}, round {state.round}, {count(state.nodes, 'node')}, "
        f"{count(state.world_size, 'worker')}, {count(state.restarts_used, 'restart')}{left}"
    )
    lines: list[Line] = [
        [(f"{printable(state.run)} ", "bold"), (state.outcome, _OUTCOMES[state.outcome]), (facts, "")],
        _goodput(seen, width),
    ]
    if account.spans:
        lines.append(_split(seen))
    for cause, seconds in losses_by_cause(account)[:CAUSES_SHOWN_MAX]:
        lines.append([(f"  {length(seconds):>10} lost to {printable(short_cause(cause))}", "")])
    if state.waiting:
        lines.append([(f"  waiting: {printable(state.waiting)}", "yellow")])
    if state.outcome == "failed":
        lines.append([(f"  {printable(state.reason)}", "red")])
    if not state.is_live:
        more = f"  over; more: holdfast runs {state.run}, holdfast events {state.run}"
        lines.append([(printable(more), "dim")])
    room = height - len(lines)
    ranks = _ranks(seen.rows, max(room - EVENTS_SHOWN_MIN - 2, 3)) if seen.rows else []
    events = [_event(told.entry.level, told.entry.sentence, clock(told.entry.time)) for told in state.notable]
    shown = events[-(room - len(ranks) - 1) :] if room - len(ranks) > 1 else []
    return [*lines, *ranks, *([[], *shown] if shown else [])]


def _goodput(seen: Seen, width: int) -> Line:
    account = seen.state.account
    share = percent(account)
    words = f"  goodput {share}" if share else "  goodput unknown: no holdfast.heartbeat(step) yet"
    lost = f"  {length(account.lost_s)} lost"
    steps = f", {account.steps} steps" if account.measured else ""
    speed = f", {_rate(seen.rows)}" if _rate(seen.rows) else ""
    line: Line = [(f"{words}{lost}{steps}{speed}  ", "")]
    room = min(BAR_WIDTH, width - len(line[0][0]) - 2)
    return [*line, *_bar(seen, room)] if room >= 10 else line


def _bar(seen: Seen, width: int) -> Line:
    """Draw the phases as parts of a bar; whatever has a share has a mark."""
    account = seen.state.account
    total = account.total_s
    if total <= 0:
        return []
    cells = {phase: round(account.seconds[phase] / total * width) for phase in PHASES}
    cells = {phase: max(cells[phase], 1) if account.seconds[phase] > 0.01 * total else cells[phase] for phase in PHASES}
    while sum(cells.values()) > width:
        cells[max(cells, key=lambda phase: cells[phase])] -= 1
    return [("[", "dim"), *((PHASES[phase][1] * cells[phase], PHASES[phase][0]) for phase in PHASES), ("]", "dim")]


def _split(seen: Seen) -> Line:
    account = seen.state.account
    pieces: Line = [("  ", "")]
    for phase, (style, mark) in PHASES.items():
        if account.seconds[phase] >= 0.05:
            pieces += [(mark, style), (f" {phase_name(account, phase)} {length(account.seconds[phase])}  ", "")]
    return pieces


def _ranks(rows: Sequence[Row], room: int) -> list[Line]:
    """Return the table of ranks; where there is no room for all, those that moved least lately come first."""
    has_gpus = any(row.gpu_bytes is not None for row in rows)
    head = f"  {'RANK':>5} {'HOST':<12} {'PID':>8} {'STEP':>9} {'STEPS/S':>8} {'LAST':>7} {'CPU':>6} {'MEMORY':>8}"
    lines: list[Line] = [[], [(head + (f" {'GPU':>5} {'GPU MEM':>8}" if has_gpus else ""), "dim")]]
    shown = list(rows)
    if len(rows) > room:
        shown = sorted(sorted(rows, key=lambda row: -(row.silent_s or 0.0))[: room - 1], key=lambda row: row.rank)
    for row in shown:
        cells = (
            f"  {row.rank:>5} {printable(row.host)[:12]:<12} {row.pid:>8} {_cell(row.step):>9} "
            f"{_cell(row.rate, '.3g'):>8} {_seconds(row.silent_s):>7} {_cell(row.cpu_percent, '.0f', '%'):>6} "
            f"{'-' if row.rss_bytes is None else size(row.rss_bytes):>8}"
        )
        if has_gpus:
            held = "-" if row.gpu_bytes is None else size(row.gpu_bytes)
            cells += f" {_cell(row.gpu_percent, '.0f', '%'):>5} {held:>8}"
        lines.append([(cells, "")])
    if len(shown) < len(rows):
        lines.append([(f"  and {len(rows) - len(shown)} more ranks, which moved later than these", "dim")])
    return lines


def _event(level: str, sentence: str, when: str) -> Line:
    style = {"warning": "yellow", "error": "red"}.get(level, "")
    return [(f"  {when} ", "dim"), (printable(without_asides(sentence.split("\n")[0])), style)]


def _cell(value: float | None, form: str = "", unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}s" if value < 100 else length(value).replace(" ", "")


def _cut(line: Line, width: int) -> Line:
    """Cut a line at the screen's edge."""
    found: Line = []
    for text, style in line:
        room = width - sum(len(piece) for piece, _ in found)
        if room <= 0:
            break
        found.append((text if len(text) <= room else text[: room - 1] + "…", style))
    return found
