"""What `vit_jax.reproduce --plan` prints: runs, their cost and their progress.

In miniature, the cost of the runs that are left follows from the operations of
all runs and the device hours of the finished ones.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from vit_jax.paper import cost, numbers
from vit_jax.paper.cost import planning
from vit_jax.paper.page.page_parts import DASH, number, plural
from vit_jax.paper.runs import Node, Pretraining, Transfer, Vtab, pretraining
from vit_jax.plan import analysis
from vit_jax.runtime import json_text
from vit_jax.sweep import bring_to_end, reading, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Study, Sweep
from vit_jax.workdir import files, metrics

# Name of a node -> the core-days that Table 2 prints for its pre-training.
PAPER_CORE_DAYS = {
  pretraining(*of).name: numbers.CORE_DAYS[column]
  for column, of in zip(numbers.TABLE_2.columns, numbers.COLUMNS_2, strict=True)
}
_COLUMNS = (
  *('Pre-training', '{unit}', 'Steps', 'Core-days', "Paper's"),
  *('Device hours', 'State'),
)
# FLOP/s of a device, in teraFLOPs per hour.
_PER_HOUR = 1 / 3600


def text(
  nodes: Sequence[Node],
  sweep: Sweep,
  where: Folders,
  *,
  papers_own: bool,
  topology: str = '',
) -> str:
  """Returns all that is printed.

  Args:
    nodes: of the items, see `runs.with_needs`.
    sweep: contains their runs.
    where: the folders of the runs.
    papers_own: whether the runs use the paper's own models and data; only then
      are costs known.
    topology: a slice: steps without a plan for it are first compiled. '':
      nothing is compiled, and plans for any slice of TPUv3 count.

  Raises:
    ValueError: some runs could not be planned, or a topology is given although
      the runs are not the paper's own.
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
      *([table(found, _unit(papers_own))] if found else []),
      finetuning(nodes, sweep, finished, papers_own=papers_own),
      *([] if papers_own else _left(nodes, sweep, finished)),
      *notes,
    ]
  )


def _unit(papers_own: bool) -> str:
  return cost.UNITS['paper' if papers_own else 'mini']


def _left(
  nodes: Sequence[Node], sweep: Sweep, finished: schedule.Finished
) -> list[str]:
  """Returns a line on the compute of a miniature's runs, and what is left.

  The runs that are left are taken to be as fast as the finished ones.
  """
  studies = {study.name: study for study in sweep.studies}
  done = left = hours = 0.0
  for node in nodes:
    if node.name not in studies:
      continue  # Some tasks of VTAB have no miniature.
    for run in studies[node.name].finals_of(None):
      operations = cost.teraflops_of_config(reading.read_config(run))
      spent = cost.device_hours(finished.get(run.name, {}))
      if spent is None:
        left += operations
      else:
        done, hours = done + operations, hours + spent
  line = f'All runs: {number(done + left, 1)} teraFLOPs.'
  if not hours or not done:
    return [line]
  speed = 1000 * done / hours * _PER_HOUR
  return [
    f'{line} The finished ones made {number(speed, 1)} GFLOP/s of a device; at'
    f' this speed {number(left * hours / done, 1)} device hours are left.'
  ]


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _notes(
  known: int, total: int, topology: str, made: Sequence[str]
) -> list[str]:
  """Returns notes on what the core-days mean and which compilers made them."""
  notes = []
  if known:
    notes.append(
      f'Core-days are estimates of vit_jax.plan for {topology or "TPUv3"}, from'
      f' {planning.FILE}, and count steps only. {analysis.RESTS_ON}'
    )
  if made:
    notes.append(f'Compiled by {"; ".join(made)}.')
  if known < total:
    notes.append(
      f'Core-days of {total - known} runs are unknown: --plan'
      ' --topology=v3:16x16 compiles their steps, which takes minutes each.'
    )
  return notes


@dataclasses.dataclass(frozen=True)
class Row:
  """A pre-training run.

  Attributes:
    name: of its node.
    compute: of the training, in `cost.UNITS`.
    steps: of the whole run.
    core_days: the planner's estimate for TPUv3; None if unknown.
    paper: the paper's core-days as printed; '' if it prints none.
    hours: device hours of a finished run; None if unknown.
    state: `finished`, `step 1,200` or `not begun`.
  """

  name: str
  compute: float | None
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
  """Returns the rows of the pre-training runs.

  Args:
    nodes: all but pre-trainings are left out.
    sweep: contains their runs.
    where: the folders of the runs.
    finished: see `bring_to_end.read_finished`.
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
        cost.exaflops(node)
        if papers_own
        else cost.teraflops_of_config(reading.read_config(run)),
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
  text = files.content(where.workdir(run.name) / metrics.FILE)
  for line in reversed(text.decode(errors='replace').splitlines()):
    # The last line is cut off if the process died while writing it.
    with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
      return f'step {json_text.loads(line)["step"]:,}'
  return 'not begun'


def table(found: Sequence[Row], unit: str) -> str:
  """Returns the rows as lines of text, without columns that have no value.

  Args:
    found: the rows.
    unit: of their compute.
  """
  cells = [_cells(row) for row in found]
  total = Row(
    plural(len(found), 'run'),
    _sum(row.compute for row in found),
    sum(row.steps for row in found),
    _sum(row.core_days for row in found),
    '',
    _sum(row.hours for row in found),
    f'{sum(row.state == "finished" for row in found)} finished',
  )
  # The first and the last column are words: they are aligned left.
  head = tuple(name.format(unit=unit) for name in _COLUMNS)
  lines = [head, *cells, _cells(total)]
  kept = [
    i for i in range(len(head)) if any(line[i] != DASH for line in lines[1:])
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
    text(row.compute, 1),
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
  """Returns a line on all fine-tuning: the number of runs, cost and progress.

  Args: as for `rows`.
  """
  studies = {study.name: study for study in sweep.studies}
  transfers = [
    node
    for node in nodes
    # Some tasks of VTAB have no miniature.
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
  """Returns the exaFLOPs of all candidates, and of one candidate's finals."""
  first = study.candidates[0] if study.candidates else None
  total, known = 0.0, {}
  for run in (*study.candidates, *study.finals_of(first)):
    # Rates and seeds do not change the cost, so each config is read once.
    if run.config not in known:
      config = reading.read_config(run)
      known[run.config] = cost.finetuning_exaflops(
        node,
        tuple(config.image_size),
        config.total_steps * config.data.batch_size,
      )
    total += known[run.config]
  return total
