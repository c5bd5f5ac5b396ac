"""Flips one bit of one device's gradient, in one execution of one step."""

from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.training import program as program_lib


@jax.custom_vjp
def _corrupted(kernel, flip):
  del flip
  return kernel


def _backward(flips, gradient):
  bits = jax.lax.bitcast_convert_type(gradient, jnp.uint32)
  first = jnp.zeros(bits.size, jnp.uint32).at[0].set(flips.astype(jnp.uint32))
  bits ^= first.reshape(bits.shape)
  return jax.lax.bitcast_convert_type(bits, jnp.float32), None


_corrupted.defvjp(lambda kernel, flip: (kernel, flip), _backward)


def flip(
  monkeypatch, *, at: int, device: int, execution: int = 0, bit: int = 0
) -> None:
  """Makes all runs compute wrongly once.

  Args:
    monkeypatch: pytest's.
    at: the step.
    device: the position in the mesh of the device, whose gradient of
      `head/kernel` gets the wrong bit.
    execution: which of the executions of the step is wrong.
    bit: which bit of the first number is wrong; 0 is the lowest.
  """

  def compile_(program):
    mean_loss = program.objective.mean_loss

    def corrupted(params, batch, key):
      batch = dict(batch)
      kernel = _corrupted(params['head']['kernel'], batch.pop('flip').max())
      params = params | {'head': params['head'] | {'kernel': kernel}}
      return mean_loss(params, batch, key)

    program.objective = program.objective._replace(mean_loss=corrupted)
    executed = []

    def train_step(state, batch, *frozen):
      step = int(state.step) + 1
      rows = np.zeros(batch['mask'].shape, np.int32)
      if step == at and executed.count(step) == execution:
        part = rows.size // program.layout.mesh.size
        rows[device * part : (device + 1) * part] = 1 << bit
      executed.append(step)
      flips = jax.make_array_from_callback(
        rows.shape, batch['mask'].sharding, lambda index: rows[index]
      )
      return program.train_step(state, batch | {'flip': flips}, *frozen)

    future = futures.Future()
    future.set_result(train_step)
    return future

  monkeypatch.setattr(program_lib.Program, 'compile', compile_)
