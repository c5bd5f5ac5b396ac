"""Guards: the checkpoint benchmark times saving, stalls and restoring."""

import time

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from benchmarks.measure import checkpoint, training
from tests.benchmarks import tiny


@pytest.fixture
def one_array(monkeypatch):
  """Replaces the model by an array, which compiles and saves quickly."""

  def state():
    return {'w': jnp.zeros(250_000)}

  made = training.Step(
    init=state,
    make_batch=dict,
    step=jax.jit(lambda state, _: (jax.tree.map(jnp.cos, state), state['w'])),
    abstract_state=jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      state(),
    ),
    batch_size=1,
    devices=1,
    forward_macs=1,
    facts={},
  )
  monkeypatch.setattr(training, 'ours', lambda config: made)


def test_measure(tmp_path, one_array):
  directory = epath.Path(tmp_path / 'saved')
  results = checkpoint.measure(tiny.config(), directory, steps=4, rounds=2)
  assert list(results) == ['none', 'asynchronous', 'waiting']
  none = results['none']
  assert not {'call_sec', 'stall_sec', 'restore_sec'} & set(none)
  loops = {name: r['loop_sec']['values'] for name, r in results.items()}
  for name in ('asynchronous', 'waiting'):
    result = results[name]
    stalls = [a - b for a, b in zip(loops[name], loops['none'], strict=True)]
    assert result['stall_sec'] == pytest.approx(sum(stalls) / 2)
    assert result['ratio'] == pytest.approx(
      result['loop_sec']['median'] / none['loop_sec']['median']
    )
    assert result['call_sec']['median'] <= result['complete_sec']['median']
    assert result['call_sec']['median'] <= result['loop_sec']['median']
    assert result['state_mb'] == pytest.approx(1)
    assert result['saved_mb_per_sec'] == pytest.approx(
      result['state_mb'] / result['complete_sec']['median']
    )
    assert result['restore_sec']['count'] == 2
  assert not directory.exists()


def test_only_one_mode_waits(tmp_path, one_array, monkeypatch):
  wait = checkpoint.checkpoint_lib.Checkpoints.wait
  waited = []

  def slow_wait(self):
    waited.append(self)
    time.sleep(0.2)
    wait(self)

  monkeypatch.setattr(checkpoint.checkpoint_lib.Checkpoints, 'wait', slow_wait)
  step = training.ours(None)
  directory = epath.Path(tmp_path / 'saved')
  found = {}
  for mode in checkpoint.MODES:
    found[mode] = checkpoint.turn(step, directory, mode, 4), len(waited)
    waited.clear()
  none, asynchronous, waiting = (calls for _, calls in found.values())
  assert (none, waiting) == (0, asynchronous + 1)
  assert 0.2 < found['waiting'][0]['call_sec'] < found['waiting'][0]['loop_sec']


def test_keeps_what_is_there(tmp_path, one_array):
  (tmp_path / 'precious').write_text('')
  with pytest.raises(ValueError, match='exists, but it will be filled'):
    checkpoint.measure(tiny.config(), epath.Path(tmp_path), steps=2, rounds=1)
  assert (tmp_path / 'precious').exists()
