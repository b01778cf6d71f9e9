"""A node in a process of its own: takes commands on stdin, tells what it learns as JSON lines on stdout.

ask | stay (ask, and again whenever a round breaks) | give_up SENTENCE | finish | leave REASON | close | status
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from holdfast.coordinator.messages import Cause
from holdfast.facts import WARNING, Fact, facts
from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler
from holdfast.rendezvous.machine import AskFailed, MemberEffect, NewcomersWait, RoundBroken, RoundSealed, RunEnded
from holdfast.rendezvous.native import HoldfastRendezvousHandler

_lock = threading.Lock()
#: Not empty once this node is to ask again by itself.
stays: list[bool] = []


def tell(what: str, **data: Any) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"what": what, **data}) + "\n")  # in one piece: several threads tell
        sys.stdout.flush()


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


def on_fact(fact: Fact) -> None:
    if fact.level >= WARNING:
        tell("warned", kind=fact.kind, sentence=fact.sentence)


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    facts.listen(on_fact)
    handler = get_rendezvous_handler(RendezvousParameters(**options))
    assert isinstance(handler, HoldfastRendezvousHandler)
    handler.listen(on_effect)
    handler.listen(lambda effect: handler.ask() if stays and isinstance(effect, RoundBroken) else None)
    tell("up", endpoint=str(handler.endpoint))
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        match command:
            case "ask":
                handler.ask(Cause(rest) if rest else None)
            case "stay":
                stays.append(True)
                handler.ask()
            case "give_up":
                handler.fail(Cause(rest))
            case "finish":
                handler.finish()
            case "leave":
                handler.leave(rest)
                tell("left")
            case "close":
                handler.set_closed()
            case "status":
                tell(
                    "status",
                    sentence=handler.sentence(),
                    host=handler.is_host,
                    waiting=handler.num_nodes_waiting(),
                    endpoint=str(handler.endpoint),
                )


main()
