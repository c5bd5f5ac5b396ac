"""Faults on purpose: real runs are interrupted, and must end as if not.

`python -m tests.faults.campaign --help` says how to run it.
"""
