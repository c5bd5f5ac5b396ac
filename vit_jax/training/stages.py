"""Runs a config with stages: training runs that build on each other.

The key `stages` of such a config holds the config of each run by its name, and
`order` lists the names. Stage NAME works in `WORKDIR/NAME`. A later stage can
start from its weights with `init.checkpoint='stage:NAME'`.
"""

import jax
import ml_collections
import pandas as pd
from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, sharding
from vit_jax.config import inputs
from vit_jax.runtime import preemption
from vit_jax.training import train
from vit_jax.workdir import files


def train_stages(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  *,
  allow_config_change: bool = False,
  restart: bool = False,
) -> None:
  """Trains the stages one after another, and prints a table of the results.

  The arguments are those of `train.train_and_evaluate`.

  Raises:
    ValueError, NonFiniteError, SaveError, PreemptedError: see
      `train.train_and_evaluate`. Before the first stage starts, the configs,
      training splits and batch sizes of all stages are checked.
  """
  order = tuple(config.order)
  if sorted(order) != sorted(config.stages):
    raise ValueError(
      f'order={order} must name each of the stages {sorted(config.stages)}'
      ' once.'
    )
  for index, name in enumerate(order):
    stage = config.stages[name]
    config_lib.validate(stage)
    for key in ('init.checkpoint', 'distill.teacher'):
      path = config_lib.flatten(stage)[key]
      kind, _, needed = path.partition(':')
      if kind == 'stage' and needed.split('/')[0] not in order[:index]:
        raise ValueError(
          f'stages.{name}.{key}={path!r} does not name an earlier stage; those'
          f' are {list(order[:index])}.'
        )
  for name in order:
    _check_data(name, config.stages[name])
  workdir = files.absolute(workdir)
  results = {}
  # All stages share one notice, so that a signal at the end of a stage stops
  # the next one.
  with preemption.Notice() as notice:
    for index, name in enumerate(order):
      logging.info('---- Stage %d of %d: %s', index + 1, len(order), name)
      results[name] = train.train_and_evaluate(
        config.stages[name],
        workdir / name,
        allow_config_change=allow_config_change,
        restart=restart,
        notice=notice,
      )
  if jax.process_index() == 0:
    print(summary(workdir, results), flush=True)


def _check_data(name: str, stage: ml_collections.ConfigDict) -> None:
  """Raises ValueError if a stage's training data is missing or wrong."""
  try:
    source = inputs.open_source(stage, stage.data.dataset)
    stage = config_lib.choose_evaluation(stage, source)
    data.View(source, stage.data.train_split)
    if stage.data.batch_size:
      sharding.check_batch_size(
        'data.batch_size',
        stage.data.batch_size,
        sharding.build(**stage.mesh).mesh,
        stage.accumulation_steps,
      )
  except ValueError as error:
    raise ValueError(f'stages.{name}: {error}') from error


def summary(workdir: epath.Path, results: dict[str, dict[str, float]]) -> str:
  """Returns a table of the stages: their data, and their final accuracies.

  Args:
    workdir: the directory that holds a run for each stage.
    results: what `train_and_evaluate` returned, by the stage's name.
  """
  rows = []
  for name, result in results.items():
    config = ml_collections.ConfigDict(config_lib.load(workdir / name))
    accuracies = [
      f'{key.removesuffix("/accuracy")} {100 * value:.2f}%'
      f' of {result[key.partition("/")[0] + "/count"]:,.0f}'
      for key, value in result.items()
      if key.endswith('/accuracy') and not key.startswith('train/')
    ]
    rows.append(
      {
        'stage': name,
        'data': f'{config.data.dataset} {config.data.train_split}',
        'images': f'{config.data.num_examples:,}',
        'steps': f'{config.total_steps:,}',
        'weights from': (
          config.init.checkpoint.removeprefix('stage:') or 'scratch'
        ),
        'accuracy': ', '.join(accuracies),
      }
    )
  table = pd.DataFrame(rows).to_string(index=False)
  return (
    f'\n{table}\n\nEach stage has a directory in {workdir}, with its metrics in'
    ' metrics.jsonl. The README says how to see curves, and where to go from'
    ' here.'
  )
