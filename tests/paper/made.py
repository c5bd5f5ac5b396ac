"""Makes results of imaginary runs, for tests of items and claims."""

import dataclasses

from tests import run_files
from vit_jax import config as config_lib
from vit_jax import results as results_lib
from vit_jax.paper import answers, report
from vit_jax.paper.runs import Results, with_needs
from vit_jax.sweep import Run, Study

FEW_SHOT = 'few_shot/5shot/accuracy'
PETS = 'few_shot_pets/5shot/accuracy'


def results(nodes, metrics, *, seeds=2, left_out=(), **options):
  """Returns results with the same number of runs for each node.

  Args:
    nodes: the nodes; the pre-trainings that they start from are added.
    metrics: (node, seed) -> the run's last numbers; None: it isn't finished.
    seeds: the number of runs per node.
    left_out: nodes that have no runs at this scale.
    **options: further arguments of `Results`.
  """
  studies, finished = [], {}
  for node in with_needs(nodes):
    if node in left_out:
      continue
    runs = [
      Run(f'{node.name}/seed={seed}', 'configs/mini.py')
      for seed in range(seeds)
    ]
    studies.append(Study(node.name, finals=runs))
    for seed, run in enumerate(runs):
      found = metrics(node, seed)
      if found is not None:
        finished[run.name] = found
  return Results(studies, finished, **options)


def of_item(item, metrics, *, scale='paper', count=3, **options):
  """Returns `results` of the runs that an item shows and its claims need.

  Args:
    item: the item.
    metrics: as for `results`.
    scale: one of `runs.SCALES`.
    count: pre-trainings of each mean of a claim.
    **options: further arguments of `results` and `Results`.
  """
  nodes = item.nodes(scale, count)
  found = results(nodes, metrics, scale=scale, **options)
  return dataclasses.replace(found, counts=item.counts(scale, count))


def written(folder, runs, *, scale='paper', counts=None):
  """Creates work directories of finished runs and returns their `Results`.

  Args:
    folder: where to create the work directories, as `folder/runs/NAME`.
    runs: node -> step -> metric -> value.
    scale: one of `runs.SCALES`.
    counts: see `Results`.
  """
  studies, finished = [], {}
  for node, steps in runs.items():
    name = f'run of {node.name}'
    workdir = folder / 'runs' / name
    config = config_lib.default()
    config.evals.validation = config_lib.evaluation('train[:1%]')
    for key in {key for row in steps.values() for key in row}:
      if key.startswith('few_shot'):
        section = config_lib.evaluation('test', 'few_shot', train_split='train')
        config.evals[key.partition('/')[0]] = section
    if node.images:
      config.checkpoint.best = 'validation/accuracy'
    rows = [{'step': step, **row} for step, row in steps.items()]
    run_files.leave(workdir, *rows, config=config)
    finished[name] = results_lib.final_metrics(workdir)
    studies.append(Study(node.name, finals=[Run(name, 'config.py')]))
  return Results(
    studies,
    finished,
    scale=scale,
    workdir=lambda name: folder / 'runs' / name,
    counts=counts or {},
  )


def of_values(claim, value, count):
  """Returns the answer to a claim that is alone on its page.

  Args:
    claim: the claim.
    value: mean -> its number; each of its seeds has a little more.
    count: number of seeds.
  """

  def lookup(mean):
    number = value(mean)
    if number is None:
      return None
    return tuple(number + seed / 1000 for seed in range(count))

  return answers.of_page({'only': (claim, lookup)})['only']


def decided(claim, value):
  """Returns the answer to a claim from few seeds, or more if it needs them."""
  for count in (5, 7, 10):
    found = of_values(claim, value, count)
    if found.answer != answers.UNDECIDED:
      break
  return found


def answered(item, scale, value):
  """Returns key -> answer, for the claims of an item; see `decided`."""
  return {c.key: decided(c, value).answer for c in item.claims(scale)}


def number(*values):
  return report.Number(values, tuple(f'run{i}' for i in range(len(values))))
