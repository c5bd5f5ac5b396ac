"""The progress of the items, as `vit_jax.reproduce --list` prints it."""

from collections.abc import Sequence

from vit_jax.paper import rendering
from vit_jax.paper.cost import claim_table
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.paper.runs import Node, with_needs
from vit_jax.sweep import bring_to_end, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Sweep

_HEAD = (
  'Below each item are its claims: what decides them with --seeds=auto, and the'
  ' probability of an answer, if a pilot knows it.'
)
# Folder below WORKDIR for measurements that are made outside of runs.
MEASURED = 'measured'


def text(
  chosen: Sequence[Item], sweep: Sweep, where: Folders, design: Design
) -> str:
  """Returns a line for each item and each of its claims.

  The line of an item has how many of its runs or measurements are done; that of
  a claim how many pre-trainings decide it, at each scale.

  Args:
    chosen: the items.
    sweep: contains their runs.
    where: the folders of the runs.
    design: the scale, and how many pre-trainings there are.
  """
  lines = []
  finished = read_finished(chosen, sweep, where, design)
  width = max((len(item.name) for item in chosen), default=0)
  for item in chosen:
    there = 'from the code'
    if design.scale not in item.scales:
      there = 'not at this scale'
    elif design.nodes(item):
      done, total = progress(item, sweep, finished, design)
      there = f'{done:>4} of {total:<4} runs'
    elif item.measured:
      done, total = measured(item, where, design)
      there = f'{done:>4} of {total} measured' if done else 'not measured'
    lines.append(f'{item.name:<{width}} {there:<17}  {item.title}')
    lines += claim_table.short(item, design)
  if any(item.claims(design.scale) for item in chosen):
    lines.insert(0, _HEAD)
  return '\n'.join(lines)


def measured(item: Item, where: Folders, design: Design) -> tuple[int, int]:
  """Returns how many measurements of an item are done, and how many exist."""
  if not item.measured:
    return 0, 0
  return item.measured(design.scale, where.local / MEASURED)


def read_finished(
  chosen: Sequence[Item], sweep: Sweep, where: Folders, design: Design
) -> dict[str, dict[str, float]]:
  """Returns run name -> final metrics, of all finished runs of some items.

  Items share runs, and each run takes reads that are slow in a bucket.
  """
  nodes = with_needs(node for item in chosen for node in design.nodes(item))
  return bring_to_end.read_finished(_part(sweep, nodes), where)


def progress(
  item: Item, sweep: Sweep, finished: schedule.Finished, design: Design
) -> tuple[int, int]:
  """Returns how many runs of an item are finished, and how many it has."""
  nodes = with_needs(design.nodes(item))
  part = _part(sweep, nodes)
  known = rendering.known_runs(nodes, part, finished)
  done = {run.name for run in known if run.name in finished}
  return len(done), schedule.total(part, finished)


def _part(sweep: Sweep, nodes: Sequence[Node]) -> Sweep:
  studies = {study.name: study for study in sweep.studies}
  return Sweep([studies[node.name] for node in nodes if node.name in studies])
