"""Published accuracy by epoch, and whether a run follows it.

The folder `curves` holds the curves, and in `index.csv` the settings of the
runs that they come from, which a run must share to be comparable.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from etils import epath

from vit_jax.compare import frames
from vit_jax.workdir import metrics

AUTO = 'auto'
FOLDER = pathlib.Path(__file__).parent / 'curves'
# The settings that say which curve is a run's: with another value of one, a run
# has quite another curve.
_IDENTITY = {
  *('model.name', 'num_classes', 'data.num_examples', 'epochs', 'weights'),
}
# On images of their own; evaluations on parts of the training split are called
# `held_out` (`config.name_of_split`), and are often easier.
_METRICS = {'validation/accuracy', 'val/accuracy', 'test/accuracy'}
# Numbers count as equal up to this share: a hundredth of the images may be held
# out, and copies of ImageNet-21k differ by a few classes.
_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
  """The accuracy of a published run.

  Attributes:
    name: its name, or the user's file.
    points: the columns `epoch`, increasing passes over the training data, and
      `accuracy` in percent; at least two rows.
    settings: what `settings_of` returns for a comparable run, as far as it
      matters.
  """

  name: str
  points: pd.DataFrame
  settings: Mapping[str, Any]

  def at(self, epoch: float) -> float:
    """Returns the accuracy at an epoch, on a line between two points."""
    return np.interp(epoch, self.points['epoch'], self.points['accuracy'])

  def differences(self, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns key -> `KEY 1024 instead of 2048` for settings that differ."""
    return {
      key: f'{key} {_shown(settings.get(key))} instead of {_shown(value)}'
      for key, value in self.settings.items()
      if not _agree(settings.get(key), value)
    }


@dataclasses.dataclass(frozen=True)
class Report:
  """How a run stands, and the curve that it is compared with.

  Attributes:
    sentence: says it.
    curve: the curve's name; '' if none fits.
    metric: the run's accuracy that is compared; '' if it has none yet.
    epochs: of the curve's points.
    shares: their accuracies, as shares, like the run's.
  """

  sentence: str
  curve: str = ''
  metric: str = ''
  epochs: Sequence[float] = ()
  shares: Sequence[float] = ()


@functools.cache
def published() -> dict[str, Curve]:
  """Returns the curves of the folder by their names, as in the index."""
  index = pd.read_csv(FOLDER / 'index.csv', comment='#', index_col='curve')
  points = pd.read_csv(FOLDER / 'points.csv', comment='#', index_col='curve')
  return {
    name: Curve(name, points.loc[name], row.drop('source').dropna().to_dict())
    for name, row in index.iterrows()
  }


def choose(wanted: str) -> list[Curve]:
  """Returns the curves to choose from, for each run.

  Args:
    wanted: 'auto' for all published ones; the name of one; or a CSV file with
      the columns `epoch` and `accuracy`, in percent. The file's last epoch is
      the length of its run.

  Raises:
    ValueError: there is no such curve, or the file is not such a table.
  """
  if wanted == AUTO:
    return list(published().values())
  if wanted in published():
    return [published()[wanted]]
  if not wanted.endswith('.csv'):
    raise ValueError(
      f'--expected={wanted} is neither {AUTO!r} nor a .csv file nor one of the'
      f' published curves: {", ".join(published())}.'
    )
  columns = ['epoch', 'accuracy']
  points = pd.read_csv(wanted, comment='#', usecols=columns, dtype=float)
  points = points.dropna().sort_values('epoch')
  if len(points) < 2 or not 1 < points['accuracy'].max() <= 100:
    raise ValueError(
      f'--expected={wanted}: expected two rows or more, with percents.'
    )
  return [Curve(wanted, points, {'epochs': points['epoch'].max()})]


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what identifies a run, and what must agree.

  Args:
    config: the flat config of a run, as in its `config.json`.

  Returns:
    The config with `image_size` as text (`192x192`); `epochs` also for a run
    with `total_steps`; and `weights`, 'random' or 'trained', which the run
    starts from.
  """
  found = dict(config)
  found['image_size'] = 'x'.join(map(str, config.get('image_size', ())))
  steps = config.get('total_steps') or math.nan
  found['epochs'] = round(steps * frames.epochs_per_step(config), 1)
  found['weights'] = 'trained' if config.get('init.checkpoint') else 'random'
  return found


def report(
  curves: Sequence[Curve],
  config: Mapping[str, Any],
  rows: Sequence[Mapping[str, float]],
) -> Report:
  """Says how a run stands against the curve that fits it.

  Args:
    curves: see `choose`. Of several, one must fit the run's model, data, length
      and initial weights; of those that do, the one of its image size counts,
      or else with the fewest differences. A single one is the user's choice.
    config: the run's flat config.
    rows: its metrics, oldest first.
  """
  settings = settings_of(config)

  def unlike(curve):
    wrong = curve.differences(settings)
    return len(_IDENTITY & wrong.keys()), 'image_size' in wrong, len(wrong)

  curve = min(curves, key=unlike)
  wrong = curve.differences(settings)
  if len(curves) > 1 and _IDENTITY & wrong.keys():
    wrong = [text for key, text in wrong.items() if key in _IDENTITY]
    return Report(
      f'no published curve fits; the nearest, {curve.name}, differs:'
      f' {", ".join(wrong)}'
    )
  found = {
    (row['step'], m): row[m] for row in rows for m in row.keys() & _METRICS
  }
  if not found:
    return Report('no accuracy on a validation or test split yet', curve.name)
  step, metric = max(found)
  accuracy = 100 * found[step, metric]
  epoch = step * frames.epochs_per_step(config)
  judged = verdict(curve, epoch, accuracy)
  if wrong:
    judged = f'not comparable: {", ".join(wrong.values())}'
  return Report(
    f'epoch {round(epoch, 1):g}: {accuracy:.1f}, published'
    f' {curve.at(epoch):.1f}: {judged}',
    curve.name,
    metric,
    list(curve.points['epoch']),
    list(curve.points['accuracy'] / 100),
  )


def reports(
  curves: Sequence[Curve], *folders: epath.PathLike
) -> dict[str, Report]:
  """Returns the report of each run, by the names of `frames.find`."""
  return {
    name: report(curves, frames.flat_config(workdir), metrics.read(workdir))
    for name, workdir in frames.find(*folders).items()
  }


def verdict(curve: Curve, epoch: float, accuracy: float) -> str:
  """Says whether an accuracy in percent at an epoch is as published.

  It may differ by what two epochs change, at most a twentieth of the run, and
  by as much as runs of one recipe do: 1.5 points at the start, and 0.5 at the
  end. In the middle, the published curves themselves jump by half a point from
  one evaluation to the next. Before the curve's second point there is nothing
  to say: the rate warms up, and a line between two points is no estimate.
  """
  second, length = curve.points['epoch'].iloc[[1, -1]]
  if epoch < second:
    return f'too early to tell, before epoch {second:g}'
  shift, margin = min(2.0, length / 20), 1.5 - min(epoch / length, 1.0)
  around = [curve.at(epoch + d) for d in (-shift, 0.0, shift)]
  if min(around) - margin <= accuracy <= max(around) + margin:
    return 'on track'
  behind = curve.at(epoch) - accuracy
  return f'{"behind" if behind > 0 else "ahead"} by {abs(behind):.1f} points'


def _agree(value: Any, expected: Any) -> bool:
  try:
    return math.isclose(value, expected, rel_tol=_TOLERANCE)
  except TypeError:  # They are not both numbers.
    return value == expected


def _shown(value: Any) -> str:
  return f'{value:.7g}' if isinstance(value, float) else str(value)
