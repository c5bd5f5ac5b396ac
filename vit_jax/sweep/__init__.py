"""Sweeps: many runs from one file, selected on held-out data, in one table.

The launcher imports no JAX and reads no config, so that it needs little time
and memory. Code that needs them has its own process (`reading`, `table`, runs).
"""

from vit_jax.sweep.spec import Run, Study, Sweep, grid, make_run

__all__ = ['Run', 'Study', 'Sweep', 'grid', 'make_run']
