"""Guards: the right parameters are read, verified, and replaced safely."""

import json
import logging as python_logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from absl import logging

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.checkpoint import params as params_lib
from vit_jax.checkpoint import stored_arrays
from vit_jax.runtime import errors
from vit_jax.training import warm_start


@pytest.mark.parametrize('polyak', [True, False])
def test_read_params_prefers_the_average(tmp_path, polyak):
  state = states.train_state(polyak=polyak)
  states.save(tmp_path, state)
  params, path = checkpoint.read_params(tmp_path)
  assert path == tmp_path / 'checkpoints' / '7'
  assert all(type(x) is np.ndarray for x in jax.tree.leaves(params))
  states.assert_bitwise(params, state.ema_params if polyak else state.params)


def test_read_params_reads_the_named_step(tmp_path):
  for step in (1, 2):
    states.save(tmp_path, states.train_state(seed=step), [step])
  params, _ = checkpoint.read_params(tmp_path / 'checkpoints' / '1')
  states.assert_bitwise(params, states.train_state(seed=1).ema_params)


def test_read_params_does_not_read_the_optimizer(tmp_path):
  # One folder per array, so that the optimizer's can be deleted.
  path = tmp_path / 'checkpoints' / '7' / 'default'
  state = {'params': {'w': jnp.ones(2)}, 'opt_state': {'m': jnp.ones(2)}}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as writer:
    writer.save(path, args=ocp.args.PyTreeSave(state))
  for chunk in (path / 'opt_state.m').glob('[0-9]*'):
    chunk.unlink()
  params, _ = checkpoint.read_params(tmp_path)
  np.testing.assert_array_equal(params['w'], [1, 1])


@pytest.fixture
def warnings_logged():
  records = []
  handler = python_logging.Handler(python_logging.WARNING)
  handler.emit = lambda record: records.append(record.getMessage())
  logging.get_absl_logger().addHandler(handler)
  yield records
  logging.get_absl_logger().removeHandler(handler)


def test_read_params_prints_nothing(tmp_path, warnings_logged):
  states.save(tmp_path, states.train_state())
  checkpoint.read_params(tmp_path)
  assert warnings_logged == []


def test_read_params_refuses_other_folders(tmp_path):
  states.save(tmp_path / 'a', {'weights': {'w': jnp.ones(2)}})
  with pytest.raises(ValueError, match=r"no `params`, only \['weights'\]"):
    checkpoint.read_params(tmp_path / 'a')
  (tmp_path / 'b/checkpoints/7/default').mkdir(parents=True)
  with pytest.raises(ValueError, match='checkpoints/7 is damaged, or not'):
    checkpoint.read_params(tmp_path / 'b')


def test_params_without_fingerprints_are_read_with_a_warning(
  tmp_path, warnings_logged
):
  states.save(tmp_path, states.train_state())
  step = tmp_path / 'checkpoints/7'
  shutil.rmtree(step / 'fingerprints')
  (step / '_CHECKPOINT_METADATA').unlink()
  params, _ = checkpoint.read_params(tmp_path)
  states.assert_bitwise(params, states.train_state().ema_params)
  assert len(warnings_logged) == 1
  assert f'{step} was saved without fingerprints' in warnings_logged[0]


def _flip_one_bit(monkeypatch, step):
  """Flips a bit in the arrays that are read from one step."""
  real = stored_arrays.read_arrays

  def read_arrays(path, *args, **kwargs):
    tree = real(path, *args, **kwargs)
    if path.name == str(step):
      kernel = tree['ema_params']['embedding']['kernel']
      kernel.view(np.uint8)[1, 2, 0, 3] ^= 1
    return tree

  monkeypatch.setattr(stored_arrays, 'read_arrays', read_arrays)


def test_damaged_arrays_are_named(tmp_path, monkeypatch):
  states.save(tmp_path, states.train_state(), [3, 7])
  _flip_one_bit(monkeypatch, 7)
  with pytest.raises(ValueError, match='is damaged: 1 of 2 ') as error:
    checkpoint.read_params(tmp_path / 'checkpoints/7')
  assert f'{tmp_path}/checkpoints/7 is' in str(error.value)
  assert str(error.value).endswith(' ema_params/embedding/kernel.')


def test_a_run_is_read_from_its_newest_intact_checkpoint(
  tmp_path, monkeypatch, warnings_logged
):
  for step in (3, 7):
    states.save(tmp_path, states.train_state(seed=step), [step])
  _flip_one_bit(monkeypatch, 7)
  for path in (tmp_path, tmp_path / 'checkpoints'):
    params, found = checkpoint.read_params(path)
    assert found == tmp_path / 'checkpoints/3'
    states.assert_bitwise(params, states.train_state(seed=3).ema_params)
  assert len(warnings_logged) == 2
  assert 'checkpoints/7 is damaged' in warnings_logged[0]
  assert states.names(tmp_path) == ['checkpoints']
  (tmp_path / 'checkpoints/3/fingerprints/metadata').unlink()
  with pytest.raises(
    ValueError, match=r'No checkpoint in .* is intact'
  ) as error:
    checkpoint.read_params(tmp_path)
  assert '3 is damaged, or not a checkpoint of this program: fing' in str(
    error.value
  )


