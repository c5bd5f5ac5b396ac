"""Guards: brief faults are retried, and unreadable is not taken for damaged."""

import jax
import pytest

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import faults, reading, record
from vit_jax.runtime import errors

NO_MEMORY = jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')
DISK = OSError(5, 'Input/output error')


class _HttpError(Exception):
  __module__ = 'gcsfs.retry'

  def __init__(self, code):
    super().__init__(str(code))
    self.code = code


def _wrapped(error):
  wrapped = RuntimeError('cannot be read')
  wrapped.__cause__ = error
  return wrapped


@pytest.mark.parametrize(
  'error, again',
  [
    (DISK, False),
    (PermissionError(13, 'Permission denied'), False),
    (TimeoutError('late'), True),
    (MemoryError(), False),
    (NO_MEMORY, False),
    (ValueError('UNAVAILABLE: Error reading "a": HTTP code: 503'), True),
    (ValueError('UNKNOWN: Error reading "a" [os_error_code=\'5\']'), False),
    (ValueError('ABORTED: Generation mismatch'), False),
    (_HttpError(503), True),
    (_HttpError(400), False),
    (_wrapped(DISK), False),
    (_wrapped(TimeoutError('.../checkpoints/401/...')), True),
  ],
)
def test_out_of_reach(error, again):
  assert faults.is_out_of_reach(error)
  # A bucket that does not answer may do so after a restart.
  assert faults.is_unanswered('gs://bucket/run', error) == again
  assert not faults.is_unanswered('/a/run', error)


@pytest.mark.parametrize(
  'error',
  [
    *(FileNotFoundError('gs://bucket/a'), IsADirectoryError(21, 'Is a')),
    ValueError('DATA_LOSS: Error decoding manifest: CRC-32C checksum'),
    ValueError('NOT_FOUND: Error reading "a" [os_error_code=\'2\']'),
    *(KeyError('shape'), UnicodeDecodeError('utf-8', b'\xff', 0, 1, 'bad')),
    _wrapped(FileNotFoundError('UNAVAILABLE.txt')),
  ],
)
def test_damage(error):
  assert not faults.is_out_of_reach(error)


@pytest.mark.parametrize('text', ['PERMISSION_DENIED: code: 403', 'Forbidden'])
def test_a_refusal_is_no_missing_answer(text):
  assert not faults.is_unanswered('gs://bucket/a', _HttpError(text))


def test_reasons_are_given_in_one_line():
  full = ValueError("a:\n 9 bytes: No space left [os_error_code='28']")
  assert faults.reason(full).startswith('No space left on device. Make room')
  assert faults.reason(_wrapped(DISK)) == 'Input/output error'
  assert faults.reason(checkpoint.DamagedError('a\nb')) == 'a b'
  assert faults.reason(KeyError('a\n b')) == r"KeyError: 'a\n b'"


@pytest.fixture
def run(tmp_path):
  for step in (4, 8):
    states.save(tmp_path, states.plain_state(a=(step,)), [step])
  return tmp_path


TARGET = states.abstract(states.plain_state(a=(8,)))
PLACES = [(record, 'read'), (reading, '_read_arrays')]


def _fails(monkeypatch, where, name, error, times=99):
  """Makes a function fail for step 8, `times` times."""
  real, left = getattr(where, name), [times]

  def function(path, *args, **kwargs):
    if '8' in path.parts and left[0]:
      left[0] -= 1
      raise error
    return real(path, *args, **kwargs)

  monkeypatch.setattr(where, name, function)


@pytest.mark.parametrize('error', [DISK, FileNotFoundError(2, 'No such')])
@pytest.mark.parametrize(('where', 'name'), PLACES)
def test_brief_faults_are_retried(run, monkeypatch, pauses, where, name, error):
  _fails(monkeypatch, where, name, error, times=2)
  assert checkpoint.restore_newest(run, TARGET)[1] == 8
  assert pauses == [0.5, 1.0]
  assert states.names(run / 'checkpoints') == ['4', '8']


@pytest.mark.parametrize('error', [DISK, NO_MEMORY])
@pytest.mark.parametrize(('where', 'name'), PLACES)
def test_an_unreachable_checkpoint_is_not_moved(
  run, monkeypatch, where, name, error
):
  _fails(monkeypatch, where, name, error)
  for read in (
    lambda: checkpoint.restore_newest(run, TARGET),
    lambda: checkpoint.read_params(run),
  ):
    with pytest.raises(OSError, match=r'8 cannot be read: .*Make it readable'):
      read()
  assert states.names(run) == ['checkpoints']
  assert checkpoint.latest_step(run) == 8


def test_a_bucket_that_does_not_answer_ends_the_run(run, monkeypatch):
  _fails(monkeypatch, record, 'read', errors.StoreError('no answer'))
  monkeypatch.setattr(faults.buckets, 'is_store', lambda _: True)
  with pytest.raises(errors.StoreError, match='cannot be read: '):
    checkpoint.restore_newest(run, TARGET)
  monkeypatch.setattr(faults, 'is_unanswered', lambda *_: True)
  assert states.names(run / 'checkpoints') == ['4', '8']
