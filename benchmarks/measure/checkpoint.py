"""Times saving, and how long it stalls the training loop."""

import collections
import time

import jax
import ml_collections
import numpy as np
from etils import epath

from benchmarks.measure import settings, timing, training
from vit_jax import checkpoint as checkpoint_lib

MODES = ('none', 'asynchronous', 'waiting')


def turn(
  step: training.Step, directory: epath.Path, mode: str, steps: int
) -> dict[str, float]:
  """Trains, saves in the middle according to `mode`, and restores.

  Args:
    step: a compiled training step.
    directory: this directory is made and removed.
    mode: one of MODES.
    steps: the number of steps.

  Returns:
    `loop_sec`, and for modes that save `call_sec`, `complete_sec` and
    `restore_sec`.
  """
  found, under_way = {}, collections.deque()
  state, batch = jax.block_until_ready((step.init(), step.make_batch()))
  checkpoints = None
  if mode != 'none':
    checkpoints = checkpoint_lib.Checkpoints(directory, keep=1, keep_every=0)
  start, called = time.perf_counter(), None
  for index in range(1, steps + 1):
    state, others = step.step(state, batch)
    under_way.append(others)
    if len(under_way) > 2:  # The training loop has the same limit.
      jax.block_until_ready(under_way.popleft())
    if called and checkpoints.latest_step and 'complete_sec' not in found:
      found['complete_sec'] = time.perf_counter() - called
    if checkpoints and index == steps // 2:
      # Otherwise the save's time would include the running steps.
      jax.block_until_ready(state)
      called = time.perf_counter()
      checkpoints.save(index, state)
      if mode == 'waiting':
        checkpoints.wait()
      found['call_sec'] = time.perf_counter() - called
  jax.block_until_ready((state, others))
  found['loop_sec'] = time.perf_counter() - start
  if checkpoints:
    del state, others
    checkpoints.wait()
    found.setdefault('complete_sec', time.perf_counter() - called)
    checkpoints.close()
    found['restore_sec'] = timing.seconds_of(
      lambda: checkpoint_lib.restore_newest(directory, step.abstract_state)
    )
    directory.rmtree()
  return found


def measure(
  config: ml_collections.ConfigDict,
  directory: epath.Path,
  *,
  steps: int,
  rounds: int,
) -> dict[str, dict]:
  """Compares the modes; the arguments are the flags.

  Args:
    config: as given, not resolved.
    directory: this directory is made, filled by each turn, and removed.
    steps: steps of a turn, two or more.
    rounds: turns of each mode.

  Returns:
    Mode -> `loop_sec` with its ratios of `timing.compare`. Modes that save also
    have `call_sec`, `complete_sec`, `restore_sec` (see `timing.statistics`),
    `stall_sec` (median over the rounds), `state_mb`, `saved_mb_per_sec` and
    `restored_mb_per_sec`.

  Raises:
    ValueError: the directory exists, or see `vit_jax.training.program.Program`.
  """
  if directory.exists():
    raise ValueError(
      f'--directory={directory} exists, but it will be filled and removed: name'
      ' a directory that does not exist.'
    )
  timing.say('Compiling ...')
  step = training.ours(settings.resolve(config))
  size = 1e-6 * sum(
    x.size * x.dtype.itemsize for x in jax.tree.leaves(step.abstract_state)
  )
  timing.say('First save ...')  # It takes longer than later saves.
  turn(step, directory / 'first', 'asynchronous', 2)
  samples = timing.interleave(
    {
      mode: lambda mode=mode: turn(step, directory / mode, mode, steps)
      for mode in MODES
    },
    rounds,
  )
  directory.rmtree(missing_ok=True)
  loops = {
    mode: [sample['loop_sec'] for sample in found]
    for mode, found in samples.items()
  }
  results = {}
  for mode, compared in timing.compare(loops).items():
    results[mode] = {
      key: timing.statistics([sample[key] for sample in samples[mode]])
      for key in samples[mode][0]
    } | {k: v for k, v in compared.items() if 'ratio' in k}
    if mode != 'none':
      results[mode] |= {
        'stall_sec': float(np.median(np.subtract(loops[mode], loops['none']))),
        'state_mb': size,
        'saved_mb_per_sec': size / results[mode]['complete_sec']['median'],
        'restored_mb_per_sec': size / results[mode]['restore_sec']['median'],
      }
  return results
