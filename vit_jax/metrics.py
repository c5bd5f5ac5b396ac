"""Where a run's numbers go: `metrics.jsonl` and TensorBoard."""

import json
import math
import os
from collections.abc import Mapping

import jax
import tensorboardX
from absl import logging
from etils import epath

from vit_jax import json_text

FILE = 'metrics.jsonl'


def read(workdir: epath.PathLike) -> list[dict[str, float]]:
  """The lines of a run's `metrics.jsonl`, oldest first; [] if there is none.

  A line that is cut off or damaged is left out, with a warning unless it is the
  last one, at which a process may have died.
  """
  path = epath.Path(workdir) / FILE
  if not path.exists():
    return []
  rows = []
  text = path.read_bytes().decode(errors='replace')
  lines = text.splitlines(keepends=True)
  for number, line in enumerate(lines, start=1):
    try:
      if line.endswith('\n'):
        rows.append(_parse(line))
    except ValueError as error:
      logging.warning('%s, line %d, is left out: %s', path, number, error)
  return rows


def _can_append(path: epath.Path) -> bool:
  """Whether a file can grow; in object stores opening it starts it anew."""
  return '://' not in os.fspath(path)


def _parse(line: str) -> dict[str, float]:
  row = json_text.loads(line)
  if (
    not isinstance(row, dict)
    or type(row.get('step')) is not int
    or any(type(value) not in (int, float) for value in row.values())
  ):
    raise ValueError('it is no row of numbers with a step.')
  return row


class MetricWriter:
  """Appends named numbers to the work directory; silent on other hosts.

  Object stores such as `gs://` cannot append: there the whole file is written
  anew, which is fine at the pace of a line every few seconds.
  """

  def __init__(
    self, workdir: epath.PathLike, *, start_step: int, tensorboard: bool
  ):
    """Opens the files, dropping lines past the step the run resumes from.

    Args:
      workdir: an existing directory.
      start_step: what was logged after this step is about to be repeated.
      tensorboard: whether to write event files too.
    """
    self._active = jax.process_index() == 0
    self._path = epath.Path(workdir) / FILE
    self._board = None
    if not self._active:
      return
    rows = read(workdir)
    kept = [row for row in rows if row['step'] <= start_step]
    text = ''.join(json.dumps(row) + '\n' for row in kept)
    # What the file holds, where it must be written as a whole.
    self._text = None if _can_append(self._path) else text
    if self._text is None:
      temporary = self._path.with_name(FILE + '.tmp')
      temporary.write_text(text)
      temporary.replace(self._path)
    else:
      self._path.write_text(text)
    if tensorboard:
      self._board = tensorboardX.SummaryWriter(
        str(workdir), purge_step=start_step + 1 if rows else None
      )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes one line, on disk when this returns. NaN and inf are left out."""
    if not self._active:
      return
    values = {k: float(v) for k, v in values.items() if math.isfinite(v)}
    line = json.dumps({'step': step} | values) + '\n'
    if self._text is None:
      with self._path.open('a') as f:
        f.write(line)
    else:
      self._text += line
      self._path.write_text(self._text)
    if self._board:
      for name, value in values.items():
        self._board.add_scalar(name, value, step)
      self._board.flush()

  def close(self) -> None:
    if self._board:
      self._board.close()
