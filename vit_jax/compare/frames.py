"""Reads work directories into pandas frames."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from etils import epath

from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.runtime import goodput, printable
from vit_jax.workdir import files, metrics

# How many levels of folders `find` searches for work directories.
_DEEPEST = 5
# The parts of goodput that count as training; the others are overhead.
_TRAINING = ('steps', 'input')


def find(*folders: epath.PathLike) -> dict[str, epath.Path]:
  """Returns the work directories in some folders, up to five levels down.

  Args:
    *folders: each a work directory, or a folder of work directories.

  Returns:
    Name -> work directory, sorted in each folder. The name is the path inside
    the folder; with several folders, the folder's name precedes it. Where two
    folders would give the same name, the later run's name is its path.

  Raises:
    ValueError: a folder does not exist, or holds no work directory.
  """
  found = {}
  for folder in map(files.absolute, folders):
    if not folder.is_dir():
      raise ValueError(f'there is no folder {folder}.')
    inside = sorted(_walk(folder, _DEEPEST))
    if not inside:
      raise ValueError(f'{folder} holds no work directory of a run.')
    for workdir in inside:
      name = str(workdir.relative_to(folder))
      parts = [folder.name] if len(folders) > 1 or name == '.' else []
      name = '/'.join(parts + ([name] if name != '.' else []))
      name = printable.name(name)
      if found.setdefault(name, workdir) != workdir:
        found[printable.name(str(workdir))] = workdir
  return found


def _walk(folder: epath.Path, levels: int) -> Iterator[epath.Path]:
  if (folder / config_lib.FILE).exists():
    yield folder
  elif levels:
    for path in folder.iterdir():
      if path.is_dir():
        yield from _walk(path, levels - 1)


def load_runs(*folders: epath.PathLike) -> pd.DataFrame:
  """Returns one row per run: its config and the last value of each metric.

  Args:
    *folders: see `find`.

  Returns:
    Columns `run`, `finished`, `step`; `config.KEY` for each key of the config,
    nested ones as `config.data.batch_size`; `epoch`, `hours` and
    `device_hours`, see `load_curves`; and the metrics by their names. What a
    run lacks is NaN.
  """
  rows = []
  for name, workdir in find(*folders).items():
    config = flat_config(workdir)
    curve = _curve(workdir, config)
    last = {}
    for row in curve:
      last |= row
    rows.append(
      {
        'run': name,
        'finished': results.finished_at(workdir) is not None,
        **{f'config.{key}': _hashable(value) for key, value in config.items()},
        **last,
      }
    )
  return pd.DataFrame(rows)


def load_curves(*folders: epath.PathLike) -> pd.DataFrame:
  """Returns one row for each step at which a run logged something.

  Args:
    *folders: see `find`.

  Returns:
    Columns `run` and `step`; `epoch`, the passes over the data up to that step;
    `hours` of training steps and of waiting for data; `device_hours`, the same
    hours times the run's number of devices at the time (cores on TPU v2 and
    v3); and the metrics.
  """
  return pd.DataFrame(
    [
      {'run': name, **row}
      for name, workdir in find(*folders).items()
      for row in _curve(workdir, flat_config(workdir))
    ]
  )


def _curve(workdir: epath.Path, config: dict) -> list[dict[str, float]]:
  """Returns the rows of a run, merged into one row per step."""
  merged: dict[float, dict[str, float]] = {}
  for row in metrics.read(workdir):
    merged.setdefault(row['step'], {}).update(row)
  rows, before, device_hours = [], 0.0, 0.0
  for row in merged.values():
    now = hours(row)
    device_hours += (now - before) * row.get(goodput.DEVICES, math.nan)
    before = now
    row['epoch'] = row['step'] * epochs_per_step(config)
    rows.append(row | {'hours': now, 'device_hours': device_hours})
  return rows


def flat_config(workdir: epath.PathLike) -> dict[str, Any]:
  """Returns the config of a run, flat; {} if it has none."""
  return config_lib.flatten(config_lib.load(workdir) or {})


def epochs_per_step(config: Mapping[str, Any]) -> float:
  """Returns the passes over the data in a step of a run; NaN if unknown.

  Args:
    config: its flat config.
  """
  examples = config.get('data.examples_per_epoch')
  examples = examples or config.get('data.num_examples') or math.nan
  return (config.get('data.batch_size') or math.nan) / examples


def hours(row: Mapping[str, float]) -> float:
  """Returns the hours of training up to a row; NaN if it has no times."""
  return sum(row.get(goodput.key(part), math.nan) for part in _TRAINING) / 3600


def _hashable(value):
  return tuple(value) if isinstance(value, list) else value
