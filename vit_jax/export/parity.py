"""Compares the logits of all exported forms with the checkpoint's.

Axes: B images, K classes.
"""

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np
from etils import epath

from vit_jax import images as images_lib
from vit_jax.export.program import Program
from vit_jax.runtime import text_table

_BATCH = 8


class Row(NamedTuple):
  """How one form compares.

  Attributes:
    form: its name.
    difference: the largest difference of a logit from the checkpoint's.
    allowed: the largest difference that is accepted.
  """

  form: str
  difference: float
  allowed: float

  @property
  def passed(self) -> bool:
    return self.difference <= self.allowed  # Not for NaN.


def images(
  program: Program, count: int, paths: tuple[str, ...] = ()
) -> np.ndarray:
  """Returns images to compare on, uint8 [B, height, width, channels].

  Args:
    program: gives the size of the images, and prepares those of a folder.
    count: how many at most.
    paths: image files, or folders of them; those that cannot be read are left
      out. If there are none, the images are random pixels.
  """
  if not paths:
    shape = (count, *program.loaded.image_size, program.loaded.channels)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)
  found = images_lib.from_paths(images_lib.find(paths)[:count])
  return found.read(program.loaded.preprocess)[0]


def compare(
  program: Program,
  folder: epath.Path,
  forms: Mapping[str, ModuleType],
  pixels: np.ndarray,
) -> list[Row]:
  """Runs each form on the same images.

  Args:
    program: the checkpoint.
    folder: where the forms were written.
    forms: the forms to compare, by name.
    pixels: uint8 [B, height, width, channels].
  """

  def logits(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    starts = range(0, len(pixels), _BATCH)
    return np.concatenate([function(pixels[i : i + _BATCH]) for i in starts])

  apply = jax.jit(program.apply)
  expected = logits(lambda part: apply(program.loaded.params, part))
  scale = max(1.0, float(np.abs(expected).max()))
  rows = []
  for name, form in forms.items():
    found = logits(functools.partial(form.logits, folder))
    difference = float(np.abs(found - expected).max())
    rows.append(Row(name, difference, form.TOLERANCE * scale))
  return rows


def table(rows: list[Row]) -> str:
  """Returns the comparison as text."""
  lines = [('form', 'from checkpoint', 'allowed', '')]
  for row in rows:
    numbers = (f'{x:.1e}' for x in (row.difference, row.allowed))
    lines.append((row.form, *numbers, 'ok' if row.passed else 'DIFFERS'))
  return text_table.aligned(lines)
