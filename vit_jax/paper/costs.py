"""What `vit_jax.reproduce --plan` prints: runs, their cost and their progress.

In miniature, the cost of the runs that are left follows from the operations of
all runs and the device hours of the finished ones.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from vit_jax.paper import cost, planning
from vit_jax.paper.items.tables import table2
from vit_jax.paper.page.texts import DASH, number, plural
from vit_jax.paper.runs import Node, Pretraining, Transfer, Vtab
from vit_jax.plan import analysis
from vit_jax.runtime import json_text, text_table
from vit_jax.sweep import bring_to_end, reading, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Study, Sweep
from vit_jax.workdir import files, metrics

# Name of a pre-training -> the core-days that Table 2 prints for it.
PAPER_CORE_DAYS = {
  start.name: table2.PAPER[cost.CORE_DAYS, column].printed
  for column, start in table2.STARTS.items()
}


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
  days, notes = {}, []
  runs = planning.pretraining_runs(nodes, sweep)
  if papers_own:
    if topology:
      topology = planning.compile_missing(
        runs.values(), where.local, topology, _say
      )
    plans = planning.read(where.local)
    days = planning.core_days(plans, runs, topology)
    made = planning.compilers(plans, runs, topology)
    notes = _notes(len(days), len(runs), topology, made)
  finished = bring_to_end.read_finished(sweep, where)
  lines = [table(nodes, runs, where, finished, days, papers_own=papers_own)]
  lines.append(finetuning(nodes, sweep, finished, papers_own=papers_own))
  if not papers_own:
    lines += _left(nodes, sweep, finished)
  return '\n'.join(filter(None, [*lines, *notes]))


def table(
  nodes: Iterable[Node],
  runs: Mapping[str, Run],
  where: Folders,
  finished: schedule.Finished,
  core_days: Mapping[str, float],
  *,
  papers_own: bool,
) -> str:
  """Returns the pre-training runs as lines of text; '' without any.

  Columns without a value are left out.

  Args:
    nodes: all but pre-trainings are left out.
    runs: see `planning.pretraining_runs`.
    where: the folders of the runs.
    finished: see `bring_to_end.read_finished`.
    core_days: see `planning.core_days`.
    papers_own: see `text`.
  """
  rows = []
  for node in nodes:
    if isinstance(node, Pretraining):
      run = runs[node.name]
      compute = (
        cost.exaflops(node)
        if papers_own
        else cost.teraflops_of_config(reading.read_config(run))
      )
      hours = cost.device_hours(finished.get(run.name, {}))
      state = _state(run, where, finished)
      days = core_days.get(node.name)
      rows.append((node.name, compute, _steps(run), days, hours, state))
  if not rows:
    return ''
  unit = cost.UNITS['paper' if papers_own else 'mini']
  head = (
    *('Pre-training', unit, 'Steps', 'Core-days', "Paper's", 'Device hours'),
    'State',
  )
  done = sum(row[-1] == 'finished' for row in rows)
  total = (
    plural(len(rows), 'run'),
    *(_sum(column) for column in [*zip(*rows, strict=True)][1:5]),
    f'{done} finished',
  )
  lines = [head]
  for name, compute, steps, days, hours, state in (*rows, total):
    papers = PAPER_CORE_DAYS.get(name, '') if papers_own else ''
    cells = (_text(compute, 1), _text(steps, 0), _text(days, 1), papers or DASH)
    lines.append((name, *cells, _text(hours, 2), state))
  kept = [i for i in range(len(head)) if any(r[i] != DASH for r in lines[1:])]
  shown = text_table.aligned([[row[i] for i in kept] for row in lines])
  *body, last = shown.splitlines()
  return '\n'.join([*body, '-' * max(map(len, body)), last])


def _text(value: float | None, digits: int) -> str:
  return DASH if value is None else number(value, digits)


def _sum(values: Iterable[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) if known else None


def _steps(run: Run) -> int:
  config = reading.read_config(planning.planned(run))
  return config.total_steps or analysis.resolve(config, 'tpu').total_steps


def _state(run: Run, where: Folders, finished: schedule.Finished) -> str:
  if run.name in finished:
    return 'finished'
  content = files.content(where.workdir(run.name) / metrics.FILE)
  for line in reversed(content.decode(errors='replace').splitlines()):
    # The last line is cut off if the process died while writing it.
    with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
      return f'step {json_text.loads(line)["step"]:,}'
  return 'not begun'


def finetuning(
  nodes: Iterable[Node],
  sweep: Sweep,
  finished: schedule.Finished,
  *,
  papers_own: bool,
) -> str:
  """Returns a line on all fine-tuning: the number of runs, cost and progress.

  Args: as for `table`; `sweep` contains the runs.
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
  speed = done / (3.6 * hours)
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
