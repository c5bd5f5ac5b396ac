"""The best values on each platform, for the keys that a config leaves open.

LOG.md has the measurements behind them.
"""

import jax
import ml_collections

from vit_jax import models

# Values by platform and section. Every attention implementation is exact up to
# the rounding of its dtype; `dot_product.check` checks the requirements of
# 'splash' and 'cudnn'.
DEFAULTS = {
  'tpu': {
    'model': {'dtype': 'bfloat16', 'attention_implementation': 'lanes'},
  },
  'gpu': {
    'model': {'dtype': 'bfloat16', 'attention_implementation': 'plain'},
  },
  'cpu': {
    'model': {'dtype': 'float32', 'attention_implementation': 'plain'},
  },
}


def fill_in(
  config: ml_collections.ConfigDict, platform: str | None = None
) -> None:
  """Sets the values that a config leaves open, in place.

  Args:
    config: a value is open if it is 'auto' or not set.
    platform: 'tpu', 'gpu' or 'cpu'; None is JAX's default.
  """
  platform = platform or jax.default_backend()
  options = models.options(config.model.name)
  # Any other backend is an accelerator, too.
  defaults = DEFAULTS.get(platform, DEFAULTS['gpu'])
  for section, values in defaults.items():
    for key, value in values.items():
      known = section != 'model' or key in options
      if known and config[section][key] in (None, 'auto'):
        config[section][key] = value
