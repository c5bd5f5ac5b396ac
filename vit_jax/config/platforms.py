"""The best values on each platform, for the keys that a config leaves open.

LOG.md has the measurements behind them.
"""

import os

import flax.linen as nn
import jax
from absl import logging

from vit_jax.models import attention as attention_lib

# The best dtype and attention on each platform. Every attention is exact up to
# the rounding of its dtype.
DTYPES = {'tpu': 'bfloat16', 'gpu': 'bfloat16', 'cpu': 'float32'}
ATTENTION = {'tpu': 'lanes', 'gpu': 'cudnn', 'cpu': 'plain'}
# The TPU compiler's options for a training step. Parameters are gathered while
# the device computes with those that have arrived: 1 to 10% of a step on v3. On
# v6e, this option changes nothing.
_TPU_OPTIONS = {'xla_enable_async_all_gather': 'true'}
# What a fusion may use of the 128 MiB beside a core of v5e and v6e. With
# libtpu's 16 MiB, products read their factors more often.
_FAST_MEMORY = {'xla_tpu_scoped_vmem_limit_kib': 64 * 2**10}
_LARGE_FAST_MEMORY = ('TPU v5 lite', 'TPU v5e', 'TPU v6 lite', 'TPU v6e')


def defaults(
  model: nn.Module,
  platform: str | None = None,
  dtype: str = 'auto',
) -> dict[str, str]:
  """Returns a model's best values of the keys that the platform decides.

  Args:
    model: see `models.build`.
    platform: 'tpu', 'gpu' or 'cpu'; None is JAX's default. `cudnn` is tried if
      that is the platform of this process.
    dtype: 'auto', or a dtype that is given.

  Returns:
    dtype, and attention_implementation if the model has such a key.
  """
  here = platform in (None, jax.default_backend())
  platform = platform or jax.default_backend()
  if platform not in DTYPES:  # Any other backend is an accelerator, too.
    platform = 'gpu'
  found = {'dtype': DTYPES[platform] if dtype == 'auto' else dtype}
  if not hasattr(model, 'attention_implementation'):
    return found
  attention = ATTENTION[platform]
  if attention == 'cudnn':
    width = model.width // model.heads
    reason = attention_lib.why_not_cudnn(found['dtype'], width, here=here)
    if reason:
      attention = 'plain'
      logging.warning(
        "The attention of cuDNN does not run, so 'plain' is used, which takes"
        ' more time and memory: %s',
        reason,
      )
  return found | {'attention_implementation': attention}


def compiler_options(mesh: jax.sharding.Mesh) -> dict[str, str | int]:
  """Returns the compiler's options for a training step.

  What the environment sets stays as it is there.

  Args:
    mesh: the devices.
  """
  device = mesh.local_devices[0]
  if device.platform != 'tpu':
    return {}
  options = _TPU_OPTIONS
  if device.device_kind in _LARGE_FAST_MEMORY:
    options = options | _FAST_MEMORY
  given = os.environ.get('LIBTPU_INIT_ARGS', '')
  return {name: v for name, v in options.items() if name not in given}
