"""Compares the logits of all exported forms with the checkpoint's.

Axes: B images, K classes.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np
from etils import epath

from vit_jax import loaded
from vit_jax.export.program import Program

_BATCH = 8


class Row(NamedTuple):
  """How one form compares.

  Attributes:
    form: its name.
    difference: the largest difference of a logit from the checkpoint's.
    others: the largest difference from any other form.
    allowed: the largest difference that is accepted.
  """

  form: str
  difference: float
  others: float
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
    paths: image files, or folders of them; if there are none, the images are
      random pixels.
  """
  if not paths:
    shape = (count, *program.loaded.image_size, program.channels)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)
  found = loaded.find_images(paths)[:count]
  return loaded.read_images(found, program.loaded.preprocess)


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

  def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())

  apply = jax.jit(program.apply)
  expected = logits(lambda part: apply(program.loaded.params, part))
  found = {
    name: logits(lambda part, form=form: form.logits(folder, part))
    for name, form in forms.items()
  }
  scale = max(1.0, float(np.abs(expected).max()))
  return [
    Row(
      name,
      difference(found[name], expected),
      max(difference(found[name], other) for other in found.values()),
      form.TOLERANCE * scale,
    )
    for name, form in forms.items()
  ]


def table(rows: list[Row]) -> str:
  """Returns the comparison as text."""
  lines = [
    f'{"form":<12} {"from checkpoint":>16} {"from others":>12} {"allowed":>9}',
  ]
  for row in rows:
    lines.append(
      f'{row.form:<12} {row.difference:>16.1e} {row.others:>12.1e}'
      f' {row.allowed:>9.1e}  {"ok" if row.passed else "DIFFERS"}'
    )
  return '\n'.join(lines)
