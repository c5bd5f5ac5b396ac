"""Guards: a step that is not finite stops the run, or is skipped."""

import pathlib

import numpy as np
import pytest

from vit_jax.runtime import errors
from vit_jax.training import guard

FOLDER = pathlib.Path('/runs/a/checkpoints')
GUARDED = ['loss', 'grad_norm', 'update_norm', 'param_norm']


def _steps(text, name='loss', value=float('nan')):
  """Returns metrics of steps: `.` is a good step, `x` has a bad value."""
  good = dict.fromkeys([*GUARDED, 'accuracy'], np.float32(1))
  return [good | ({name: value} if c == 'x' else {}) for c in text]


def _guard(policy='stop', max_skipped=0):
  return guard.Guard(FOLDER, nonfinite=policy, max_skipped=max_skipped)


@pytest.mark.parametrize('name', GUARDED)
@pytest.mark.parametrize('value', [float('nan'), float('inf'), -float('inf')])
def test_stops_at_the_first_bad_step(name, value):
  with pytest.raises(errors.NonFiniteError) as error:
    _guard().check(10, _steps('.x.x', name, value), lambda: 8)
  assert f"{{'{name}': {value}}} at step 12 (found in steps 11 to 14)" in str(
    error.value
  )
  assert 'last good checkpoint is /runs/a/checkpoints/8.' in str(error.value)


def test_no_checkpoint_to_go_back_to():
  with pytest.raises(errors.NonFiniteError, match='no checkpoint had been'):
    _guard().check(0, _steps('x'), lambda: None)


def test_good_steps_and_other_metrics_pass():
  _guard().check(0, _steps('...'), lambda: None)
  _guard().check(0, _steps('x', name='accuracy'), lambda: None)


def test_stopping_never_skips():
  assert not _guard('stop', max_skipped=3).skips
  with pytest.raises(errors.NonFiniteError, match='at step 1 '):
    _guard('stop', max_skipped=3).check(0, _steps('x'), lambda: None)


def test_skips_so_many_in_a_row_also_across_intervals():
  skipping = _guard('skip', max_skipped=2)
  assert skipping.skips
  skipping.check(0, _steps('xx.xx.x'), lambda: None)
  skipping.check(7, _steps('x.'), lambda: None)
  skipping.check(9, _steps('xx'), lambda: None)
  with pytest.raises(
    errors.NonFiniteError, match='at step 12, number 3 in a row'
  ):
    skipping.check(11, _steps('x'), lambda: None)


def test_unknown_policy():
  with pytest.raises(ValueError, match=r"'ignore'.*\['stop', 'skip'\]"):
    _guard('ignore')
