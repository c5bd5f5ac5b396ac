"""Compiled programs kept on disk, so that a restart need not compile anew."""

import jax
from etils import epath
from jax.experimental.compilation_cache import compilation_cache


def enable(directory: epath.PathLike) -> None:
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
