"""Guards: the right parameters are read, verified, and replaced safely."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import reading
from vit_jax.runtime import errors
from vit_jax.training import warm_start


@pytest.mark.parametrize('polyak', [True, False])
def test_read_params_prefers_the_average(tmp_path, polyak, caplog):
  state = states.train_state(polyak=polyak)
  states.save(tmp_path, state)
  params, path = checkpoint.read_params(tmp_path)
  assert path == tmp_path / 'checkpoints' / '7'
  assert all(type(x) is np.ndarray for x in jax.tree.leaves(params))
  states.assert_bitwise(params, state.ema_params if polyak else state.params)
  assert not caplog.text


def test_an_average_of_what_trains_is_completed(tmp_path):
  state = {
    'params': {'a': {'w': jnp.zeros(2)}, 'b': {'w': jnp.zeros(2)}},
    'ema_params': {'a': {'w': jnp.ones(2)}},
  }
  states.save(tmp_path, state)
  params, _ = checkpoint.read_params(tmp_path)
  states.assert_bitwise(
    params, {'a': {'w': jnp.ones(2)}, 'b': {'w': jnp.zeros(2)}}
  )


def test_read_params_refuses_other_folders(tmp_path):
  states.save(tmp_path / 'a', {'weights': {'w': jnp.ones(2)}})
  with pytest.raises(ValueError, match=r"no `params`, only \['weights'\]"):
    checkpoint.read_params(tmp_path / 'a')
  (tmp_path / 'b/checkpoints/7/default').mkdir(parents=True)
  with pytest.raises(ValueError, match=r'7 is damaged: .* is missing'):
    checkpoint.read_params(tmp_path / 'b')


def _flip_one_bit(monkeypatch, step):
  """Flips a bit in the arrays that are read from one step."""
  real = reading._read_arrays

  def read_arrays(path, *args, **kwargs):
    tree = real(path, *args, **kwargs)
    if path.name == str(step):
      kernel = tree['ema_params']['embedding']['kernel']
      kernel.view(np.uint8)[1, 2, 0, 3] ^= 1
    return tree

  monkeypatch.setattr(reading, '_read_arrays', read_arrays)


def test_a_run_is_read_from_its_newest_intact_checkpoint(
  tmp_path, monkeypatch, caplog
):
  for step in (3, 7):
    states.save(tmp_path, states.train_state(seed=step), [step])
  _flip_one_bit(monkeypatch, 7)
  with pytest.raises(ValueError, match=r'1 of 2 .* ema_params/embedding/kern'):
    checkpoint.read_params(tmp_path / 'checkpoints/7')
  params, found = checkpoint.read_params(tmp_path / 'checkpoints')
  assert found == tmp_path / 'checkpoints/3'
  states.assert_bitwise(params, states.train_state(seed=3).ema_params)
  assert 'checkpoints/7 is damaged' in caplog.text
  assert states.names(tmp_path) == ['checkpoints']
  shutil.rmtree(tmp_path / 'checkpoints/3/fingerprints')
  with pytest.raises(ValueError, match=r'No checkpoint in .* is intact'):
    checkpoint.read_params(tmp_path)


@pytest.mark.parametrize('kind', ['best', 'final'])
def test_save_params_round_trip(tmp_path, kind):
  params = {'head': {'kernel': jnp.arange(64.0).reshape(8, 8)}}
  sharded = states.put(params, 8, split=True)
  written = checkpoint.save_params(tmp_path, kind, 12, sharded)
  assert written == tmp_path / kind / '12'
  assert checkpoint.find(tmp_path / kind) == written == checkpoint.find(written)
  found, where = checkpoint.read_params(tmp_path / kind)
  assert where == written
  states.assert_bitwise(found, params)
  assert checkpoint.latest_step(tmp_path) is None
  assert warm_start.pin(str(tmp_path / kind), tmp_path / 'b') == str(written)


def _saved(workdir, step, value):
  return checkpoint.save_params(
    workdir, 'best', step, {'w': jnp.full(4, value)}
  )


def test_only_the_newest_params_stay(tmp_path, monkeypatch):
  # The steps include an earlier one, as after a fall-back, and the same again.
  for step, value in ((8, 1), (12, 2), (4, 3), (4, 5)):
    path = _saved(tmp_path, step, value)
    assert states.names(tmp_path / 'best') == [str(step)]
    np.testing.assert_array_equal(checkpoint.read_params(path)[0]['w'], value)

  # They stay until the new ones are complete.
  async def fail(*_):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as context:
    context.setattr(ocp.JsonCheckpointHandler, '_save_fn', fail)
    with pytest.raises(errors.SaveError, match=r'step 12 .*No space'):
      _saved(tmp_path, 12, 2)
  params, found = checkpoint.read_params(tmp_path / 'best')
  assert found.name == '4'
  np.testing.assert_array_equal(params['w'], 5)
  _saved(tmp_path, 12, 3)
  assert states.names(tmp_path / 'best') == ['12']
