"""Results of many runs: as pandas frames, as a table, as plots.

from vit_jax import compare

runs = compare.load_runs('runs/sweep')  # A row a run.
curves = compare.load_curves('runs/sweep')  # A row a logged step.
"""

from vit_jax.compare.frames import find, load_curves, load_runs

__all__ = ['find', 'load_curves', 'load_runs']
