"""Evaluators: `run(state)` yields `(name, value)` pairs."""

from vit_jax.evaluators.build import build
from vit_jax.evaluators.evaluator import Evaluator, digests, is_due, run

__all__ = ['Evaluator', 'build', 'digests', 'is_due', 'run']
