"""Guards: the right checkpoints are kept, and each failed save is reported."""

import contextlib
import math
import shutil
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental import multihost_utils

from tests.checkpoint import states
from tests.faults import damage
from vit_jax import checkpoint
from vit_jax.checkpoint import saving
from vit_jax.runtime import errors

STATE = {'params': {'w': jnp.ones(2)}}


@pytest.mark.parametrize(
  ('keep', 'keep_every', 'kept'),
  [(2, 0, ['5', '6']), (1, 2, ['2', '4', '6'])],
)
def test_keeps_the_newest_and_every_nth(tmp_path, keep, keep_every, kept):
  states.save(tmp_path, STATE, range(1, 7), keep=keep, keep_every=keep_every)
  assert states.names(tmp_path / 'checkpoints') == kept


def _save_values(workdir, best, values, earlier=()):
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, best=best)
  for step, value in enumerate(earlier, start=1):
    checkpoints.note(step, {best: value})
  for step, value in enumerate(values, start=len(earlier) + 1):
    checkpoints.note(step, {best: value} if value is not None else {})
    checkpoints.save(step, STATE)
  checkpoints.close()
  return states.names(workdir / 'checkpoints')


@pytest.mark.parametrize(
  ('best', 'values', 'kept'),
  [
    ('test/accuracy', [0.1, np.float32(0.5), None, 0.2], ['2', '4']),
    ('test/loss', [0.3, 0.1, 0.5, 0.2], ['2', '4']),
    # The first of equal values is the best.
    ('test/accuracy', [0.1, 1.0, 1.0, 0.2], ['2', '4']),
    ('test/accuracy', [None, 0.1, math.nan, math.inf], ['2', '4']),
    ('test/accuracy', [None, None, None, None], ['4']),
  ],
)
def test_keeps_the_best(tmp_path, best, values, kept):
  assert _save_values(tmp_path, best, values) == kept


def test_the_best_step_is_remembered_after_a_restart(tmp_path):
  name = 'test/accuracy'
  values = [0.1, 0.5, 0.3]
  assert _save_values(tmp_path, name, values) == ['2', '3']
  assert _save_values(tmp_path, name, [0.4, 0.4], values) == ['2', '5']
  values += [0.4, 0.4]
  assert _save_values(tmp_path, name, [0.6, 0.4], values) == ['6', '7']


def test_saves_ask_nobody_whether_the_run_should_stop(tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(
    multihost_utils,
    'reached_preemption_sync_point',
    lambda number: asked.append(number) or True,
  )
  states.save(tmp_path, STATE, [1, 2], keep=2)
  assert states.names(tmp_path / 'checkpoints') == ['1', '2']
  assert not asked


def test_half_written_checkpoint_is_ignored_and_removed(tmp_path):
  states.save(tmp_path, STATE)
  folder = tmp_path / 'checkpoints'
  for step in (8, 9):
    half = folder / f'{step}.orbax-checkpoint-tmp'
    shutil.copytree(folder / '7', half)
    shutil.rmtree(half / 'default' / 'd')
  assert checkpoint.find(tmp_path).name == '7'
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2, keep_every=0)
  assert checkpoints.latest_step == 7
  checkpoints.save(8, STATE)
  checkpoints.close()
  assert states.names(folder) == ['7', '8']


def test_a_complete_step_is_not_saved_again(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2, keep_every=0)
  for value in (1, 2):
    checkpoints.save(3, {'params': {'w': jnp.full(2, value)}})
  checkpoints.close()
  params, _ = checkpoint.read_params(tmp_path)
  np.testing.assert_array_equal(params['w'], [1, 1])


@pytest.fixture
def mounted(tmp_path, monkeypatch):
  """A file system of one megabyte, full after three checkpoints."""
  # Without the check of the free space, as if the disk filled up after it.
  monkeypatch.setattr(saving.Checkpoints, 'check_space', lambda *_: None)
  try:
    disk = damage.Disk(tmp_path / 'mounted', megabytes=1)
  except OSError as error:
    pytest.skip(str(error))
  yield disk.folder
  disk.close()


def _large(seed):
  values = np.random.default_rng(seed).normal(size=(400, 150))
  return {'params': {'w': jnp.asarray(values, 'float32')}}


