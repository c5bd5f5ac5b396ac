"""XLA's settings: the compilation cache, and deterministic GPU programs.

On CPU and TPU, XLA's programs add numbers in a fixed order, so a run repeats
bitwise. On GPU they may add in the order in which threads arrive, unless an
option forbids that.
"""

import os

import jax
from etils import epath
from jax.experimental.compilation_cache import compilation_cache


def make_deterministic() -> None:
  """Makes XLA's programs for GPUs deterministic; other devices ignore it.

  Call this before JAX first uses a device. Child processes inherit the option.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  os.environ['XLA_FLAGS'] = f'{flags} --xla_gpu_deterministic_ops=true'.strip()


def keep(directory: epath.PathLike) -> None:
  """Makes JAX cache compiled programs in `directory` from now on.

  JAX caches only programs that take more than a second to compile. The name of
  an entry depends on the program, the devices and JAX's version, so any number
  of runs can share a directory.

  Args:
    directory: created if it does not exist; may be on `gs://`.
  """
  jax.config.update('jax_compilation_cache_dir', str(directory))
  # JAX reads the option only at its first compilation, which may be over.
  compilation_cache.reset_cache()
