"""Sweeps: many runs from one file, selected on held-out data, in one table.

The launcher imports no JAX and reads no config: it is to cost nothing. What
needs them has processes of its own (`reading`, `table`, the runs themselves).
"""

from vit_jax.sweep.spec import Run, Study, Sweep, grid, make_run

__all__ = ['Run', 'Study', 'Sweep', 'grid', 'make_run']
