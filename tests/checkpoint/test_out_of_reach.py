"""Guards: brief faults are retried, and unreadable is not taken for damaged."""

import json
import shutil

import jax
import pytest

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import damage, folders, record, restoring
from vit_jax.runtime import errors

OUT_OF_MEMORY = jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')


@pytest.fixture
def run(tmp_path):
  for step in (4, 8):
    states.save(tmp_path, states.plain_state(a=(step,)), [step])
  return tmp_path


TARGET = states.abstract(states.plain_state(a=(8,)))
OLDER = states.abstract(states.plain_state(a=(4,)))


def _fails(monkeypatch, where, name, error, times=99):
  """Makes a function fail for step 8, `times` times."""
  real, left = getattr(where, name), [times]

  def function(path, *args, **kwargs):
    if '8' in path.parts and left[0]:
      left[0] -= 1
      raise error
    return real(path, *args, **kwargs)

  monkeypatch.setattr(where, name, function)


@pytest.mark.parametrize(
  'error', [OSError(5, 'Input/output error'), FileNotFoundError(2, 'No such')]
)
@pytest.mark.parametrize(
  ('where', 'name'), [(record, 'read'), (restoring, '_read_arrays')]
)
def test_transient_errors_are_retried(
  run, monkeypatch, pauses, where, name, error
):
  _fails(monkeypatch, where, name, error, times=2)
  _, step = checkpoint.restore_newest(run, TARGET)
  assert step == 8
  assert pauses == [0.5, 1.0]
  assert states.names(run / 'checkpoints') == ['4', '8']


def test_an_unanswered_read_is_retried(run, monkeypatch, pauses):
  monkeypatch.setattr(damage, 'is_unanswered', lambda *_: True)
  _fails(monkeypatch, record, 'read', OSError('503'), times=2)
  _, step = checkpoint.restore_newest(run, TARGET)
  assert step == 8
  assert pauses == [0.5, 1.0]


@pytest.mark.parametrize(
  ('error', 'text'),
  [
    (OSError(5, 'Input/output error'), r'OSError: \[Errno 5\] Input/output'),
    (PermissionError(13, 'Permission denied'), 'PermissionError: '),
    (OUT_OF_MEMORY, 'JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory'),
    (ValueError('UNAVAILABLE: 503'), 'ValueError: UNAVAILABLE: 503'),
  ],
)
@pytest.mark.parametrize(
  ('where', 'name'), [(record, 'read'), (restoring, '_read_arrays')]
)
def test_an_unreachable_checkpoint_is_not_moved(
  run, monkeypatch, where, name, error, text
):
  _fails(monkeypatch, where, name, error)
  with pytest.raises(OSError, match=f'checkpoints/8 cannot be read: {text}'):
    checkpoint.restore_newest(run, TARGET)
  assert states.names(run) == ['checkpoints']
  assert states.names(run / 'checkpoints') == ['4', '8']
  assert checkpoint.latest_step(run) == 8


def test_no_memory_for_the_check(run, monkeypatch):
  def check(*_):
    raise OUT_OF_MEMORY

  monkeypatch.setattr(record.Record, 'check', check)
  with pytest.raises(OSError, match='Make it readable'):
    checkpoint.restore_newest(run, TARGET)
  assert states.names(run) == ['checkpoints']


def test_params_out_of_reach(run, monkeypatch):
  _fails(monkeypatch, record, 'read', OSError(5, 'Input/output error'))
  with pytest.raises(OSError, match=r'8 cannot be read: .* may be intact'):
    checkpoint.read_params(run)


def test_an_unreadable_record_does_not_count_as_missing(run, monkeypatch):
  # An unreadable checkpoint must not pass as one without a record.
  step = checkpoint.find(run)
  shutil.rmtree(step / 'fingerprints')
  real = type(step).read_text

  def read_text(path, *args, **kwargs):
    if path.name == '_CHECKPOINT_METADATA':
      raise PermissionError(13, 'Permission denied')
    return real(path, *args, **kwargs)

  monkeypatch.setattr(type(step), 'read_text', read_text)
  with pytest.raises(PermissionError):
    record.read(step)


@pytest.fixture
def stays(run, monkeypatch):
  """A run whose damaged step 8 cannot be moved."""
  path = run / 'checkpoints/8/fingerprints/metadata'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'arrays': {}}))

  def fail(*_):
    raise OSError(30, 'Read-only file system')

  monkeypatch.setattr(folders, 'move', fail)
  yield run
  folders.forget_damaged(checkpoint.find(run).parent)


def _value(path):
  return checkpoint.read_params(path)[0]['a'].shape


def test_a_damaged_step_that_stays_is_saved_anew(stays):
  state, step = checkpoint.restore_newest(stays, OLDER)
  assert step == 4
  assert checkpoint.latest_step(stays) == 4
  checkpoints = checkpoint.Checkpoints(stays, keep=2, keep_every=0)
  assert checkpoints.latest_step == 4
  checkpoints.save(6, state)
  checkpoints.wait()
  assert checkpoints.latest_step == 6
  # The damaged step replaces no intact one, and stays for inspection.
  assert states.names(stays / 'checkpoints') == ['4', '6', '8']
  checkpoints.save(8, state)
  checkpoints.close()
  assert checkpoints.latest_step == 8 == checkpoint.latest_step(stays)
  assert _value(stays / 'checkpoints/8') == (4,)
  assert states.names(stays / 'checkpoints') == ['6', '8']
  assert checkpoint.restore_newest(stays, OLDER)[1] == 8


def test_a_damaged_step_is_saved_anew_if_the_folder_was_open_already(stays):
  checkpoints = checkpoint.Checkpoints(stays, keep=2, keep_every=0)
  state, _ = checkpoint.restore_newest(stays, OLDER)
  assert checkpoints.latest_step == 4
  checkpoints.save(8, state)
  checkpoints.close()
  assert _value(stays / 'checkpoints/8') == (4,)


def test_a_damaged_step_that_cannot_be_deleted(stays, monkeypatch):
  state, _ = checkpoint.restore_newest(stays, OLDER)
  checkpoints = checkpoint.Checkpoints(stays, keep=2, keep_every=0)

  def fail(*_):
    raise OSError(30, 'Read-only file system')

  monkeypatch.setattr(checkpoints._saver._manager, 'delete', fail)
  for _ in range(2):
    with pytest.raises(
      errors.SaveError, match=r'Deleting .*/8 failed: Read-on'
    ):
      checkpoints.save(8, state)
    assert checkpoints.latest_step == 4
  checkpoints.close()


def test_a_save_that_fails_after_the_deletion_of_a_damaged_step(
  stays, monkeypatch
):
  state, _ = checkpoint.restore_newest(stays, OLDER)
  checkpoints = checkpoint.Checkpoints(stays, keep=2, keep_every=0)

  def fail(*_, **__):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(checkpoints._saver._manager, 'save', fail)
  with pytest.raises(errors.SaveError, match=r'No space left .*checkpoints/4'):
    checkpoints.save(8, state)
  assert checkpoints.latest_step == 4
  checkpoints.close()
