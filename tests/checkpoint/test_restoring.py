"""Guards: a restore is bitwise, works on other devices, and skips damage."""

import json
import random
import shutil

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.checkpoint import states
from vit_jax import checkpoint
from vit_jax.training import step as step_lib


@pytest.mark.parametrize(
  ('before', 'after'), [((8, True), (1, False)), ((1, False), (4, True))]
)
def test_restores_onto_other_devices(tmp_path, before, after):
  state = states.train_state()
  dtypes = {x.dtype.name for x in jax.tree.leaves(state)}
  assert dtypes == {'float32', 'bfloat16', 'int32'}
  states.save(tmp_path, states.put(state, before[0], split=before[1]))
  target = states.abstract(state, after[0], split=after[1])
  restored, _ = checkpoint.restore_newest(tmp_path, target)
  states.assert_bitwise(restored, state)
  for x, y in zip(
    jax.tree.leaves(restored), jax.tree.leaves(target), strict=True
  ):
    assert x.sharding == y.sharding


def test_zeros_keep_their_sign(tmp_path):
  # Orbax does not store chunks that equal its fill value, 0.0.
  state = {'params': {'w': jnp.full(8, -0.0), 'v': jnp.zeros(8)}}
  states.save(tmp_path, state)
  restored, _ = checkpoint.restore_newest(tmp_path, states.abstract(state))
  states.assert_bitwise(restored, state)


def test_another_models_state_is_listed_in_full(tmp_path):
  states.save(tmp_path, states.plain_state(a=(2,), b=(3,), d=(), e=(1,)))
  other = states.plain_state(a=(4,), c=(3, 1), d=(), e=(1,))
  other.params['e'] = other.params['e'].astype('bfloat16')
  with pytest.raises(ValueError, match='another --workdir') as error:
    checkpoint.restore_newest(tmp_path, states.abstract(other))
  assert f'{tmp_path}/checkpoints/7' in str(error.value)
  assert (
    '\n  missing (1):\n    params/c (3, 1) float32'
    '\n  extra (1):\n    params/b (3,) float32'
    '\n  different (2):\n    params/a is (2,) float32, expected (4,) float32'
    '\n    params/e is (1,) float32, expected (1,) bfloat16\n'
  ) in str(error.value)
  assert states.names(tmp_path) == ['checkpoints']


