"""Guards that a store that does not answer costs no record."""

import pytest

from vit_jax import data
from vit_jax.data import retrying
from vit_jax.runtime import errors


class _Unsteady(data.Source):
  """Digits whose reads fail a few times."""

  def __init__(self, failures, error):
    self._digits = data.open_source('digits')
    self.info = self._digits.info
    self.failures, self._error = failures, error

  def read(self, split, index):
    if self.failures:
      self.failures -= 1
      raise self._error
    return self._digits.read(split, index)


def _view(failures, error):
  return data.View(_Unsteady(failures, error), 'train')


@pytest.fixture
def pauses(monkeypatch):
  found = []
  monkeypatch.setattr(retrying.time, 'sleep', found.append)
  return found


def test_an_error_that_stays(pauses):
  with pytest.raises(errors.ReadError, match='after 5 tries: no answer'):
    retrying.read(_view(9, OSError('no answer')), 3)
  assert len(pauses) == 4


@pytest.mark.parametrize(
  'error',
  [
    FileNotFoundError(2, 'No such file'),
    PermissionError(13, 'Permission denied'),
    OSError('/x is not a regular file.'),
  ],
)
def test_an_error_that_no_other_try_changes(pauses, error):
  with pytest.raises(type(error)):
    retrying.read(_view(1, error), 3)
  assert not pauses
