"""Evaluators: `run(state)` yields `(name, value)` pairs."""

from vit_jax.evaluators.build import build
from vit_jax.evaluators.evaluator import Evaluator, State, digests, run

__all__ = ['Evaluator', 'State', 'build', 'digests', 'run']
