"""Makes work directories that a live page can follow."""

import json
import pathlib

from tests import run_files


def make(folder: pathlib.Path, steps=(), total: int = 100) -> pathlib.Path:
  """Makes a work directory with a row of metrics for each step."""
  run_files.leave(folder, config={'total_steps': total})
  log(folder, steps)
  return folder


def log(folder: pathlib.Path, steps, **metrics: float) -> None:
  """Appends a row for each step."""
  with open(folder / 'metrics.jsonl', 'a') as file:
    for step in steps:
      row = {
        'step': step,
        'train/loss': 1 / step,
        'goodput/steps_seconds': 36.0 * step,
        'goodput/input_seconds': 0.0,
        'unix_time': 1e9 + step,
        **metrics,
      }
      file.write(json.dumps(row) + '\n')
