"""Which compiler makes a plan's figures, and whether it is the tested one."""

import functools
import importlib.util
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging
from packaging.markers import default_environment
from packaging.requirements import Requirement

from vit_jax.runtime import installed, shipped

# What was tested, and what slices get.
LOCK = 'launch/locks/tpu.txt'
_NAMES = ('jax', 'jaxlib', 'libtpu')


def libtpu() -> str | None:
  """The TPU compiler's version; of one that is no package, where it lies."""
  path, spec = os.environ.get('TPU_LIBRARY_PATH'), _package()
  # JAX sets it itself, to the package's.
  if path and not (spec and pathlib.Path(path).is_relative_to(spec)):
    return f'of TPU_LIBRARY_PATH={path}'
  return installed.versions().get('libtpu')


def _package() -> pathlib.Path | None:
  """The folder of the package libtpu, which is not imported."""
  spec = importlib.util.find_spec('libtpu')
  return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def locked(text: str, python: str | None = None) -> dict[str, str]:
  """Name -> version that a lock file has for a Python.

  Args:
    text: of the file.
    python: such as `3.12.1`; None is this one.
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
def difference() -> str | None:
  """A sentence if other versions than the lock file's make the figures.

  Returns:
    None if they are the same, or there is no lock file, as in a copy of this
    package alone.
  """
  try:
    wanted = locked(shipped.path(LOCK).read_text())
  except FileNotFoundError:
    return None
  have = installed.versions() | {'libtpu': libtpu() or 'none'}
  others = [
    f'{name} {have.get(name)} (tested: {wanted[name]})'
    for name in _NAMES
    if name in wanted and have.get(name) != wanted[name]
  ]
  if not others:
    return None
  return (
    f'Another compiler than the tested one makes these figures:'
    f' {", ".join(others)}. pip install -r'
    f' {os.path.relpath(shipped.path(LOCK))} gets that.'
  )


def warn() -> None:
  """Logs `difference`, if there is one."""
  if text := difference():
    logging.warning('%s', text)


def named(figures: Mapping[str, Any]) -> str:
  """What compiled a plan's figures, such as `libtpu 0.0.50, jax 0.12.0`.

  Args:
    figures: see `as_json.figures` and `measure.figures`; earlier ones than this
      version's do not say it.

  Returns:
    '' where nothing was compiled.
  """
  libtpu, backend = figures.get('libtpu'), figures.get('backend')
  if libtpu:
    return f'libtpu {libtpu}, jax {figures["jax"]}'
  if backend:
    return f'{backend} ({figures["runtime"]}), jax {figures["jax"]}'
  return ''
