"""Saving and restoring states, and reading parameters out of them."""

import logging as python_logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from absl import logging

from vit_jax import checkpoint, optim, sharding
from vit_jax import config as config_lib
from vit_jax import step as step_lib


def _random(shape, seed):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), 'float32')


def _state(*, polyak=True, seed=0):
  """A state no leaf of which is zero, with bfloat16 first moments."""
  section = config_lib.adam(weight_decay=0.1, clip_norm=1.0)
  section.moment_dtype = 'bfloat16'
  optimizer = optim.build_optimizer(section, lambda step: 0.1)
  params = {
    'embedding': {'kernel': _random((4, 4, 1, 8), seed)},
    'Transformer': {'encoderblock_0': {'bias': _random((8,), seed + 1)}},
  }
  state = step_lib.init_state(params, optimizer, polyak=polyak)
  _, opt_state = optimizer.update(params, state.opt_state, params)
  ema_params = jax.tree.map(lambda x: x / 3, state.ema_params)
  return state.replace(
    step=jnp.int32(7), opt_state=opt_state, ema_params=ema_params
  )


def _abstract(state, mesh):
  everywhere = sharding.replicated(mesh)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
    state,
  )


def _open(workdir, keep=2, keep_every=0):
  return checkpoint.Checkpoints(workdir, keep=keep, keep_every=keep_every)


def _save(workdir, state, steps=(7,), **policy):
  """Saves the state under each of the steps, and waits."""
  checkpoints = _open(workdir, **policy)
  for step in steps:
    checkpoints.save(step, state)
  checkpoints.close()


def _steps(workdir):
  return sorted(p.name for p in (workdir / 'checkpoints').iterdir())


def _assert_bitwise(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  flat, _ = jax.tree_util.tree_flatten_with_path(expected)
  for (path, b), a in zip(flat, jax.tree.leaves(actual), strict=True):
    name = jax.tree_util.keystr(path)
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), name
    assert a.tobytes() == b.tobytes(), name


@pytest.mark.parametrize('polyak', [True, False])
def test_round_trip_is_bitwise(tmp_path, polyak):
  state = _state(polyak=polyak)
  dtypes = {x.dtype.name for x in jax.tree.leaves(state)}
  assert dtypes == {'float32', 'bfloat16', 'int32'}
  _save(tmp_path, state)
  checkpoints = _open(tmp_path)
  assert checkpoints.latest_step == 7
  mesh = sharding.make_mesh(1)
  restored = checkpoints.restore(7, _abstract(state, mesh))
  checkpoints.close()
  _assert_bitwise(restored, state)


@pytest.mark.parametrize(('before', 'after'), [(8, 1), (1, 8), (8, 2)])
def test_restores_onto_another_number_of_devices(tmp_path, before, after):
  state = _state()
  _save(
    tmp_path,
    jax.device_put(state, sharding.replicated(sharding.make_mesh(before))),
  )
  checkpoints = _open(tmp_path)
  mesh = sharding.make_mesh(after)
  restored = checkpoints.restore(7, _abstract(state, mesh))
  checkpoints.close()
  _assert_bitwise(restored, state)
  for leaf in jax.tree.leaves(restored):
    assert leaf.sharding.device_set == set(mesh.devices.flat)


@pytest.mark.parametrize(
  ('keep', 'keep_every', 'kept'),
  [(1, 0, ['6']), (2, 0, ['5', '6']), (1, 2, ['2', '4', '6'])],
)
def test_keeps_the_newest_and_every_nth(tmp_path, keep, keep_every, kept):
  state = {'params': {'w': jnp.ones(2)}}
  _save(tmp_path, state, range(1, 7), keep=keep, keep_every=keep_every)
  assert _steps(tmp_path) == kept


def test_half_written_checkpoint_is_ignored_and_removed(tmp_path):
  _save(tmp_path, _state())
  folder = tmp_path / 'checkpoints'
  for step in (8, 9):
    half = folder / f'{step}.orbax-checkpoint-tmp'
    shutil.copytree(folder / '7', half)
    shutil.rmtree(half / 'default' / 'd')
  assert checkpoint.find(tmp_path).name == '7'
  checkpoints = _open(tmp_path)
  assert checkpoints.latest_step == 7
  checkpoints.save(8, _state())
  checkpoints.close()
  assert _steps(tmp_path) == ['7', '8']


def _plain_state(**params):
  params = {k: jnp.ones(shape) for k, shape in params.items()}
  return step_lib.init_state(params, optax.sgd(0.1), polyak=False)


