"""What `vit_jax.reproduce --plan` prints: the runs, their cost, what there is.

At the scale of a miniature nothing is known of the cost but the hours of runs
that are finished.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from vit_jax.paper import cost, numbers
from vit_jax.paper.cost import planning
from vit_jax.paper.items import table_items
from vit_jax.paper.page.page_parts import DASH, number, plural
from vit_jax.paper.runs import Node, Pretraining, Transfer, Vtab
from vit_jax.plan import analysis
from vit_jax.runtime import json_text
from vit_jax.sweep import bring_to_end, reading, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Study, Sweep
from vit_jax.workdir.buckets import growing

# Node -> what Table 2 prints for its pre-training.
PAPER_CORE_DAYS = {
  table_items.pretraining(*of).name: numbers.CORE_DAYS[column]
  for column, of in zip(numbers.TABLE_2.columns, numbers.COLUMNS_2, strict=True)
}
_COLUMNS = (
  *('Pre-training', 'exaFLOPs', 'Steps', 'Core-days', "Paper's"),
  *('Device hours', 'State'),
)


def text(
  nodes: Sequence[Node],
  sweep: Sweep,
  where: Folders,
  *,
  papers_own: bool,
  topology: str = '',
) -> str:
  """All that is printed.

  Args:
    nodes: of the items, see `runs.with_needs`.
    sweep: has their runs.
    where: they work.
    papers_own: whether the runs are of the paper's own models and data, which
      costs are known of.
    topology: a slice, for which steps that have no plan are compiled first; '':
      nothing is compiled, and plans for any slice of TPUv3 count.

  Raises:
    ValueError: there are runs that could not be planned, or are not the
      paper's.
  """
  if topology and not papers_own:
    raise ValueError(
      f'--topology={topology} is for --scale=paper: a miniature takes minutes'
      ' anywhere.'
    )
  days, notes = {}, []
  if papers_own:
    runs_ = planning.pretraining_runs(nodes, sweep)
    if topology:
      topology = planning.compile_missing(
        runs_.values(), where.local, topology, _say
      )
    plans = planning.read(where.local)
    days = planning.core_days(plans, runs_, topology)
    made = planning.compilers(plans, runs_, topology)
    notes = _notes(len(days), len(runs_), topology, made)
  finished = bring_to_end.read_finished(sweep, where)
  found = rows(nodes, sweep, where, finished, days, papers_own=papers_own)
  return '\n'.join(
    [
      *([table(found)] if found else []),
      finetuning(nodes, sweep, finished, papers_own=papers_own),
      *notes,
    ]
  )


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _notes(
  known: int, total: int, topology: str, made: Sequence[str]
) -> list[str]:
  """What the core-days are, and which compilers made them."""
  notes = []
  if known:
    notes.append(
      'Core-days: as vit_jax.plan estimates them for'
      f' {topology or "TPUv3"}, in {planning.FILE}; steps only.'
    )
  if made:
    notes.append(f'Compiled by {"; ".join(made)}.')
  if known < total:
    notes.append(
      f'Core-days of {total - known} runs are unknown: --plan'
      ' --topology=v3:16x16 compiles their steps, in minutes each.'
    )
  return notes


@dataclasses.dataclass(frozen=True)
class Row:
  """A pre-training run.

  Attributes:
    name: its node's.
    exaflops: as `cost.exaflops`; None in miniature.
    steps: of the whole run.
    core_days: the planner's, of TPUv3; None if unknown.
    paper: the paper's core-days as printed, '' if it has none.
    hours: that the devices were held, of a finished run.
    state: `finished`, `step 1,200` or `not begun`.
  """

  name: str
  exaflops: float | None
  steps: int
  core_days: float | None
  paper: str
  hours: float | None
  state: str


def rows(
  nodes: Iterable[Node],
  sweep: Sweep,
  where: Folders,
  finished: schedule.Finished,
  core_days: Mapping[str, float],
  *,
  papers_own: bool,
) -> list[Row]:
  """The rows of the pre-training runs.

  Args:
    nodes: others are left out.
    sweep: has their runs.
    where: they work.
    finished: see `sweep.launch.read_finished`.
    core_days: see `planning.core_days`.
    papers_own: see `text`.
  """
  nodes = [node for node in nodes if isinstance(node, Pretraining)]
  found = planning.pretraining_runs(nodes, sweep)
  result = []
  for node in nodes:
    run = found[node.name]
    printed = PAPER_CORE_DAYS.get(node.name) if papers_own else None
    result.append(
      Row(
        node.name,
        cost.exaflops(node) if papers_own else None,
        _steps(run),
        core_days.get(node.name),
        printed.printed if printed else '',
        cost.device_hours(finished.get(run.name, {})),
        _state(run, where, finished),
      )
    )
  return result


def _steps(run: Run) -> int:
  config = reading.read_config(planning.planned(run))
  return config.total_steps or analysis.resolve(config, 'tpu').total_steps


def _state(run: Run, where: Folders, finished: schedule.Finished) -> str:
  if run.name in finished:
    return 'finished'
  text = growing.read(where.workdir(run.name) / 'metrics.jsonl')
  for line in reversed(text.decode(errors='replace').splitlines()):
    # The last one is cut off if the process died at it.
    with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
      return f'step {json_text.loads(line)["step"]:,}'
  return 'not begun'


def table(found: Sequence[Row]) -> str:
  """Lines of text; columns that nothing is known of are left out."""
  cells = [_cells(row) for row in found]
  total = Row(
    plural(len(found), 'run'),
    _sum(row.exaflops for row in found),
    sum(row.steps for row in found),
    _sum(row.core_days for row in found),
    '',
    _sum(row.hours for row in found),
    f'{sum(row.state == "finished" for row in found)} finished',
  )
  # The first and the last column are words.
  lines = [_COLUMNS, *cells, _cells(total)]
  kept = [
    i
    for i in range(len(_COLUMNS))
    if any(line[i] != DASH for line in lines[1:])
  ]
  lines = [[line[i] for i in kept] for line in lines]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  text = []
  for line in lines:
    name, *middle, state = (
      cell.rjust(width) for cell, width in zip(line, widths, strict=True)
    )
    first = [line[0].ljust(len(name)), *middle, state.strip()]
    text.append('  '.join(first).rstrip())
  text.insert(-1, '-' * max(map(len, text)))
  return '\n'.join(text)


def _cells(row: Row) -> tuple[str, ...]:
  def text(value: float | None, digits: int) -> str:
    return DASH if value is None else number(value, digits)

  return (
    row.name,
    text(row.exaflops, 1),
    text(row.steps, 0),
    text(row.core_days, 1),
    row.paper or DASH,
    text(row.hours, 2),
    row.state,
  )


def _sum(values: Iterable[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) if known else None


def finetuning(
  nodes: Iterable[Node],
  sweep: Sweep,
  finished: schedule.Finished,
  *,
  papers_own: bool,
) -> str:
  """A line for all fine-tuning: how many runs, their cost, what there is.

  Args: those of `rows`.
  """
  studies = {study.name: study for study in sweep.studies}
  transfers = [
    node
    for node in nodes
    # Not all tasks of VTAB have a miniature.
    if not isinstance(node, Pretraining) and node.name in studies
  ]
  if not transfers:
    return 'No fine-tuning.'
  part = Sweep([studies[node.name] for node in transfers])
  done = {
    run.name
    for study in part.studies
    for run in schedule.known(study, finished)
    if run.name in finished
  }
  words = [
    f'Fine-tuning: {len(transfers)}'
    f' {"study" if len(transfers) == 1 else "studies"} of'
    f' {number(schedule.total(part, finished), 0)} runs'
  ]
  if papers_own:
    exaflops = sum(_exaflops(node, studies[node.name]) for node in transfers)
    words.append(f'{number(exaflops, 1)} exaFLOPs')
  words.append(f'{number(len(done), 0)} finished')
  hours = _sum(cost.device_hours(finished[name]) for name in done)
  if hours is not None:
    words.append(f'{number(hours, 2)} device hours')
  return ', '.join(words) + '.'


def _exaflops(node: Transfer | Vtab, study: Study) -> float:
  """Of all candidates, and of as many finals as the first one's."""
  first = study.candidates[0] if study.candidates else None
  total, known = 0.0, {}
  for run in (*study.candidates, *study.finals_of(first)):
    # Rates and seeds cost nothing, so one of each config is read.
    if run.config not in known:
      config = reading.read_config(run)
      known[run.config] = cost.finetuning_exaflops(
        node,
        tuple(config.image_size),
        config.total_steps * config.data.batch_size,
      )
    total += known[run.config]
  return total
