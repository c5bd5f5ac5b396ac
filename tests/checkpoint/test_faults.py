"""Guards: brief faults are retried, and unreadable is not taken for damaged."""

import jax
import pytest

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import reading, record, saving
from vit_jax.runtime import errors

NO_MEMORY = jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')
DISK = OSError(5, 'Input/output error')
MISSING = FileNotFoundError(2, 'No such file')
CLIENT = type('HttpError', (Exception,), {'__module__': 'gcsfs.retry'})
TENSORSTORE = ValueError('UNAVAILABLE: Error reading "a"')


def _wrapped(error):
  wrapped = RuntimeError('cannot be read')
  wrapped.__cause__ = error
  return wrapped


def test_reasons_are_given_in_one_line():
  full = _wrapped(OSError(28, 'No space left on device'))
  assert record.reason(full).startswith('No space left on device. Make room')
  assert record.reason(KeyError('a\n b')) == r"KeyError: 'a\n b'"


@pytest.fixture
def run(tmp_path):
  for step in (4, 8):
    states.save(tmp_path, states.plain_state(a=(8,)), [step])
  return tmp_path


TARGET = states.abstract(states.plain_state(a=(8,)))


def _fails(monkeypatch, error, times=99, where=reading, name='_read_arrays'):
  """Makes a function fail for step 8, `times` times."""
  real, left = getattr(where, name), [times]

  def function(path, *args, **kwargs):
    if '8' in path.parts and left[0]:
      left[0] -= 1
      raise error
    return real(path, *args, **kwargs)

  monkeypatch.setattr(where, name, function)


@pytest.mark.parametrize('error', [DISK, MISSING, TENSORSTORE])
def test_brief_faults_are_retried(run, monkeypatch, pauses, error):
  _fails(monkeypatch, error, times=2)
  assert checkpoint.restore_newest(run, TARGET)[1] == 8
  assert pauses == [0.5, 1.0]
  assert states.names(run / 'checkpoints') == ['4', '8']


@pytest.mark.parametrize(
  ('error', 'kind'),
  [
    *((DISK, OSError), (NO_MEMORY, OSError), (MemoryError(), OSError)),
    *((PermissionError(13, 'Denied'), OSError), (_wrapped(DISK), OSError)),
    (ValueError("UNKNOWN: Error reading [os_error_code='5']"), OSError),
    (ValueError("INTERNAL: Too many files [os_error_code='24']"), OSError),
    (ValueError('PERMISSION_DENIED: Error opening "zarr"'), OSError),
    *((TENSORSTORE, OSError), (_wrapped(TENSORSTORE), OSError)),
    (_wrapped(CLIENT('401: Unauthorized')), OSError),
    (errors.StoreError('gs://a: no answer'), errors.StoreError),
  ],
)
def test_an_unreachable_checkpoint_is_not_moved(run, monkeypatch, error, kind):
  if error is DISK:
    _fails(monkeypatch, error, where=record, name='read')
  else:
    _fails(monkeypatch, error)
  for read in (
    lambda: checkpoint.restore_newest(run, TARGET),
    lambda: checkpoint.read_params(run),
  ):
    with pytest.raises(kind, match=r'8 cannot be read: .*Make it readable'):
      read()
  assert states.names(run) == ['checkpoints']
  assert checkpoint.latest_step(run) == 8


@pytest.mark.parametrize(
  'error',
  [
    ValueError("NOT_FOUND: Error opening [os_error_code='2']"),
    ValueError('DATA_LOSS: Error reading "a"'),
    *(MISSING, OSError(22, 'Invalid argument'), KeyError('a')),
  ],
)
def test_a_damaged_checkpoint_is_moved(run, monkeypatch, error):
  _fails(monkeypatch, error)
  assert checkpoint.restore_newest(run, TARGET)[1] == 4
  assert states.names(run / 'damaged_checkpoints') == ['8']


def test_files_that_cannot_be_opened_are_out_of_reach(run):
  # TensorStore reports the system's error as a ValueError.
  for file in (run / 'checkpoints/8/default/d').iterdir():
    file.unlink()
    file.symlink_to(file)
  with pytest.raises(OSError, match=r'8 cannot be read: .*symbolic links'):
    checkpoint.restore_newest(run, TARGET)
  assert states.names(run) == ['checkpoints']


def test_a_store_that_does_not_answer_may_be_tried_again(run, monkeypatch):
  monkeypatch.setattr(reading.buckets, 'is_store', lambda _: True)
  _fails(monkeypatch, _wrapped(TENSORSTORE))
  with pytest.raises(errors.StoreError, match='8 cannot be read: '):
    checkpoint.restore_newest(run, TARGET)


def test_a_state_that_is_foreign_to_one_process_is_damaged(run, monkeypatch):
  other = ['foreign', 'another shape']
  monkeypatch.setattr(reading.distributed, 'gather', lambda mine: [mine, other])
  with pytest.raises(ValueError, match='8 is damaged: process 1: another sha'):
    checkpoint.restore_newest(run, TARGET)


def test_a_save_that_a_bucket_refuses_may_be_tried_again(tmp_path, monkeypatch):
  manager = saving.ocp.CheckpointManager
  monkeypatch.setattr(saving.buckets, 'is_store', lambda _: True)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)

  def fail(*_, **__):
    raise TENSORSTORE

  monkeypatch.setattr(manager, 'save', fail)
  with pytest.raises(errors.StoreError, match=r'step 3 .*UNAVAILABLE.* No '):
    checkpoints.save(3, {'a': jax.numpy.ones(2)})
