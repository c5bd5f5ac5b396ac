"""Interrupts real runs, which must end as if nothing had happened.

For its usage see `python -m tests.faults.campaign --help`.
"""
