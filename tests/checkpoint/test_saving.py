"""Guards: the right checkpoints are kept, and each failed save is reported."""

import contextlib
import math
import shutil
import subprocess
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import manager, saving, space
from vit_jax.runtime import errors

STATE = {'params': {'w': jnp.ones(2)}}


@pytest.mark.parametrize(
  ('keep', 'keep_every', 'kept'),
  [(1, 0, ['6']), (2, 0, ['5', '6']), (1, 2, ['2', '4', '6'])],
)
def test_keeps_the_newest_and_every_nth(tmp_path, keep, keep_every, kept):
  states.save(tmp_path, STATE, range(1, 7), keep=keep, keep_every=keep_every)
  assert states.names(tmp_path / 'checkpoints') == kept


def _save_values(workdir, best, values, first=1):
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0, best=best)
  for step, value in enumerate(values, start=first):
    metrics = {best: value, 'other': 99 - step} if value is not None else None
    checkpoints.save(step, STATE, metrics)
  checkpoints.close()
  return states.names(workdir / 'checkpoints')


@pytest.mark.parametrize(
  ('best', 'values', 'kept'),
  [
    ('test/accuracy', [0.1, 0.5, 0.3, 0.2], ['2', '4']),
    ('test/loss', [0.3, 0.1, 0.5, 0.2], ['2', '4']),
    # The first of equal values is the best.
    ('test/accuracy', [0.1, 1.0, 1.0, 0.2], ['2', '4']),
    ('test/accuracy', [None, 0.1, math.nan, math.inf], ['2', '4']),
    ('test/accuracy', [0.1, np.float32(0.5), None, None], ['2', '4']),
    ('test/accuracy', [None, None, None, None], ['4']),
  ],
)
def test_keeps_the_best(tmp_path, best, values, kept):
  assert _save_values(tmp_path, best, values) == kept


def test_the_best_step_is_remembered_after_a_restart(tmp_path):
  name = 'test/accuracy'
  assert _save_values(tmp_path, name, [0.1, 0.5, 0.3]) == ['2', '3']
  assert _save_values(tmp_path, name, [0.4, 0.4], first=4) == ['2', '5']
  assert _save_values(tmp_path, name, [0.6, 0.4], first=6) == ['6', '7']
  assert checkpoint.read_metrics(tmp_path / 'checkpoints/6') == {
    name: 0.6,
    'other': 93,
  }


def test_damaged_metrics_are_no_obstacle(tmp_path):
  _save_values(tmp_path, 'test/accuracy', [0.5, 0.3])
  record = tmp_path / 'checkpoints/1/fingerprints/metadata'
  record.write_text(record.read_text().replace('0.5', '0.9'))
  assert checkpoint.read_metrics(tmp_path / 'checkpoints/1') == {}
  assert _save_values(tmp_path, 'test/accuracy', [0.1], 3) == ['2', '3']


def test_orbax_uses_the_given_timeout_for_folders(tmp_path):
  checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0, timeout=777).close()
  orbax = ocp.multihost.sync_global_processes.__globals__
  assert orbax['coordination_timeout']() == 777


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


def test_latest_step_ignores_an_unfinished_save(tmp_path, monkeypatch):
  may_finish = threading.Event()
  real = ocp.JsonCheckpointHandler._save_fn

  async def slow(self, *args):
    may_finish.wait(30)
    await real(self, *args)

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', slow)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2, keep_every=0)
  assert checkpoints.latest_step is None
  checkpoints.save(3, STATE)
  # `save` returned before everything was written.
  assert checkpoints.latest_step is None
  assert checkpoint.latest_step(tmp_path) is None
  checkpoints.check()
  may_finish.set()
  checkpoints.wait()
  assert checkpoints.latest_step == 3 == checkpoint.latest_step(tmp_path)
  checkpoints.close()


@pytest.fixture
def mounted(tmp_path, monkeypatch):
  """A file system of one megabyte, full after three checkpoints."""
  # Without the check of the free space, as if the disk filled up after it.
  monkeypatch.setattr(space, 'shortage', lambda *_: '')
  folder = tmp_path / 'mounted'
  folder.mkdir()
  command = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)]
  if shutil.which('mount') is None:
    pytest.skip('there is no mount')
  if subprocess.run(command, capture_output=True, check=False).returncode:
    pytest.skip('may not mount')
  yield folder
  subprocess.run(['umount', '-l', str(folder)], check=True)


@pytest.fixture
def may_fail(monkeypatch):
  """Holds each save until this event, so that `save` itself does not raise."""
  event = threading.Event()
  real = saving._Save.finished

  def held(self):
    event.wait(30)
    real(self)

  monkeypatch.setattr(saving._Save, 'finished', held)
  return event


def _large(seed):
  values = np.random.default_rng(seed).normal(size=(400, 150))
  return {'params': {'w': jnp.asarray(values, 'float32')}}


def test_a_full_disk(mounted):
  checkpoints = checkpoint.Checkpoints(mounted, keep=9, keep_every=0)
  message = (
    f'The checkpoint of step 4 could not be saved to {mounted}/checkpoints: No'
    ' space left on device'
  )
  with pytest.raises(errors.SaveError, match=message) as error:  # noqa: PT012
    for step in range(1, 9):
      checkpoints.save(step, _large(step))
  last = f'The last complete one is {mounted}/checkpoints/3.'
  assert str(error.value).endswith(last)
  assert '\n' not in str(error.value)
  checkpoints.close()  # Does not raise again.
  # The older checkpoints are intact, as if the process had died.
  assert states.names(mounted / 'checkpoints')[:3] == ['1', '2', '3']
  assert checkpoint.latest_step(mounted) == 3
  target = states.abstract(_large(3))
  restored, step = checkpoint.restore_newest(mounted, target)
  assert step == 3
  states.assert_bitwise(restored, _large(3))
  # After room is made, the next start saves again.
  shutil.rmtree(mounted / 'checkpoints/1')
  states.save(mounted, _large(4), [4], keep=3)
  assert states.names(mounted / 'checkpoints') == ['2', '3', '4']


