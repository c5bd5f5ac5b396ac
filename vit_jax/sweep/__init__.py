"""Sweeps: many runs from one file, selected on held-out data, in one table."""

from vit_jax.sweep.spec import Run, Study, Sweep, grid, make_run

__all__ = ['Run', 'Study', 'Sweep', 'grid', 'make_run']
