"""Evaluators: `run(params, on_batch)` yields `(name, value)` pairs."""

from vit_jax.evaluators.build import build
from vit_jax.evaluators.evaluator import Evaluator, digests, run

__all__ = ['Evaluator', 'build', 'digests', 'run']
