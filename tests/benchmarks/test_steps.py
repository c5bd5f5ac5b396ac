"""Guards: the timed steps, their configs and their figures."""

import re
import types

import pytest

from benchmarks import steps
from vit_jax import config as config_lib


def test_changed():
  config = config_lib.default()
  found = steps.changed(
    config,
    'model.scan=true,image_size=(32,48),schedule.peak=2,model.remat=full,'
    'accumulation_steps=4,model.qkv_bias=false',
  )
  assert found.model.scan is True
  assert found.model.qkv_bias is False
  assert found.image_size == (32, 48)
  assert found.schedule.peak == 2.0
  assert found.model.remat == 'full'
  assert found.accumulation_steps == 4
  # The original did not change.
  assert config.model.scan is None
  assert config.image_size == (224, 224)


@pytest.mark.parametrize(
  'text',
  [
    *('fast', 'model.scam=true', 'modle.scan=true', 'seed.x=1'),
    *('model.scan=maybe', 'accumulation_steps=two'),
  ],
)
def test_wrong_changes(text):
  with pytest.raises(ValueError, match=re.escape(f'{text!r}: expected KEY=')):
    steps.changed(config_lib.default(), text)


def test_figures_of_steps():
  # ViT-B/16 needs 17.5 GMACs, so training at 100 images/s is 10.5 TFLOP/s.
  h100 = {'batch_size': 200, 'devices': 2, 'forward_macs': 17_500_000_000}
  h100['device_kind'] = 'NVIDIA H100 PCIe'
  facts = {'a': h100, 'b': h100 | {'batch_size': 100, 'device_kind': 'cpu'}}
  found = steps.of_steps({'a': [1.0], 'b': [1.0]}, facts)
  assert found['a']['images_per_sec'] == 200
  assert found['a']['mfu'] == pytest.approx(10.5 / 756)
  assert found['b']['mfu'] is None
  # Twice as long for an image.
  assert found['b']['ratio'] == 2


def test_a_turn_starts_afresh():
  """Each turn begins with a fresh state and runs `warmup` + `steps` steps."""
  calls = []

  def run(state, batch):
    calls.append(state)
    return state + 1, None

  program = types.SimpleNamespace(init_state=lambda: 0)
  timed = steps.Step(program, ({},), run, {})
  assert timed.turn(steps=3, warmup=2) > 0
  timed.turn(steps=1, warmup=0)
  assert calls == [0, 1, 2, 3, 4, 0]
