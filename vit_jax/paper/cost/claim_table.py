"""What `--list` and `--plan` print about claims: what it takes to decide them.

`--list` has the numbers of pre-trainings of `--seeds=auto`, `--plan` those of
the given `--seeds`.
"""

from collections.abc import Mapping, Sequence

from vit_jax.paper import cost
from vit_jax.paper.claims import counts
from vit_jax.paper.claims.claim import Claim
from vit_jax.paper.claims.counts import Need, Pilot
from vit_jax.paper.design import SCALES, Design, kept
from vit_jax.paper.items.item import Item
from vit_jax.paper.page.page_parts import plural
from vit_jax.paper.runs import Node, Pretraining, first, with_needs
from vit_jax.sweep import schedule
from vit_jax.sweep.spec import Study, Sweep


def short(item: Item, design: Design) -> list[str]:
  """Returns a line for each claim of an item: its need at each scale.

  Args:
    item: the item.
    design: its pilot is used at its scale.
  """
  found: dict[str, list[str]] = {}
  for scale in SCALES:
    pilot = design.pilot if scale == design.scale else kept(scale)
    auto = Design(scale, counts.AUTO, pilot)
    if auto == design:
      auto = design  # It knows its needs already.
    for claim, need in auto.needs(item):
      found.setdefault(claim.key, []).append(
        f'{scale} {_size(claim, need)}{_certainty(need)}'
      )
  width = max(map(len, found), default=0)
  return [
    f'  {key:<{width}}  {"; ".join(words)}' for key, words in found.items()
  ]


def _size(claim: Claim, need: Need) -> str:
  return f'{len(claim.starts())} x {need.planned} pre-trainings'


def _certainty(need: Need) -> str:
  return f' ({need.power:.0%} power)' if need.known else ''


def plan(
  chosen: Sequence[Item],
  design: Design,
  sweep: Sweep,
  core_days: Mapping[str, float],
) -> str:
  """Returns for each claim its runs, its spread, its power and its cost.

  Args:
    chosen: the items.
    design: the scale, the number of pre-trainings, and the pilot.
    sweep: contains the runs.
    core_days: name of a pre-training -> TPUv3-core-days, as far as known.
  """
  lines = []
  studies = {study.name: study for study in sweep.studies}
  for item in chosen:
    for claim, need in design.needs(item):
      lines += [f'{item.name}.{claim.key}: {claim.statement}']
      nodes = [
        node
        for node in with_needs(
          node for mean in claim.means() for node in mean.nodes(need.planned)
        )
        if node.name in studies  # Some tasks of VTAB have no miniature.
      ]
      tuned = [
        studies[node.name]
        for node in nodes
        if not isinstance(node, Pretraining)
      ]
      count = schedule.total(Sweep(tuned), {})
      lines += [f'  {line}' for line in _details(claim, need, design, count)]
      lines.append(f'  {_cost(nodes, design, studies, core_days)}')
  if not lines:
    return 'No claims.'
  head = (
    f'Claims, with --seeds={design.seeds}. Answers are right with 95%'
    ' confidence over all claims of an item (Holm). Power is the probability of'
    ' an answer, if differences and spreads are those of the pilot.'
  )
  return '\n'.join([head, *lines])


def _details(claim: Claim, need: Need, design: Design, tuned: int) -> list[str]:
  """Returns the size and the power of a claim, and what the pilot knows."""
  pilot = design.pilot
  lines = [_size(claim, need)]
  if tuned:
    lines[0] += f' + {plural(tuned, "fine-tuning run")}'
  lines[0] += '.'
  if need.known and design.seeds == counts.AUTO:
    count = need.count or f'more than {counts.LIMIT}'
    lines[0] += f' 80% power needs {count} of each; power {need.power:.0%}.'
  elif need.known:
    lines[0] += f' Power {need.power:.0%}.'
  elif design.seeds == counts.AUTO:
    lines[0] += ' The pilot does not know all of these runs.'
  for test in claim.contrasts:
    effect, spreads = pilot.effect(test.sum), pilot.spreads(test.sum)
    words = []
    if effect is not None:
      words.append(f'pilot {effect:+.3g}')
    if spreads is not None:
      words.append(f'spreads {", ".join(f"{s:.2g}" for s in spreads)}')
    smallest = need.detectable[test.what]
    if smallest is not None:
      words.append(f'decided from {smallest:.2g} on')
    lines.append(f'{test.what}: {"; ".join(words) or "not known"}')
  return lines


def _cost(
  nodes: Sequence[Node],
  design: Design,
  studies: Mapping[str, Study],
  core_days: Mapping[str, float],
) -> str:
  """Returns a sentence on what a claim's runs cost."""
  starts = [node for node in nodes if isinstance(node, Pretraining)]
  if design.scale == 'paper':
    known = [core_days[node.name] for node in starts if node.name in core_days]
    exaflops = sum(map(cost.exaflops, starts))
    days = f', {sum(known):,.0f} TPUv3-core-days' if known else ''
    rest = len(starts) - len(known)
    if known and rest:
      days += f' for {len(known)} of them'
    return f'Cost of the pre-trainings: {exaflops:,.0f} exaFLOPs{days}.'
  minutes = [_minutes(design.pilot, studies.get(first(n).name)) for n in nodes]
  known = [found for found in minutes if found is not None]
  if not known:
    return 'Cost: not known before a run.'
  # Runs without a pilot are taken to cost as much as the others.
  total = sum(known) * len(minutes) / len(known)
  return f'Cost: {total:,.0f} minutes of one device.'


def _minutes(pilot: Pilot, study: Study | None) -> float | None:
  """Returns the pilot's minutes of a study; None if it does not know it."""
  if study is None:
    return None
  found = [pilot.minutes.get(run.name) for run in study.finals_of(None)]
  return None if None in found else sum(found)
