"""Scaling ViTs: the largest models, on the largest data (arXiv:2106.04560).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/scaling.py:g/14,data=jft300m \\
        --config.data.dataset=SPEC

Adafactor with a momentum in bfloat16 takes half of Adam's memory. The rate
falls with the root of the steps, so that any step can begin the cooldown, which
takes the last 50,000. The models are g/14, G/14 and So400m/14 (arXiv:2305.13035
has its shape). The authors trained on JFT-3B, which is private, so there is no
accuracy to expect on other data.

Data of your own: only with tens of millions of images.

Differs from big_vision (proj/scaling_laws): it decays the head's weights 100
times as much as others, the paper 3 against 0.03; here all have 0.03.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'scaling')
  config = base.build(
    args,
    epochs=0.0,
    batch_size=16_384,
    model={'pooling': 'map', 'head_bias': -10.0, 'scan': True},
    keys={
      'loss': config_lib.sigmoid(),
      'optimizer': config_lib.optimizer(
        'adafactor',
        weight_decay_rate=0.03,
        weight_decay_params='kernels',
        momentum=0.9,
        dtype_momentum='bfloat16',
        min_dim_size_to_factor=32,
        multiply_by_parameter_scale=False,
        clipping_threshold=0.0,
        clip_norm=1.0,
      ),
      'schedule': config_lib.schedule(
        'rsqrt',
        peak=8e-4,
        warmup_steps=10_000,
        timescale=10_000,
        cooldown_steps=50_000,
      ),
    },
  )
  if not config.epochs:
    config.total_steps = 1_000_000
  return config
