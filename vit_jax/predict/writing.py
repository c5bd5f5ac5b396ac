"""Writes predictions as they come: a table, JSON lines, or a CSV file."""

import contextlib
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from vit_jax.interop import weight_files
from vit_jax.predict.predictions import Predictions

# The table's longest name of an image; of longer ones, the end is shown.
_LONGEST = 48
_LONGEST_CLASS = 20
_COLUMNS = ('image', 'rank', 'class', 'index', 'probability', 'error')


class Writer:
  """Prints predictions, and writes them to a CSV file if there is one."""

  def __init__(
    self, names: Sequence[str], top: int, as_json: bool, table: TextIO | None
  ):
    self._width = min(_LONGEST, max(map(len, names)))
    self._top = top
    self._json = as_json
    self._csv = None
    if table is not None:
      self._csv = csv.DictWriter(table, _COLUMNS, lineterminator='\n')
      self._csv.writeheader()

  def __call__(self, predictions: Predictions) -> None:
    """Writes the most probable classes of each image, at once."""
    best = predictions.best(self._top)
    self._wide = min(_LONGEST_CLASS, max(map(len, predictions.class_names)))
    for name, found in zip(predictions.names, best, strict=True):
      if self._json:
        print(json.dumps({'image': name, 'predictions': found}))
      else:
        words = (
          f'{c["probability"]:6.1%} {c["class"][: self._wide]:<{self._wide}}'
          for c in found
        )
        print(f'{self._short(name)}  {"  ".join(words)}'.rstrip())
      if self._csv:
        self._csv.writerows(
          {'image': name, 'rank': rank, **one}
          for rank, one in enumerate(found, start=1)
        )
    sys.stdout.flush()

  def problem(self, name: str, reason: str) -> None:
    """Writes that an image cannot be read; the table leaves it out."""
    if self._json:
      print(json.dumps({'image': name, 'error': reason}))
    if self._csv:
      self._csv.writerow({'image': name, 'error': reason})

  def _short(self, name: str) -> str:
    if len(name) > self._width:
      name = '...' + name[3 - self._width :]
    return name.ljust(self._width)


@contextlib.contextmanager
def opened(
  names: Sequence[str], top: int, as_json: bool, table: str | None
) -> Iterator[Writer]:
  """Yields a writer for images with these names.

  Args:
    names: the names of all images.
    top: how many classes to name for each image.
    as_json: whether to print JSON objects, one on each line.
    table: the CSV file, replaced if it exists; None writes none.
  """
  if table is None:
    yield Writer(names, top, as_json, None)
    return
  path = weight_files.absolute(table)
  if path.is_dir():
    raise ValueError(f'--csv={table} is a directory, expected a file.')
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('w') as file:
    yield Writer(names, top, as_json, file)
