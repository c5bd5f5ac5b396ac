"""What `vit_jax.reproduce --plan` prints: runs, their cost and their progress.

In miniature, the cost of the runs that are left follows from the operations of
all runs and the device hours of the finished ones.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence

from vit_jax.paper import cost, planning
from vit_jax.paper.items.tables import table2
from vit_jax.paper.page.texts import DASH, number, plural
from vit_jax.paper.runs import Node, Pretraining
from vit_jax.plan import analysis, compilers
from vit_jax.runtime import text_table
from vit_jax.sweep import bring_to_end, reading, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Study, Sweep

# Name of a pre-training -> the core-days that Table 2 prints for it.
PAPER_CORE_DAYS = {
  start.name: table2.PAPER[cost.CORE_DAYS, column].printed
  for column, start in table2.STARTS.items()
}
# Config keys that do not change the number of operations.
_FREE = ('seed', 'schedule.peak', 'init.checkpoint', 'data.dataset')


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
      are core-days known.
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
  runs, plans = planning.pretraining_runs(nodes, sweep), {}
  if topology:
    topology = planning.compile_missing(
      runs.values(), where.local, topology, _say
    )
  if papers_own:
    kept = planning.read(where.local)
    plans = planning.with_days(kept, runs, topology)
  names = {node.name for node in nodes}
  part = Sweep([study for study in sweep.studies if study.name in names])
  finished = bring_to_end.read_finished(part, where)
  tuned = [study for study in part.studies if study.name not in runs]
  lines = [
    *_table(nodes, runs, where, finished, plans, papers_own=papers_own),
    _finetuning(tuned, finished, papers_own=papers_own),
  ]
  if papers_own:
    lines += _notes(plans, len(runs), topology)
  else:
    lines.append(_left(part, finished))
  return '\n'.join(lines)


def _table(
  nodes: Iterable[Node],
  runs: Mapping[str, Run],
  where: Folders,
  finished: schedule.Finished,
  plans: Mapping[str, planning.Plan],
  *,
  papers_own: bool,
) -> list[str]:
  """Returns the pre-training runs as lines of text; none without any.

  Columns without a value are left out.
  """
  rows = []
  for node in nodes:
    if isinstance(node, Pretraining):
      run, plan = runs[node.name], plans.get(node.name)
      config = reading.read_config(planning.planned(run))
      compute = cost.exaflops(node) if papers_own else cost.teraflops(config)
      steps = config.total_steps or analysis.resolve(config, 'tpu').total_steps
      days = planning.days(plan) if plan else None
      hours = cost.device_hours(finished.get(run.name, {}))
      state = _state(run, where, finished)
      rows.append((node.name, compute, steps, days, hours, state))
  if not rows:
    return []
  sums = [_sum(column) for column in [*zip(*rows, strict=True)][1:5]]
  done = sum(row[-1] == 'finished' for row in rows)
  rows.append((plural(len(rows), 'run'), *sums, f'{done} finished'))
  unit = cost.UNITS['paper' if papers_own else 'mini']
  cells = [
    (
      *('Pre-training', unit, 'Steps', 'Core-days', "Paper's", 'Device hours'),
      'State',
    )
  ]
  for name, compute, steps, days, hours, state in rows:
    papers = papers_own and PAPER_CORE_DAYS.get(name)
    first = (_text(compute, 1), _text(steps, 0), _text(days, 1), papers or DASH)
    cells.append((name, *first, _text(hours, 2), state))
  columns = zip(*cells, strict=True)
  shown = [column for column in columns if {*column[1:]} != {DASH}]
  *body, last = text_table.aligned([*zip(*shown, strict=True)]).splitlines()
  return [*body, '-' * max(map(len, body)), last]


def _text(value: float | None, digits: int) -> str:
  return DASH if value is None else number(value, digits)


def _sum(values: Iterable[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) if known else None


def _state(run: Run, where: Folders, finished: schedule.Finished) -> str:
  if run.name in finished:
    return 'finished'
  return 'begun' if where.workdir(run.name).exists() else 'not begun'


def _teraflops(runs: Iterable[Run]) -> dict[str, float]:
  """Returns run name -> operations; heads count for one class."""
  known, found = {}, {}
  for run in runs:
    # Reading configs is slow, and most runs differ only in these keys.
    same = {k: v for k, v in run.overrides.items() if k not in _FREE}
    key = f'{run.config} {same}'
    if key not in known:
      # Counting is slower still; the head is a small part of a model.
      config = reading.read_config(run).to_dict() | {'num_classes': 1}
      known[key] = cost.teraflops(config)
    found[run.name] = known[key]
  return found


def _finetuning(
  studies: Sequence[Study], finished: schedule.Finished, *, papers_own: bool
) -> str:
  """Returns a line on all fine-tuning: the number of runs, cost and progress.

  Args:
    studies: without pre-trainings.
    finished: see `bring_to_end.read_finished`.
    papers_own: see `text`.
  """
  if not studies:
    return 'No fine-tuning.'
  runs = schedule.expected(Sweep(studies), finished)
  several = 'study' if len(studies) == 1 else 'studies'
  words = [
    f'Fine-tuning: {len(studies)} {several} of {number(len(runs), 0)} runs'
  ]
  if papers_own:
    exaflops = sum(_teraflops(runs.values()).values()) / 1e6
    words.append(f'{number(exaflops, 1)} exaFLOPs')
  done = [finished[name] for name in runs if name in finished]
  words.append(f'{number(len(done), 0)} finished')
  hours = _sum(map(cost.device_hours, done))
  if hours is not None:
    words.append(f'{number(hours, 2)} device hours')
  return ', '.join(words) + '.'


def _left(sweep: Sweep, finished: schedule.Finished) -> str:
  """Returns a line on the compute of a miniature's runs, and what is left.

  The runs that are left are taken to be as fast as the finished ones.
  """
  runs = schedule.expected(sweep, finished)
  operations = _teraflops(runs.values())
  every = sum(operations.values())
  line = f'All runs: {number(every, 1)} teraFLOPs.'
  hours = {
    name: spent
    for name in runs
    if (spent := cost.device_hours(finished.get(name, {})))
  }
  if not hours:
    return line
  done, spent = sum(map(operations.get, hours)), sum(hours.values())
  return (
    f'{line} The finished ones made {number(done / (3.6 * spent), 1)} GFLOP/s'
    f' of a device; at this speed {number((every - done) * spent / done, 1)}'
    ' device hours are left.'
  )


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _notes(
  plans: Mapping[str, planning.Plan], total: int, topology: str
) -> list[str]:
  """Returns notes on what the core-days mean and which compilers made them."""
  notes = []
  if plans:
    notes.append(
      f'Core-days are estimates of vit_jax.plan for {topology or "TPUv3"}, from'
      f' {planning.FILE}, and count steps only. {analysis.RESTS_ON}'
    )
  # Plans of earlier versions do not name their compiler.
  if made := sorted({*map(compilers.named, plans.values())} - {''}):
    notes.append(f'Compiled by {"; ".join(made)}.')
  if len(plans) < total:
    notes.append(
      f'Core-days of {total - len(plans)} runs are unknown: --plan'
      ' --topology=v3:16x16 compiles their steps, which takes minutes each.'
    )
  return notes
