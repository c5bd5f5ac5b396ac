"""How XLA compiles: programs kept on disk, and a GPU that repeats itself.

XLA's programs for CPU and TPU add in one order, so that a run repeats bitwise.
Those for GPU may add in the order in which threads arrive, unless they are told
not to.
"""

import importlib.util
import os

import jax
from etils import epath
from jax.experimental.compilation_cache import compilation_cache

_OPTION = '--xla_gpu_deterministic_ops=true'
# JAX's plugins for NVIDIA and AMD; others' compilers may not know the option.
_PLUGINS = (
  *('jax_cuda12_plugin', 'jax_cuda13_plugin'),
  *('jax_rocm60_plugin', 'jax_rocm7_plugin'),
)


def make_deterministic() -> bool:
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


def keep(directory: epath.PathLike) -> None:
  """Keeps what is compiled from now on, and looks there first.

  JAX keeps programs that take longer than a second to compile; an entry's name
  depends on the program, the devices and JAX's version, so that a directory may
  be shared by any number of runs.

  Args:
    directory: is made if need be; may be on `gs://`.
  """
  path = str(directory)
  if jax.config.jax_compilation_cache_dir == path:
    return
  jax.config.update('jax_compilation_cache_dir', path)
  # JAX decides at the first compilation, which came before.
  compilation_cache.reset_cache()
