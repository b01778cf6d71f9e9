"""A node in a process of its own: takes commands on stdin, tells what it learns as JSON lines on stdout.

ask | give_up SENTENCE | finish | leave REASON | close | status
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from holdfast.coordinator.messages import Cause
from holdfast.rendezvous import RendezvousParameters
from holdfast.rendezvous.machine import AskFailed, MemberEffect, NewcomersWait, RoundBroken, RoundSealed, RunEnded
from holdfast.rendezvous.native import HoldfastRendezvousHandler

_lock = threading.Lock()


def tell(what: str, **data: Any) -> None:
    with _lock:
        print(json.dumps({"what": what, **data}), flush=True)


def on_effect(effect: MemberEffect) -> None:
    match effect:
        case RoundSealed(place):
            tell(
                "sealed",
                round=place.round.number,
                rank=place.group_rank,
                size=place.group_world_size,
                first_rank=place.first_rank,
                world_size=place.world_size,
                master=[place.master_addr, place.master_port],
            )
        case RoundBroken():
            tell("broken", round=effect.place.round.number, reason=effect.reason)
        case RunEnded():
            tell("ended", reason=effect.reason, failed=effect.failed, rejected=effect.rejected)
        case AskFailed():
            tell("ask_failed", reason=effect.reason)
        case NewcomersWait():
            tell("newcomers", count=effect.nodes_waiting)
        case _:
            pass


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    handler = HoldfastRendezvousHandler(RendezvousParameters(**options))
    handler.listen(on_effect)
    tell("up", endpoint=str(handler.endpoint))
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        match command:
            case "ask":
                handler.ask(Cause(rest) if rest else None)
            case "give_up":
                handler.give_up(Cause(rest))
            case "finish":
                handler.finish()
            case "leave":
                handler.leave(rest)
                tell("left")
            case "close":
                handler.set_closed()
            case "status":
                tell("status", sentence=handler.sentence(), host=handler.is_host, waiting=handler.num_nodes_waiting())


main()
