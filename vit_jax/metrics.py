"""Where a run's numbers go: `metrics.jsonl`, TensorBoard, and the console."""

import json
import math
import time
from collections.abc import Mapping

import jax
import tensorboardX
from absl import logging
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


class Progress:
  """Speed, input wait and time left between log lines."""

  def __init__(self, start_step: int, total_steps: int, batch_size: int):
    self._total_steps = total_steps
    self._batch_size = batch_size
    self._start = (start_step, time.monotonic())
    self._last = self._start
    self._waited = 0.0
    self._paused = 0.0

  def wait(self, seconds: float) -> None:
    """Counts time that the loop waited for input."""
    self._waited += seconds

  def pause(self, seconds: float) -> None:
    """Leaves out time that was not training (evaluation, saving)."""
    self._paused += seconds

  def reset(self, step: int) -> None:
    """Starts the clock anew, so that compilation doesn't spoil the ETA."""
    self._start = self._last = (step, time.monotonic())
    self._waited = self._paused = 0.0

  def measure(self, step: int) -> dict[str, float]:
    """Since the last call: images/s, the share of time waiting, and the ETA.

    Returns:
      `images_per_sec`, `input_wait` (0..1) and `eta_sec`.
    """
    last_step, last_time = self._last
    now = time.monotonic()
    seconds = max(now - last_time - self._paused, 1e-9)
    steps = step - last_step
    result = {
      'images_per_sec': steps * self._batch_size / seconds,
      'input_wait': min(self._waited / seconds, 1.0),
    }
    # From the whole run's pace, evaluations and saves included.
    start_step, start_time = self._start
    pace = (now - start_time) / max(step - start_step, 1)
    result['eta_sec'] = pace * (self._total_steps - step)
    self._last = (step, now)
    self._waited = self._paused = 0.0
    return result


def duration(seconds: float) -> str:
  """`93784` -> `1d02:03:04`, `75` -> `1:15`."""
  seconds = round(seconds)
  days, rest = divmod(seconds, 86400)
  hours, rest = divmod(rest, 3600)
  minutes, seconds = divmod(rest, 60)
  if days:
    return f'{days}d{hours:02}:{minutes:02}:{seconds:02}'
  if hours:
    return f'{hours}:{minutes:02}:{seconds:02}'
  return f'{minutes}:{seconds:02}'


def log_line(step: int, total_steps: int, values: Mapping[str, float]) -> None:
  """One line on the console for one interval of training."""
  logging.info(
    'step %*d/%d  loss %.4f  acc %5.1f%%  lr %.2e  %s img/s  input %2.0f%%'
    '  ETA %s',
    len(str(total_steps)),
    step,
    total_steps,
    values['train/loss'],
    100 * values['train/accuracy'],
    values['train/learning_rate'],
    f'{values["images_per_sec"]:,.0f}',
    100 * values['input_wait'],
    duration(values['eta_sec']),
  )
