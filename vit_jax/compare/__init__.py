"""Compares the results of many runs: pandas frames, a table, plots.

from vit_jax import compare

runs = compare.load_runs('runs/sweep')  # One row per run.
curves = compare.load_curves('runs/sweep')  # One row per logged step.
"""

from vit_jax.compare.frames import find, load_curves, load_runs

__all__ = ['find', 'load_curves', 'load_runs']