@pytest.mark.parametrize('kind', ['best', 'final'])
def test_save_params_round_trip(tmp_path, kind):
  params = {'head': {'kernel': jnp.arange(64.0).reshape(8, 8)}}
  sharded = states.put(params, 8, split=True)
  written = checkpoint.save_params(
    tmp_path, kind, 12, sharded, {'test/accuracy': 0.5}
  )
  assert written == tmp_path / kind / '12'
  assert checkpoint.find(tmp_path / kind) == written == checkpoint.find(written)
  assert checkpoint.read_metrics(written) == {'test/accuracy': 0.5}
  for path in (tmp_path / kind, written):
    found, where = checkpoint.read_params(path)
    assert where == written
    states.assert_bitwise(found, params)
  assert checkpoint.latest_step(tmp_path) is None
  assert warm_start.pin(str(tmp_path / kind), tmp_path / 'b') == str(written)


def _saved(workdir, step, value):
  return checkpoint.save_params(
    workdir, 'best', step, {'w': jnp.full(4, value)}
  )


def test_only_the_newest_params_stay(tmp_path):
  # The steps include an earlier one, as after a fall-back, and the same again.
  for step, value in ((8, 1), (12, 2), (4, 3), (4, 5)):
    path = _saved(tmp_path, step, value)
    assert states.names(tmp_path / 'best') == [str(step)]
    np.testing.assert_array_equal(checkpoint.read_params(path)[0]['w'], value)


@pytest.mark.parametrize('step', [8, 12])
def test_params_stay_until_the_new_ones_are_complete(
  tmp_path, monkeypatch, step
):
  _saved(tmp_path, 8, 1)

  async def fail(*_):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as context:
    context.setattr(ocp.JsonCheckpointHandler, '_save_fn', fail)
    with pytest.raises(errors.SaveError, match=f'step {step} .*No space'):
      _saved(tmp_path, step, 2)
  assert checkpoint.find(tmp_path / 'best').name == '8'
  params, _ = checkpoint.read_params(tmp_path / 'best')
  np.testing.assert_array_equal(params['w'], 1)
  _saved(tmp_path, step, 3)
  assert states.names(tmp_path / 'best') == [str(step)]


@pytest.mark.parametrize('step', [8, 12])
def test_params_of_a_run_killed_while_it_replaced_them(tmp_path, step):
  path = _saved(tmp_path, 8, 1)
  leftover = path.rename(tmp_path / 'best/8.replaced')
  half = tmp_path / 'best/8.orbax-checkpoint-tmp'
  half.mkdir()
  for name in ('best', 'best/8', 'best/8.replaced'):
    params, found = checkpoint.read_params(tmp_path / name)
    np.testing.assert_array_equal(params['w'], 1)
    assert found == leftover
  _saved(tmp_path, step, 2)
  assert states.names(tmp_path / 'best') == [str(step)]
  params, found = checkpoint.read_params(leftover.with_name(f'{step}.replaced'))
  assert found.name == str(step)
  np.testing.assert_array_equal(params['w'], 2)


def test_params_of_a_killed_run_stay_when_the_next_save_fails(
  tmp_path, monkeypatch
):
  _saved(tmp_path, 8, 1).rename(tmp_path / 'best/8.replaced')

  async def fail(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', fail)
  with pytest.raises(errors.SaveError, match='No space'):
    _saved(tmp_path, 12, 2)
  params, path = checkpoint.read_params(tmp_path / 'best')
  assert path.name == '8'
  np.testing.assert_array_equal(params['w'], 1)


def test_params_that_cannot_be_moved(tmp_path, monkeypatch):
  _saved(tmp_path, 8, 1)
  gathered = []

  def gather(code, text=''):
    gathered.append(text)
    return [(code, text)]

  def fail(*_):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(params_lib.collective, 'gather', gather)
  monkeypatch.setattr(params_lib.folders, 'move', fail)
  with pytest.raises(
    errors.SaveError, match=r'best/8 could not be replaced: Permission denied'
  ):
    _saved(tmp_path, 8, 2)
  # All processes got the reason before the error was raised.
  assert gathered == ['Permission denied (EACCES)']
  assert states.names(tmp_path / 'best') == ['8']


def test_damaged_params_folders_are_refused(tmp_path):
  path = _saved(tmp_path, 8, 1)
  record = path / 'fingerprints/metadata'
  content = json.loads(record.read_text())
  content['arrays']['params/w']['digest'] = '0' * 16
  record.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=r'best/8 is damaged, .* what was writt'):
    checkpoint.read_params(tmp_path / 'best')


def test_kinds_of_params(tmp_path):
  with pytest.raises(ValueError, match="kind='last' must be 'best' or 'final'"):
    checkpoint.save_params(tmp_path, 'last', 1, {})
