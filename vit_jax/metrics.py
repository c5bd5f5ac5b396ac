"""Where a run's numbers go: `metrics.jsonl` and TensorBoard."""

import json
import math
from collections.abc import Mapping

import jax
import tensorboardX
from etils import epath

FILE = 'metrics.jsonl'


def read(workdir: epath.PathLike) -> list[dict[str, float]]:
  """The lines of a run's `metrics.jsonl`, oldest first; [] if there is none.

  A last line that was cut off when the process died is left out.
  """
  path = epath.Path(workdir) / FILE
  if not path.exists():
    return []
  rows = []
  for line in path.read_text().splitlines(keepends=True):
    if line.endswith('\n'):
      rows.append(json.loads(line))
  return rows


class MetricWriter:
  """Appends named numbers to the work directory; silent on other hosts.

  On `gs://` an append rewrites the file, which is fine at the pace of a line
  every few seconds.
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
    temporary = self._path.with_name(FILE + '.tmp')
    temporary.write_text(''.join(json.dumps(row) + '\n' for row in kept))
    temporary.replace(self._path)
    if tensorboard:
      self._board = tensorboardX.SummaryWriter(
        str(workdir), purge_step=start_step + 1 if rows else None
      )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes one line, on disk when this returns. NaN and inf are left out."""
    if not self._active:
      return
    values = {k: float(v) for k, v in values.items() if math.isfinite(v)}
    with self._path.open('a') as f:
      f.write(json.dumps({'step': step} | values) + '\n')
    if self._board:
      for name, value in values.items():
        self._board.add_scalar(name, value, step)
      self._board.flush()

  def close(self) -> None:
    if self._board:
      self._board.close()
