"""Computes some steps twice, to find a device that computes wrongly.

A defective core can flip bits without an error, and the run goes on with wrong
weights. Two executions of one compiled step on the same inputs must agree bit
by bit, so a difference is a fault of a device. A fault that repeats itself
exactly stays unseen, and so does one in a step that is not computed twice.
"""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoint import fingerprint
from vit_jax.runtime import distributed, errors
from vit_jax.sharding import mesh as mesh_lib
from vit_jax.training import gradients
from vit_jax.training.program import Program
from vit_jax.training.step import TrainState

_DETERMINISTIC = '--xla_gpu_deterministic_ops=true'
# How many devices and arrays an error names.
_SHOWN = 4

Step = Callable[..., tuple[TrainState, dict[str, jax.Array]]]


def check_repeatable(platform: str) -> None:
  """Raises ValueError if two executions of a step may differ by themselves."""
  deterministic = _DETERMINISTIC in os.environ.get('XLA_FLAGS', '')
  if platform == 'gpu' and not deterministic:
    raise ValueError(
      'This compares two executions of a step, which on a GPU are equal only'
      ' with --deterministic: add that flag.'
    )


class Twice:
  """Makes training steps, every `guard.replay_every`-th of them twice.

  Each device sums the bits of its own gradient, if it has one, and of its part
  of the new state. The sums of both executions stay on the devices, and are
  compared where the loop reads metrics anyway. In between, the state needs its
  memory once more.
  """

  def __init__(self, program: Program):
    """Prepares the comparison; all processes must call this.

    Raises:
      ValueError: this machine does not repeat a step bit by bit.
    """
    self._every = program.config.guard.replay_every
    self._mesh = program.layout.mesh
    if self._every:
      check_repeatable(self._mesh.devices.flat[0].platform)
      # Not when a fault is found: if a device has also copied the sums wrongly,
      # its process raises alone, and would wait for the others.
      self._hosts = distributed.gather(socket.gethostname())
    self._shardings = program.layout.state(program.shapes)
    # What the sums are of -> the names of the arrays.
    trained, _ = program.tuning.split(program.shapes.params)
    self._names = {
      'gradient': [*fingerprint.named_leaves(trained)],
      'state': [*fingerprint.named_leaves(program.shapes)],
    }
    self._copy = jax.jit(
      lambda state: jax.tree.map(jnp.copy, state),
      out_shardings=self._shardings,
    )
    self._sums = jax.jit(
      jax.shard_map(
        lambda state: fingerprint.word_sums(state)[None],
        mesh=self._mesh,
        in_specs=(jax.tree.map(lambda x: x.spec, self._shardings),),
        out_specs=P(mesh_lib.AXES),
        check_vma=False,
      ),
      out_shardings=program.layout.whole,
    )
    # Step -> the sums of both executions, see `_sums_of`.
    self._pending: dict[int, list[dict[str, jax.Array]]] = {}

  def step(
    self, number: int, train_step: Step, state: TrainState, *inputs: Any
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Makes a step, and if it is due, the same step before on a copy.

    Args:
      number: the number of the step.
      train_step: the compiled step, which donates the state.
      state: the state before the step.
      *inputs: the other arguments of the step.

    Returns:
      The new state and the metrics of the step.
    """
    due = self._every > 0 and number % self._every == 0
    sums = []
    if due:
      sums.append(self._sums_of(train_step(self._copy(state), *inputs)))
    made = state, metrics = train_step(state, *inputs)
    if due:
      self._pending[number] = [*sums, self._sums_of(made)]
    metrics.pop(gradients.WORD_SUMS, None)
    return state, metrics

  def _sums_of(self, made: tuple[TrainState, dict[str, jax.Array]]):
    """Returns uint32 [devices, arrays] by the keys of `_names`."""
    state, metrics = made
    sums = {'state': self._sums(state)}
    if gradients.WORD_SUMS in metrics:
      sums['gradient'] = metrics[gradients.WORD_SUMS]
    return sums

  def check(self) -> None:
    """Compares the steps since the last call.

    Raises:
      CorruptionError: an execution differed; names step, devices and hosts.
    """
    pending, self._pending = jax.device_get(self._pending), {}
    for number, (one, other) in pending.items():
      # The gradients' sum hands one device's fault on to all of them, so they
      # tell more than the state.
      for what in filter(one.__contains__, self._names):
        differs = one[what] != other[what]
        if differs.any():
          raise errors.CorruptionError(self._message(number, what, differs))

  def _message(self, number: int, what: str, differs: np.ndarray) -> str:
    devices = self._mesh.devices.reshape(-1)
    places = [
      f'{one.device_kind} {one.id} (process {one.process_index}, host'
      f' {self._hosts[one.process_index]})'
      for one in devices[differs.any(axis=1)]
    ]
    names = [*np.array(self._names[what])[differs.any(axis=0)]]
    return (
      f'Step {number} was computed twice, and the {what} differs on'
      f' {len(places)} of {len(devices)} devices: {listed(places)}. It differs'
      f' in {len(names)} array(s): {listed(names)}. Nothing of this step was'
      ' saved: start the same command again to go on from the last checkpoint.'
      ' If the same device is named again, replace its machine.'
    )


def listed(names: Sequence[str]) -> str:
  """Returns the first of some names, and how many more there are."""
  more = [f'and {len(names) - _SHOWN} more'] if len(names) > _SHOWN else []
  return ', '.join([*names[:_SHOWN], *more])
