"""Names the compiler of a plan and compares it with the tested version."""

import functools
import importlib.util
import os
import pathlib
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging
from packaging.markers import default_environment
from packaging.requirements import Requirement

from vit_jax.runtime import installed

# Platform -> the file of the versions that were tested and that are installed
# on slices and GPUs.
LOCKS = {'tpu': 'launch/locks/tpu.txt', 'gpu': 'launch/locks/cuda.txt'}
_NAMES = {
  'tpu': ('jax', 'jaxlib', 'libtpu'),
  'gpu': ('jax', 'jaxlib', 'jax-cuda13-plugin'),
}


def libtpu() -> str | None:
  """Returns the TPU compiler's version, or its path if it is not a package."""
  path, package = os.environ.get('TPU_LIBRARY_PATH'), _package()
  # JAX itself sets the variable to the package's library.
  if path and not (package and pathlib.Path(path).is_relative_to(package)):
    return f'of TPU_LIBRARY_PATH={path}'
  return installed.versions().get('libtpu')


def _package() -> pathlib.Path | None:
  """Returns the folder of the package libtpu without importing it."""
  spec = importlib.util.find_spec('libtpu')
  return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def locked(text: str, python: str | None = None) -> dict[str, str]:
  """Returns name -> version from a lock file, for one Python version.

  Args:
    text: the content of the file.
    python: a version such as `3.12.1`; None for the running one.
  """
  place = default_environment()
  if python:
    place |= {'python_full_version': python}
  found = {}
  for line in text.splitlines():
    if not line or line.startswith('#'):
      continue
    entry = Requirement(line)
    if entry.marker is None or entry.marker.evaluate(place):
      [pin] = entry.specifier
      found[entry.name] = pin.version
  return found


@functools.cache
def difference(platform: str = 'tpu') -> str | None:
  """Compares the installed compiler with the lock file's versions.

  Args:
    platform: a key of LOCKS.

  Returns:
    A sentence on the differences. None if there are none, or no lock file, as
    in a copy of this package alone.
  """
  try:
    wanted = locked(installed.path(LOCKS[platform]).read_text())
  except FileNotFoundError:
    return None
  have = installed.versions()
  if platform == 'tpu':
    have |= {'libtpu': libtpu() or 'none'}
  others = [
    f'{name} {have.get(name, "none")} (tested: {wanted[name]})'
    for name in _NAMES[platform]
    if name in wanted and have.get(name) != wanted[name]
  ]
  if not others:
    return None
  return (
    f'The compiler of these figures is not the tested one:'
    f' {", ".join(others)}. Install the tested one with pip install -r'
    f' {shlex.quote(os.path.relpath(installed.path(LOCKS[platform])))}.'
  )


def warn(platforms: Iterable[str]) -> None:
  """Logs the `difference` of each platform, if there is one."""
  for platform in sorted(platforms):
    if text := difference(platform):
      logging.warning('%s', text)


def named(figures: Mapping[str, Any]) -> str:
  """Names the compiler of a plan, such as `libtpu 0.0.50, jax 0.12.0`.

  Args:
    figures: see `as_json.figures` and `measure.figures`. Files from earlier
      versions do not name the compiler.

  Returns:
    The name; '' if nothing was compiled or the compiler is not named.
  """
  libtpu, backend = figures.get('libtpu'), figures.get('backend')
  plugin = figures.get('gpu_compiler')
  if libtpu:
    return f'libtpu {libtpu}, jax {figures["jax"]}'
  if plugin:
    return f'{plugin}, jax {figures["jax"]}'
  if backend:
    return f'{backend} ({figures["runtime"]}), jax {figures["jax"]}'
  return ''
