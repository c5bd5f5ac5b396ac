"""Times an evaluation of a config."""

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_collections

from benchmarks.measure import settings, timing
from vit_jax import config as config_lib
from vit_jax import data, evaluators, sharding
from vit_jax.config import inputs
from vit_jax.data import pipeline
from vit_jax.training import program as program_lib


@dataclasses.dataclass(frozen=True)
class Runnable:
  """One evaluation that can take turns with others.

  Attributes:
    evaluate: runs the whole evaluation once.
    read: only reads its images.
    num_examples: the number of its images.
    batch_size: images of a batch, of all devices together.
  """

  evaluate: Callable[[], Any]
  read: Callable[[], Any]
  num_examples: int
  batch_size: int


def build(config: ml_collections.ConfigDict, name: str) -> Runnable:
  """Builds an evaluation with fresh weights.

  Args:
    config: as given, not resolved.
    name: a key of `config.evals`; '' means its only key.

  Raises:
    ValueError: there is no such evaluation, or see `evaluators.build`.
  """
  config_lib.validate(config)
  names = list(config.evals)
  name = name or (names[0] if len(names) == 1 else '')
  if name not in names:
    raise ValueError(
      f'--evaluation={name}: the config has the evaluations {names}; name one'
      " of them (configs/pretrain.py adds one for the argument 'eval=SPLIT')."
    )
  source = inputs.open_source(config, config.data.dataset)
  config, _ = config_lib.complete(config, source)
  layout = sharding.build(**config.mesh)
  program = program_lib.Program(config, layout)
  evaluator = evaluators.build(config, program.model, layout.mesh, source)[name]
  params = program.init_params()
  section = config.evals[name]
  if section.dataset:
    source = inputs.open_source(config, section.dataset)
  view = data.View(source, section.split)
  batch_size = section.batch_size or config.data.batch_size

  def read():
    for _ in pipeline.eval_batches(
      view,
      inputs.parse_preprocess(config, section.preprocess),
      batch_size=batch_size,
      **inputs.reading(config),
    ):
      pass

  return Runnable(
    lambda: list(evaluator.run(params, lambda: None)),
    read,
    len(evaluator.data['test']),
    batch_size,
  )


def measure(
  config: ml_collections.ConfigDict,
  against: list[str],
  *,
  rounds: int,
  evaluation: str = '',
) -> dict[str, dict]:
  """Compares evaluations of configs; the arguments are the flags.

  Returns:
    Name -> `seconds` (see `timing.statistics`), `images_per_sec`,
    `input_images_per_sec`, `images`, `batch_size`, `first_run_sec` (compilation
    included) and the ratios of `timing.compare` for the time per image.

  Raises:
    ValueError: see `settings.override` and `build`.
  """
  configs = {'config': config} | {
    text: config if text == 'same' else settings.override(config, text)
    for text in against
  }
  built = {name: build(c, evaluation) for name, c in configs.items()}
  first_runs = {}
  for name, runnable in built.items():
    timing.say(f'First run of {name} ...')
    first_runs[name] = timing.seconds_of(runnable.evaluate)

  def turn(runnable):
    return {
      'seconds': timing.seconds_of(runnable.evaluate),
      'read': timing.seconds_of(runnable.read),
    }

  samples = timing.interleave(
    {name: lambda r=r: turn(r) for name, r in built.items()}, rounds
  )
  compared = timing.compare(
    {
      name: [sample['seconds'] / built[name].num_examples for sample in found]
      for name, found in samples.items()
    }
  )
  results = {}
  for name, found in samples.items():
    read = timing.statistics([sample['read'] for sample in found])
    results[name] = {
      'seconds': timing.statistics([sample['seconds'] for sample in found]),
      'images': built[name].num_examples,
      'batch_size': built[name].batch_size,
      'images_per_sec': 1 / compared[name]['median'],
      'input_images_per_sec': built[name].num_examples / read['median'],
      'first_run_sec': first_runs[name],
      **{k: v for k, v in compared[name].items() if 'ratio' in k},
    }
  return results