def test_saving_goes_on_when_there_is_room_again(mounted):
  checkpoints = checkpoint.Checkpoints(mounted, keep=9, keep_every=0)
  with contextlib.suppress(errors.SaveError):
    for step in range(1, 9):
      checkpoints.save(step, _large(step))
      checkpoints.wait()
  shutil.rmtree(mounted / 'checkpoints/1')
  checkpoints.save(5, _large(5))
  checkpoints.close()
  assert states.names(mounted / 'checkpoints') == ['2', '3', '5']


def test_a_failed_save_is_raised_by_check_and_by_close(mounted, may_fail):
  for raises in ('check', 'close'):
    may_fail.clear()
    checkpoints = checkpoint.Checkpoints(mounted, keep=9, keep_every=0)
    (mounted / 'filler').write_bytes(bytes(900_000))
    checkpoints.save(1, _large(1))
    may_fail.set()
    checkpoints._saver._under_way.done.wait(30)
    with pytest.raises(errors.SaveError, match=r'step 1 .*No space left'):
      getattr(checkpoints, raises)()
    checkpoints.check()
    checkpoints.close()
    assert checkpoints.latest_step is None
    (mounted / 'filler').unlink()


def test_close_does_not_hide_another_exception(mounted, may_fail, monkeypatch):
  lines = []
  monkeypatch.setattr(
    manager.logging, 'error', lambda text, *args, **_: lines.append(text % args)
  )
  with pytest.raises(ZeroDivisionError), contextlib.ExitStack() as stack:  # noqa: PT012
    checkpoints = checkpoint.Checkpoints(mounted, keep=9, keep_every=0)
    stack.callback(checkpoints.close)
    (mounted / 'filler').write_bytes(bytes(900_000))
    checkpoints.save(1, _large(1))
    may_fail.set()
    _ = 1 / 0
  assert 'step 1 could not be saved' in lines[-1]


def test_a_read_only_disk(mounted):
  states.save(mounted, STATE, [1])
  subprocess.run(['mount', '-o', 'remount,ro', str(mounted)], check=True)
  checkpoints = checkpoint.Checkpoints(mounted, keep=9, keep_every=0)
  with pytest.raises(errors.SaveError) as error:  # noqa: PT012
    checkpoints.save(2, STATE)
    checkpoints.wait()
  assert 'step 2 could not be saved' in str(error.value)
  assert ': Read-only file system' in str(error.value)
  assert str(error.value).endswith(f'one is {mounted}/checkpoints/1.')
  checkpoints.close()
  for opens in (
    lambda: checkpoint.Checkpoints(mounted / 'b', keep=1, keep_every=0),
    lambda: checkpoint.save_params(mounted, 'final', 3, STATE['params']),
  ):
    with pytest.raises(errors.SaveError, match=r'Opening .*Read-only file'):
      opens()
  # The intact checkpoint can still be restored.
  _, step = checkpoint.restore_newest(mounted, states.abstract(STATE))
  assert step == 1


def test_a_file_system_that_hangs(tmp_path, monkeypatch):
  may_finish = threading.Event()
  real = ocp.JsonCheckpointHandler._save_fn

  async def hang(self, *args):
    may_finish.wait(30)
    await real(self, *args)

  states.save(tmp_path, STATE, [1])
  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', hang)
  checkpoints = checkpoint.Checkpoints(
    tmp_path, keep=9, keep_every=0, timeout=0.3
  )
  # Our limit ends the wait, not Orbax's, which is in whole seconds.
  checkpoints.save(2, STATE)
  before = time.monotonic()
  for call in (lambda: checkpoints.save(3, STATE), checkpoints.close):
    with pytest.raises(
      errors.SaveError,
      match=r'of step 2 .* has not ended within 0\.3 s: .*checkpoints/1',
    ):
      call()
  assert time.monotonic() - before < 3
  assert all(
    thread.daemon
    for thread in threading.enumerate()
    if thread.name in ('checkpoint', 'async_save', 'save_finalize')
  )
  may_finish.set()
  for thread in threading.enumerate():
    if thread.name == 'checkpoint':
      thread.join(30)


def test_no_threads_are_left(tmp_path):
  before = set(threading.enumerate())
  states.save(tmp_path, states.put(STATE, 8), [1, 2, 3])
  checkpoint.restore_newest(tmp_path, states.abstract(STATE))
  left = set(threading.enumerate()) - before
  for thread in left:
    thread.join(30)  # Orbax does not wait for all threads that it ends.
  assert [thread.name for thread in left if thread.is_alive()] == []


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


def test_causes_are_given_in_one_line():
  error = ValueError(
    'RESOURCE_EXHAUSTED: Error writing "a":\n Failed to write 9 bytes to file'
    " 4: No space left on device [os_error_code='28']"
  )
  assert saving.cause(error) == 'No space left on device'
  wrapped = RuntimeError('failed')
  wrapped.__cause__ = OSError(30, 'Read-only file system')
  assert saving.cause(wrapped) == 'Read-only file system (EROFS)'
  large = ValueError('OUT_OF_RANGE: Error writing "a": Failed to write 9 bytes')
  assert 'ulimit -f' in saving.cause(large)
  late = TimeoutError('ChainedFuture completed 3/4 futures')
  assert saving.cause(late).endswith('did not answer in time')
  assert saving.cause(KeyError('a\n b')) == r"KeyError: 'a\n b'"