def test_a_full_disk(mounted):
  checkpoints = checkpoint.Checkpoints(mounted, keep=9, keep_every=0)
  message = (
    f'The checkpoint of step 4 could not be saved to {mounted}/checkpoints: No'
    ' space left on device. Make room'
  )
  with pytest.raises(errors.SaveError, match=message) as error:  # noqa: PT012
    for step in range(1, 9):
      checkpoints.save(step, _large(step))
  last = f'The last complete one is {mounted}/checkpoints/3.'
  assert str(error.value).endswith(last)
  checkpoints.close()  # Does not raise again.
  # The older checkpoints are intact, as if the process had died.
  assert checkpoint.latest_step(mounted) == 3
  target = states.abstract(_large(3))
  restored, step = checkpoint.restore_newest(mounted, target)
  assert step == 3
  states.assert_bitwise(restored, _large(3))
  # After room is made, saving goes on.
  shutil.rmtree(mounted / 'checkpoints/1')
  checkpoints.save(5, _large(5))
  checkpoints.close()
  assert states.names(mounted / 'checkpoints') == ['2', '3', '5']


@pytest.fixture
def fails(monkeypatch):
  """Makes saves fail after their arrays are copied, at this event."""
  event = threading.Event()

  async def fail(*_):
    event.wait(30)
    raise OSError(5, 'Input/output error')

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', fail)
  return event


def _again_and_again(call):
  for _ in range(3000):  # `check` does not wait.
    call()
    time.sleep(0.01)


@pytest.mark.parametrize('raises', ['check', 'wait', 'close'])
def test_a_failed_save_is_raised_once(tmp_path, fails, raises):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=9, keep_every=0)
  checkpoints.save(1, STATE)
  checkpoints.check()
  # `save` returned before everything was written.
  assert checkpoint.latest_step(tmp_path) is checkpoints.latest_step is None
  fails.set()
  with pytest.raises(errors.SaveError, match=r'step 1 .*Input/output error'):
    _again_and_again(getattr(checkpoints, raises))
  checkpoints.check()
  checkpoints.close()
  assert checkpoints.latest_step is None


def test_a_save_that_takes_too_long_names_the_limit(tmp_path, fails):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1, timeout=1)
  checkpoints.save(2, STATE)
  with pytest.raises(errors.SaveError, match=r'step 2 .*checkpoint\.timeout'):
    checkpoints.wait()
  fails.set()


def test_close_does_not_hide_another_exception(tmp_path, fails, caplog):
  with pytest.raises(ZeroDivisionError), contextlib.ExitStack() as stack:  # noqa: PT012
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=9, keep_every=0)
    stack.callback(checkpoints.close)
    checkpoints.save(1, STATE)
    fails.set()
    _ = 1 / 0
  assert 'step 1 could not be saved' in caplog.text


def test_the_state_may_be_donated_while_it_is_saved(tmp_path):
  step = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=9, keep_every=0)
  state = states.put({'params': {'w': jnp.arange(1e5)}}, 8, split=True)
  for number in range(3):
    checkpoints.save(number, state)
    state = step(state)
  checkpoints.close()
  for number in range(3):
    params, _ = checkpoint.read_params(tmp_path / f'checkpoints/{number}')
    np.testing.assert_array_equal(params['w'], np.arange(1e5) + number)


def test_nothing_is_written_without_space(tmp_path, monkeypatch):
  states.save(tmp_path, STATE, [1])
  usage = types.SimpleNamespace(total=10**12, free=10**5)
  monkeypatch.setattr(shutil, 'disk_usage', lambda _: usage)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0)
  with pytest.raises(
    errors.SaveError, match=r'takes 1.0 MB, .*Make room'
  ) as error:
    checkpoints.save(2, STATE)
  assert str(error.value).endswith(f'one is {tmp_path}/checkpoints/1.')
  with pytest.raises(errors.SaveError, match='Make room'):
    checkpoints.check_space(jax.eval_shape(lambda: STATE))
  assert states.names(tmp_path / 'checkpoints') == ['1']
  usage.total = 0  # A file system that reports no size.
  checkpoints.check_space(STATE)


@pytest.mark.parametrize(
  'processes, text, kind',
  [
    (1, 'UNAVAILABLE: Failed to send RPC', errors.SaveError),
    (2, 'UNAVAILABLE: Failed to send RPC', errors.StoreError),
    (2, 'RESOURCE_EXHAUSTED: no memory', errors.SaveError),
  ],
)
def test_a_save_that_a_lost_process_ends_may_be_tried_again(
  tmp_path, monkeypatch, processes, text, kind
):
  def fail(*_, **__):
    monkeypatch.setattr(jax, 'process_count', lambda: processes)
    raise jax.errors.JaxRuntimeError(text)

  monkeypatch.setattr(ocp.CheckpointManager, 'save', fail)
  checkpoints = saving.Checkpoints(tmp_path, keep=1)
  with pytest.raises(errors.SaveError) as error:
    checkpoints.save(1, {'w': jnp.ones(2)})
  assert error.type is kind
