"""Faults on live jobs: seeded schedules, and a campaign that checks what is left after them.

python -m holdfast.chaos --seeds 200
python -m holdfast.chaos --backend gloo --seeds 200
python -m holdfast.chaos --seed 17
"""
