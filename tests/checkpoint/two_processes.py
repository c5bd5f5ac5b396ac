"""One of the two processes of test_processes.py.

The argument is the run's directory.
"""

import contextlib
import pathlib
import sys

import jax
import numpy as np
import pytest
from absl import logging
from jax.experimental import multihost_utils

from tests import several
from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import fingerprint, reading

DEVICES = 4


def _global(host):
  """Returns a state as global arrays over the devices of both processes."""
  return jax.tree.map(
    lambda x, sharding: jax.make_array_from_callback(
      x.shape, sharding, lambda index: x[index]
    ),
    host,
    states.shardings(host, DEVICES, split=True),
  )


def _same(state, host):
  return fingerprint.digests(state) == fingerprint.digests(host)


@contextlib.contextmanager
def _cannot_read(step, error, times=99):
  """Makes this process fail to read one step, `times` times."""
  real, left = reading._read_arrays, [times]

  def read_arrays(path, *args, **kwargs):
    if path.name == str(step) and left[0]:
      left[0] -= 1
      raise error
    return real(path, *args, **kwargs)

  reading._read_arrays = read_arrays
  yield
  reading._read_arrays = real


def main(rank, workdir):
  reading._PAUSES = (0.01, 0.01)
  both = {
    seed: jax.tree.map(np.asarray, states.train_state(seed=seed))
    for seed in (4, 8, 12)
  }
  target = states.abstract(both[4], DEVICES, split=True)
  assert _same(_global(both[4]), both[4])

  checkpoints = checkpoint.Checkpoints(
    workdir, keep=2, keep_every=0, best='test/loss', timeout=60
  )
  for step, loss in ((4, 0.1), (8, 0.3), (12, 0.2)):
    checkpoints.note(step, {'test/loss': loss})
    checkpoints.save(step, _global(both[step]))
  checkpoints.close()
  assert checkpoints.latest_step == 12
  assert states.names(workdir / 'checkpoints') == ['12', '4', '8']

  restored, step = checkpoint.restore_newest(workdir, target)
  assert step == 12
  assert _same(restored, both[12])

  # If one process cannot read a step, both raise; after a brief fault, neither.
  hiccup = OSError(5, 'Input/output error')
  with (
    _cannot_read(12, hiccup) if rank else contextlib.nullcontext(),
    pytest.raises(OSError, match='12 cannot be read: process 1: Input/output'),
  ):
    checkpoint.restore_newest(workdir, target)
  with _cannot_read(12, hiccup, 2) if rank else contextlib.nullcontext():
    assert checkpoint.restore_newest(workdir, target)[1] == 12
  assert states.names(workdir / 'checkpoints') == ['12', '4', '8']

  # Both processes raise the same error for another model's state.
  other = states.abstract(both[4].params, DEVICES)
  with pytest.raises(ValueError, match='not hold the state of this run'):
    checkpoint.restore_newest(workdir, other)

  # Step 12 is damaged for both processes; only process 0 can read step 8.
  if rank == 0:
    (workdir / 'checkpoints/12/default/manifest.ocdbt').write_bytes(b'abc')
  multihost_utils.sync_global_devices('damaged')
  lines = []
  logging.error = lambda text, *args, **_: lines.append(text % args)
  missing = FileNotFoundError('No manifest')
  with _cannot_read(8, missing) if rank else contextlib.nullcontext():
    restored, step = checkpoint.restore_newest(workdir, target)
  assert step == 4
  assert _same(restored, both[4])
  assert 'checkpoints/12 is damaged: ' in lines[0], lines
  assert (
    'checkpoints/8 is damaged: process 1: FileNotFoundError: No manifest'
    in lines[1]
  ), lines
  assert states.names(workdir / 'damaged_checkpoints') == ['12', '8']
  assert states.names(workdir / 'checkpoints') == ['4']
  assert checkpoint.latest_step(workdir) == 4

  # The run resumes, and still knows its best step.
  checkpoints = checkpoint.Checkpoints(
    workdir, keep=1, keep_every=0, best='test/loss', timeout=60
  )
  assert checkpoints.latest_step == 4
  checkpoints.note(4, {'test/loss': 0.1})
  for step in (8, 12):
    checkpoints.note(step, {'test/loss': 0.5})
    checkpoints.save(step, restored)
    checkpoints.wait()
    written = workdir / f'checkpoints/{step}'
    assert _same(checkpoint.read_params(written)[0], both[4].ema_params)
  checkpoints.close()
  assert states.names(workdir / 'checkpoints') == ['12', '4']

  sharded = _global(both[8]).params
  for step in (8, 8, 12):
    checkpoint.save_params(workdir, 'best', step, sharded, timeout=60)
  params, path = checkpoint.read_params(workdir / 'best')
  assert path.name == '12'
  states.assert_bitwise(params, both[8].params)
  multihost_utils.sync_global_devices('end')
  print('All is well.')


if __name__ == '__main__':
  place = several.place()
  jax.distributed.initialize(**place)
  main(place['process_id'], pathlib.Path(sys.argv[1]))
