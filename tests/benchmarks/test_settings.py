"""Guards: text overrides config keys; classes and steps need no data."""

import re

import pytest

from benchmarks.measure import settings
from vit_jax import config as config_lib


def test_override():
  config = config_lib.default()
  found = settings.override(
    config,
    'model.scan=true,image_size=(32,48),schedule.peak=2,model.remat=full,'
    'accumulation_steps=4,model.patch_size=8',
  )
  assert found.model.scan is True
  assert found.image_size == (32, 48)
  assert found.schedule.peak == 2.0
  assert found.model.remat == 'full'
  assert found.accumulation_steps == 4
  assert found.model.patch_size == (8,)
  # The original did not change.
  assert config.model.scan is None
  assert config.image_size == (224, 224)


@pytest.mark.parametrize(
  'text, message',
  [
    ('fast', "'fast' in 'fast' must be KEY=VALUE"),
    ('model.scam=true', "no key 'scam' in model; its keys: attention,"),
    ('modle.scan=true', "no key 'modle' in the config"),
    ('seed.x=1', "no key 'x' in seed; its keys: none"),
    ('model.scan=maybe', 'takes a value of type bool'),
    ('accumulation_steps=two', 'takes a value of type int'),
    ('image_size=(1', "'image_size=(1': the key takes a value of type tuple"),
  ],
)
def test_wrong_override(text, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    settings.override(config_lib.default(), text)
