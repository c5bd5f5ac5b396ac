"""Interrupts real runs, which must end as if nothing had happened.

`python -m pytest -m slow tests/faults` takes hours; `-k KIND` chooses a kind of
fault, such as `kill-all`.
"""
