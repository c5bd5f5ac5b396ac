"""What is best on each platform, for the values that a config leaves open.

Measurements and their dates are in LOG.md.
"""

import jax
import ml_collections

from vit_jax import models

# Values of `config.model` by platform. Each is exact to the rounding of its
# dtype, and any of them runs everywhere but 'cudnn', which needs a GPU.
MODEL_DEFAULTS = {
  'tpu': {'dtype': 'bfloat16', 'attention_implementation': 'lanes'},
  'gpu': {'dtype': 'bfloat16', 'attention_implementation': 'plain'},
  'cpu': {'dtype': 'float32', 'attention_implementation': 'plain'},
}


def fill_in(
  config: ml_collections.ConfigDict, platform: str | None = None
) -> None:
  """Sets the open values of a config's model, in place.

  Args:
    config: a value is open if it is 'auto' or not set.
    platform: 'tpu', 'gpu' or 'cpu'; None is JAX's here.
  """
  platform = platform or jax.default_backend()
  known = models.options(config.model.name)
  for key, value in MODEL_DEFAULTS[platform].items():
    if key in known and config.model[key] in (None, 'auto'):
      config.model[key] = value
