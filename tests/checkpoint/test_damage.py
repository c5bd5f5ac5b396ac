"""Guards: errors are sorted into damaged files and files out of reach."""

import jax
import pytest

from vit_jax import checkpoint
from vit_jax.checkpoint import damage


class _HttpError(Exception):
  __module__ = 'gcsfs.retry'


def _wrapped(error):
  wrapped = checkpoint.DamagedError('cannot be read')
  wrapped.__cause__ = error
  return wrapped


@pytest.mark.parametrize(
  'error',
  [
    OSError(5, 'Input/output error'),
    PermissionError(13, 'Permission denied'),
    PermissionError(1, 'Operation not permitted'),
    TimeoutError('too late'),
    ConnectionResetError(104, 'reset'),
    MemoryError(),
    jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory'),
    ValueError('UNAVAILABLE: Error reading "a": HTTP response code: 503'),
    ValueError('DEADLINE_EXCEEDED: Error reading "a"'),
    ValueError('PERMISSION_DENIED: Error reading "a": code: 403'),
    ValueError('UNKNOWN: Error reading "a" [os_error_code=\'5\']'),
    _HttpError('Forbidden'),
    _wrapped(OSError(5, 'Input/output error')),
  ],
)
def test_unreachable_stores_are_recognized(error):
  assert damage.is_out_of_reach(error)


@pytest.mark.parametrize(
  'error',
  [
    FileNotFoundError(2, 'No such file'),
    FileNotFoundError('gs://bucket/a'),
    IsADirectoryError(21, 'Is a directory'),
    ValueError('DATA_LOSS: Error decoding manifest: CRC-32C checksum'),
    ValueError('NOT_FOUND: Metadata does not exist'),
    ValueError('FAILED_PRECONDITION: Error reading ".zarray": Invalid JSON'),
    ValueError('NOT_FOUND: Error reading "a" [os_error_code=\'2\']'),
    KeyError('shape'),
    UnicodeDecodeError('utf-8', b'\xff', 0, 1, 'invalid'),
    checkpoint.DamagedError('2 arrays differ'),
    _wrapped(FileNotFoundError('UNAVAILABLE.txt')),
  ],
)
def test_damage(error):
  assert not damage.is_out_of_reach(error)
