"""The simulator: the production machines under virtual time and seeded faults, with checkers that watch every event.

    seed ──scenario──▶ run, nodes, weather, faults        shrink: which of these does the failure need?
                            │
       faults ──▶ nodes ⇄ network ⇄ coordinator (+ disk)   the real MemberMachine, the real CoordinatorMachine
                            │         │
                         liveness   safety                 what must come about, what must never happen

Everything random comes from the seed, nothing iterates a set and nothing looks at a real clock, so one seed has one
story on any machine. `python -m holdfast.sim --seeds 10000 --nodes 5:64` runs many; `--seed 7 --transcript` tells one.
"""
