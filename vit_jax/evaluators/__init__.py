"""Evaluators: `run(state)` yields `(name, value)` pairs."""

from vit_jax.evaluators.build import Context, build
from vit_jax.evaluators.evaluator import Evaluator, State, digests, run

__all__ = ['Context', 'Evaluator', 'State', 'build', 'digests', 'run']
