"""Makes results of imaginary runs, for tests of items."""

from vit_jax.paper.claims import answers
from vit_jax.paper.design import Design
from vit_jax.paper.runs import Results, with_needs
from vit_jax.sweep import Run, Study


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
    scale: one of `design.SCALES`.
    count: pre-trainings of each mean of a claim.
    **options: further arguments of `results` and `Results`.
  """
  design = Design(scale, count)
  return results(
    design.nodes(item),
    metrics,
    comparable=scale == 'paper',
    scale=scale,
    counts=design.counts(item),
    **options,
  )


def said(item, results):
  """Returns key -> answered claim, for the claims of an item."""
  claims = item.claims(results.scale)
  found = answers.of_item(claims, results)
  return {c.key: said for c, said in zip(claims, found, strict=True)}


def answered(item, results):
  """Returns key -> answer, for the claims of an item."""
  return {key: claim.answer for key, claim in said(item, results).items()}
