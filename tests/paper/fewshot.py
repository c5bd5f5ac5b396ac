"""Writes the files of finished runs with few-shot accuracies."""

import types

from vit_jax import config as config_lib
from vit_jax import results as results_lib
from vit_jax.paper.design import Design
from vit_jax.paper.runs import Results
from vit_jax.sweep import Study
from vit_jax.sweep.spec import Run
from vit_jax.workdir import metrics

IMAGENET = 'few_shot/5shot/accuracy'


def results(folder, runs, *, scale='paper', counts=types.MappingProxyType({})):
  """Creates work directories of finished runs and returns their `Results`.

  Args:
    folder: where to create the work directories, as `folder/runs/NAME`.
    runs: node -> step -> metric -> value.
    scale: one of `design.SCALES`.
    counts: first pre-training -> number of those that differ in the seed.
  """
  studies, finished = [], {}
  for node, steps in runs.items():
    name = f'run of {node.name}'
    workdir = folder / 'runs' / name
    workdir.mkdir(parents=True)
    config = config_lib.default()
    config.evals.validation = config_lib.evaluation('train[:1%]')
    for key in {key for row in steps.values() for key in row}:
      if key.startswith('few_shot'):
        section = config_lib.evaluation('test', 'few_shot', train_split='train')
        config.evals[key.partition('/')[0]] = section
    if node.images:
      config.checkpoint.best = 'validation/accuracy'
    config_lib.save(config, workdir)
    writer = metrics.MetricWriter(workdir, start_step=0, tensorboard=False)
    for step, row in steps.items():
      writer.write(step, row)
    writer.close()
    finished[name] = results_lib.final_metrics(workdir)
    studies.append(Study(node.name, finals=[Run(name, 'config.py')]))
  return Results(
    studies,
    finished,
    comparable=scale == 'paper',
    scale=scale,
    workdir=lambda name: folder / 'runs' / name,
    counts=counts,
  )


def of_item(folder, item, metrics, *, scale='paper', count=3, left_out=()):
  """Returns `results` of the runs that an item shows and its claims need.

  Args:
    folder: as for `results`.
    item: the item.
    metrics: node -> step -> metric -> value.
    scale: one of `design.SCALES`.
    count: pre-trainings of each mean of a claim.
    left_out: nodes whose runs are not finished.
  """
  design = Design(scale, count)
  return results(
    folder,
    {n: metrics(n) for n in design.nodes(item) if n not in left_out},
    scale=scale,
    counts=design.counts(item),
  )
