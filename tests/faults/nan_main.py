"""Runs `vit_jax.main` with NaN gradients at one step.

python -m tests.faults.nan_main STEP --config=... --workdir=...
"""

import runpy
import sys

import jax
import jax.numpy as jnp

from vit_jax.training import gradients
from vit_jax.training import step as step_lib


def poison(step: int) -> None:
  """Makes the gradients of one step NaN, in all runs of this process.

  Only the dropout key among the arguments identifies the step.

  Args:
    step: the first is 1.
  """
  root_keys = step_lib.root_keys
  make_loss_and_grad = gradients.make_loss_and_grad
  keys = []

  def remember(*args):
    keys[:] = root_keys(*args)
    return tuple(keys)

  def make(*args, **kwargs):
    original = make_loss_and_grad(*args, **kwargs)

    def loss_and_grad(params, batch, key):
      result, grads = original(params, batch, key)
      bad_key = jax.random.fold_in(keys[1], step - 1)
      bad = (jax.random.key_data(key) == jax.random.key_data(bad_key)).all()
      return result, jax.tree.map(lambda g: jnp.where(bad, jnp.nan, g), grads)

    return loss_and_grad

  step_lib.root_keys = remember
  gradients.make_loss_and_grad = make


if __name__ == '__main__':
  poison(int(sys.argv.pop(1)))
  runpy.run_module('vit_jax.main', run_name='__main__', alter_sys=True)