def test_another_models_state_is_listed_in_full(tmp_path):
  _save(tmp_path, _plain_state(a=(2,), b=(3,), d=(), e=(1,)))
  other = _plain_state(a=(4,), c=(3, 1), d=(), e=(1,))
  checkpoints = _open(tmp_path)
  with pytest.raises(ValueError, match='another --workdir') as error:
    checkpoints.restore(7, _abstract(other, sharding.make_mesh(1)))
  checkpoints.close()
  assert f'{tmp_path}/checkpoints/7' in str(error.value)
  assert (
    '\n  missing (1):\n    params/c (3, 1)'
    '\n  extra (1):\n    params/b (3,)'
    '\n  misshapen (1):\n    params/a is (2,), expected (4,)\n'
  ) in str(error.value)


def test_no_difference_is_the_empty_string():
  assert checkpoint.mismatch({'a': (1,)}, {'a': (1,)}) == ''


@pytest.mark.parametrize('damage', ['_METADATA', 'manifest.ocdbt', 'd'])
def test_damaged_checkpoint_is_an_error(tmp_path, damage):
  # A byte changed in `d`, though, Orbax would not notice.
  state = _state()
  _save(tmp_path, state)
  path = tmp_path / 'checkpoints/7/default' / damage
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  checkpoints = _open(tmp_path)
  with pytest.raises(ValueError, match='checkpoints/7'):
    checkpoints.restore(7, _abstract(state, sharding.make_mesh(1)))
  checkpoints.close()


def test_find(tmp_path):
  run = tmp_path / '3'  # Run directories may be numbers, too.
  for step in ('9', '10', '11.orbax-checkpoint-tmp'):
    (run / 'checkpoints' / step).mkdir(parents=True)
  newest = run / 'checkpoints' / '10'
  assert checkpoint.find(run) == newest
  assert checkpoint.find(str(run / 'checkpoints')) == newest
  assert checkpoint.find(newest) == newest
  assert checkpoint.find(run / 'checkpoints' / '9').name == '9'


@pytest.mark.parametrize(
  ('name', 'found'),
  [
    ('absent', 'the path does not exist'),
    ('checkpoints/12', 'the path does not exist'),
    ('file', 'it is a file'),
    ('5', 'it is a file'),
    ('empty', 'it holds nothing'),
    ('other', r"it holds \['a', 'b'\]"),
  ],
)
def test_find_says_what_is_there_instead(tmp_path, name, found):
  (tmp_path / 'file').write_text('text')
  (tmp_path / '5').write_text('text')
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'other/a').mkdir(parents=True)
  (tmp_path / 'other/b').mkdir()
  with pytest.raises(ValueError, match=f'No checkpoint at .*{name}: {found}'):
    checkpoint.find(tmp_path / name)


@pytest.mark.parametrize('polyak', [True, False])
def test_read_params_prefers_the_average(tmp_path, polyak):
  state = _state(polyak=polyak)
  _save(tmp_path, state)
  params, path = checkpoint.read_params(tmp_path)
  assert path == tmp_path / 'checkpoints' / '7'
  assert all(type(x) is np.ndarray for x in jax.tree.leaves(params))
  _assert_bitwise(params, state.ema_params if polyak else state.params)


def test_read_params_reads_the_named_step(tmp_path):
  for step in (1, 2):
    _save(tmp_path, _state(seed=step), steps=[step])
  params, _ = checkpoint.read_params(tmp_path / 'checkpoints' / '1')
  _assert_bitwise(params, _state(seed=1).ema_params)


def test_read_params_does_not_read_the_optimizer(tmp_path):
  # An array a folder, so that the optimizer's can be taken away.
  path = tmp_path / 'checkpoints' / '7' / 'default'
  state = {'params': {'w': jnp.ones(2)}, 'opt_state': {'m': jnp.ones(2)}}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as writer:
    writer.save(path, args=ocp.args.PyTreeSave(state))
  for chunk in (path / 'opt_state.m').glob('[0-9]*'):
    chunk.unlink()
  params, _ = checkpoint.read_params(tmp_path)
  np.testing.assert_array_equal(params['w'], [1, 1])


def test_read_params_prints_nothing(tmp_path):
  _save(tmp_path, _state())
  records = []
  handler = python_logging.Handler(python_logging.WARNING)
  handler.emit = records.append
  logging.get_absl_logger().addHandler(handler)
  try:
    checkpoint.read_params(tmp_path)
  finally:
    logging.get_absl_logger().removeHandler(handler)
  assert [r.getMessage() for r in records] == []


def test_read_params_of_something_else(tmp_path):
  _save(tmp_path / 'a', {'weights': {'w': jnp.ones(2)}})
  with pytest.raises(ValueError, match=r"no `params`, only \['weights'\]"):
    checkpoint.read_params(tmp_path / 'a')
  (tmp_path / 'b/checkpoints/7').mkdir(parents=True)
  with pytest.raises(ValueError, match='checkpoints/7 is damaged, or not'):
    checkpoint.read_params(tmp_path / 'b')
