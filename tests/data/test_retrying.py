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


@pytest.fixture
def pauses(monkeypatch):
  found = []
  monkeypatch.setattr(retrying.time, 'sleep', found.append)
  return found


@pytest.mark.parametrize(
  'error, raised, waits',
  [
    (OSError('no answer'), errors.ReadError, 4),
    (FileNotFoundError(2, 'No such file'), FileNotFoundError, 0),
    (PermissionError(13, 'Permission denied'), PermissionError, 0),
    (OSError('/x is not a regular file.'), OSError, 0),
  ],
)
def test_only_errors_that_may_pass_are_waited_for(pauses, error, raised, waits):
  with pytest.raises(raised):
    retrying.read(data.View(_Unsteady(9, error), 'train'), 3)
  assert len(pauses) == waits


def test_a_short_failure_costs_nothing(pauses):
  view = data.View(_Unsteady(2, OSError('no answer')), 'train')
  assert retrying.read(view, 3).name == 'train/3'
  assert pauses == [1, 2]
