"""Guards: a step that is computed twice, and finds a wrong bit."""

import pytest

from tests.tiny_run import assert_same_state, tiny_config
from tests.training import flipping
from vit_jax import checkpoint
from vit_jax.runtime import distributed
from vit_jax.runtime.errors import CorruptionError
from vit_jax.training import train, twice
from vit_jax.workdir import metrics


def _config(every, **changes):
  return tiny_config(
    {
      'total_steps': 6,
      'mesh.data': 8,
      'mesh.fsdp': 1,
      'log.every': 1,
      'checkpoint.every': 2,
      'guard.replay_every': every,
      **changes,
    }
  )


@pytest.mark.parametrize('execution', [0, 1])
@pytest.mark.parametrize('fsdp', [1, 2])
def test_a_flipped_bit_is_found_and_the_device_named(
  tmp_path, monkeypatch, fsdp, execution
):
  flipping.flip(monkeypatch, at=4, device=5, execution=execution)
  config = _config(2, **{'mesh.data': 8 // fsdp, 'mesh.fsdp': fsdp})
  with pytest.raises(CorruptionError) as error:
    train.train_and_evaluate(config, tmp_path)
  text = str(error.value)
  assert text.startswith('Step 4 ')
  assert 'gradient differs on 1 of 8 devices: cpu 5 (process 0' in text
  assert '1 array(s): head/kernel.' in text
  assert error.value.exit_code == 78
  # Nothing of the wrong step is kept.
  assert checkpoint.latest_step(tmp_path) == 2
  assert metrics.read(tmp_path)[-1]['step'] == 3


def test_a_process_that_alone_sees_a_fault_waits_for_no_other(
  tmp_path, monkeypatch
):
  check = twice.Twice.check

  def check_alone(self):
    with monkeypatch.context() as patch:
      patch.delattr(distributed, 'gather')
      check(self)

  monkeypatch.setattr(twice.Twice, 'check', check_alone)
  flipping.flip(monkeypatch, at=4, device=5)
  with pytest.raises(CorruptionError, match='process 0, host '):
    train.train_and_evaluate(_config(2), tmp_path)


def test_where_the_compiler_splits_the_step_only_the_state_tells(
  tmp_path, monkeypatch
):
  # Not the lowest bit, which the optimizer may round away.
  flipping.flip(monkeypatch, at=4, device=5, bit=24)
  config = _config(1, **{'mesh.partition': 'compiler'})
  with pytest.raises(CorruptionError, match='state differs on 8 of 8 devices'):
    train.train_and_evaluate(config, tmp_path)


def test_a_step_that_is_not_due_is_not_checked(tmp_path, monkeypatch):
  flipping.flip(monkeypatch, at=5, device=5)
  train.train_and_evaluate(_config(2), tmp_path)


def test_the_run_goes_on_with_the_second_execution(tmp_path):
  for name, every in (('one', 1), ('three', 3)):
    train.train_and_evaluate(_config(every), tmp_path / name)
  assert_same_state(tmp_path / 'one', tmp_path / 'three')


def test_a_gpu_must_be_deterministic(monkeypatch):
  twice.check_repeatable('tpu')
  with pytest.raises(ValueError, match='--deterministic'):
    twice.check_repeatable('gpu')
  monkeypatch.setenv('XLA_FLAGS', '--xla_gpu_deterministic_ops=true')
  twice.check_repeatable('gpu')
