"""Makes a GPU compute the same thing twice, where that is asked for.

XLA's programs for CPU and TPU add in one order, so that a run repeats bitwise;
those for GPU may add in the order in which threads come, unless they are told
not to.
"""

import importlib.util
import os

_OPTION = '--xla_gpu_deterministic_ops=true'
# JAX's plugins for NVIDIA and AMD; others' compilers may not know the option.
_PLUGINS = (
  *('jax_cuda12_plugin', 'jax_cuda13_plugin'),
  *('jax_rocm60_plugin', 'jax_rocm7_plugin'),
)


def ask_for() -> bool:
  """Sets XLA's option, if there is a plugin for GPUs.

  To be called before JAX first uses a device. Processes that are started from
  here have it, too.

  Returns:
    Whether there is one.
  """
  if not any(map(importlib.util.find_spec, _PLUGINS)):
    return False
  flags = os.environ.get('XLA_FLAGS', '').split()
  if _OPTION not in flags:
    os.environ['XLA_FLAGS'] = ' '.join([*flags, _OPTION])
  return True