def test_another_optimizer_without_arrays_is_listed_too(tmp_path):
  state = states.plain_state(a=(2,))
  states.save(tmp_path, state, [3, 7])
  longer = optax.chain(optax.identity(), optax.identity(), optax.sgd(0.1))
  other = step_lib.init_state(state.params, longer, polyak=False)
  with pytest.raises(ValueError, match=r'missing .*\n.*opt_state/2/0 without'):
    checkpoint.restore_newest(tmp_path, states.abstract(other))
  assert states.names(tmp_path / 'checkpoints') == ['3', '7']


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A run with checkpoints 4 and 8, and their states."""
  workdir = tmp_path_factory.mktemp('saved')
  both = {step: states.train_state(seed=step) for step in (4, 8)}
  for step, state in both.items():
    states.save(workdir, states.put(state, 8, split=True), [step])
  return workdir, both


@pytest.fixture
def run(saved, tmp_path):
  shutil.copytree(saved[0], tmp_path / 'run')
  return tmp_path / 'run'


def _flip(path, count):
  """Flips bits in the middle of a file."""
  content = bytearray(path.read_bytes())
  for index in range(count):
    content[(len(content) // 2 + index) % len(content)] ^= 0x10
  path.write_bytes(content)


def _largest(folder):
  return max((folder / 'default/d').iterdir(), key=lambda p: p.stat().st_size)


def _edit_record(step, **values):
  path = step / 'fingerprints/metadata'
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


DAMAGE = {
  'truncated': lambda step: _largest(step).write_bytes(b'abc'),
  'deleted': lambda step: _largest(step).unlink(),
  'no arrays': lambda step: shutil.rmtree(step / 'default'),
  'manifest': lambda step: _flip(step / 'default/manifest.ocdbt', 1),
  'record': lambda step: _flip(step / 'fingerprints/metadata', 1),
  'record, not text': lambda step: (step / 'fingerprints/metadata').write_bytes(
    b'\xff'
  ),
  'record edited': lambda step: _edit_record(step, arrays={}),
  'no record': lambda step: shutil.rmtree(step / 'fingerprints'),
  'empty': lambda step: (shutil.rmtree(step), step.mkdir()),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_falls_back_from_damage(run, saved, caplog, damage):
  _, both = saved
  DAMAGE[damage](run / 'checkpoints/8')
  target = states.abstract(both[4], 8, split=True)
  restored, step = checkpoint.restore_newest(run, target)
  assert step == 4
  states.assert_bitwise(restored, both[4])
  (line,) = (r.getMessage() for r in caplog.records if r.levelname == 'ERROR')
  assert line.startswith(f'The checkpoint {run}/checkpoints/8 is damaged: ')
  assert states.names(run / 'checkpoints') == ['4']
  assert states.names(run / 'damaged_checkpoints') == ['8']


def test_a_missing_array_is_damage(run, saved, caplog):
  path = run / 'checkpoints/8/default/_METADATA'
  metadata = json.loads(path.read_text())
  entry = metadata['tree_metadata']["('ema_params', 'embedding', 'kernel')"]
  entry['value_metadata'] |= {'value_type': 'None', 'skip_deserialize': True}
  path.write_text(json.dumps(metadata))
  assert checkpoint.read_params(run)[1].name == '4'
  assert '1 of 2 arrays differ or are missing: ema_params/' in caplog.text
  target = states.abstract(saved[1][4])
  assert checkpoint.restore_newest(run, target)[1] == 4
  assert '1 of 11 arrays differ or are missing: ema_params/' in caplog.text


def test_random_damage_never_gives_wrong_values(run, saved):
  rng = random.Random(0)
  _, both = saved
  target = states.abstract(both[4], 8, split=True)
  files = sorted(
    p.relative_to(run) for p in run.rglob('*') if p.is_file() and '8' in p.parts
  )
  assert len(files) > 8
  for file in files:
    shutil.rmtree(run)
    shutil.copytree(saved[0], run)
    content = bytearray((run / file).read_bytes())
    for _ in range(4):
      if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (run / file).write_bytes(content)
    restored, step = checkpoint.restore_newest(run, target)
    states.assert_bitwise(restored, both[step])
    assert (step == 4) == (run / 'damaged_checkpoints/8').exists(), file


def test_a_step_is_saved_again_after_it_was_set_aside(run, saved):
  _, both = saved
  target = states.abstract(both[4])
  for expected in (['8'], ['8', '8-2']):
    DAMAGE['deleted'](run / 'checkpoints/8')
    state, step = checkpoint.restore_newest(run, target)
    assert step == 4
    checkpoints = checkpoint.Checkpoints(run, keep=2, keep_every=0)
    assert checkpoints.latest_step == 4
    checkpoints.save(8, state)
    checkpoints.close()
    assert checkpoints.latest_step == 8
    assert states.names(run / 'damaged_checkpoints') == expected
    assert states.names(run / 'checkpoints') == ['4', '8']
  restored, step = checkpoint.restore_newest(run, target)
  assert step == 8
  states.assert_bitwise(restored, both[4])


def test_no_intact_checkpoint_is_an_error(run, saved):
  _, both = saved
  DAMAGE['deleted'](run / 'checkpoints/4')
  DAMAGE['record'](run / 'checkpoints/8')
  with pytest.raises(ValueError, match='is intact') as error:
    checkpoint.restore_newest(run, states.abstract(both[4]))
  lines = str(error.value).splitlines()
  assert 'checkpoints/8 is damaged: fingerprints/metadata is not' in lines[1]
  assert 'checkpoints/4 is damaged: ' in lines[2]
  assert '--restart' in lines[3]
  # Otherwise the next start would silently train from scratch.
  assert states.names(run / 'checkpoints') == ['4', '8']
