"""Reproduces the paper: `python -m vit_jax.reproduce ITEM... --workdir=DIR`.

  all --list                           the items, and how far they are in DIR
  all --scale=mini --parallel=2        in miniature, on two CPU cores
  table6 --plan                        the runs, their cost, what there is
  table6 --plan --topology=v3:16x16    also estimates their core-days, for hours
  table6 --render                      prints what there is so far

Runs that are missing are started, at most --parallel at a time, and the same
command goes on where it stopped; items share runs. Then DIR/results.md and
DIR/index.html show our numbers beside the paper's. What has no run is missing
there. --list, --plan and --render start nothing.

--scale=paper is the paper's own models and data: start it with --launcher=slurm
or tpu_vm, or take the commands that --dry_run prints to a pod. The data that is
not public must be named: --jft=SPEC, --imagenet21k=SPEC. --scale=mini needs no
data; --data=SPEC, such as folder:/data/cifar10, puts your own in place of its
scenes.
"""

import dataclasses
import datetime
import functools
from collections.abc import Sequence

from absl import flags

from vit_jax import command_line, environment
from vit_jax.paper import items, page, planning, report
from vit_jax.paper import runs as runs_lib
from vit_jax.paper.runs import Results, with_needs
from vit_jax.sweep import launch, reading, running, schedule, state
from vit_jax.sweep.spec import Sweep

SWEEP = 'configs/sweeps/reproduce.py'

_SCALE = flags.DEFINE_enum(
  'scale', 'paper', ['paper', 'mini'], 'Of models, data and schedules.'
)
_JFT = flags.DEFINE_string('jft', '', 'Data spec of JFT-300M.')
_IMAGENET21K = flags.DEFINE_string(
  'imagenet21k', '', 'Data spec of ImageNet-21k.'
)
_DATA = flags.DEFINE_string(
  'data',
  '',
  'Data spec with the splits train and test, which --scale=mini pre-trains on'
  ' instead of rendered scenes.',
)
_LIST = flags.DEFINE_bool('list', False, 'List the items, and end.')
_PLAN = flags.DEFINE_bool(
  'plan', False, 'Print the runs, their cost, and what there is.'
)
_RENDER = flags.DEFINE_bool('render', False, 'Print what there is so far.')
_TOPOLOGY = flags.DEFINE_string(
  'topology',
  '',
  'With --plan: compiles the steps that DIR/plan.json lacks for a slice, such'
  ' as v3:16x16, and estimates the core-days. No TPU is needed.',
)
flags.adopt_module_key_flags(running)


def sweep_text(names: Sequence[str]) -> str:
  """The sweep file with its argument, as the flags say."""
  words = ['+'.join(names), f'scale={_SCALE.value}']
  for option, value in (
    ('jft', _JFT.value),
    ('imagenet21k', _IMAGENET21K.value),
    ('data', _DATA.value),
  ):
    if value:
      words.append(f'{option}={value}')
  return f'{SWEEP}:{",".join(words)}'


def sections(
  chosen: Sequence[items.Item], sweep: Sweep, where: running.Folders
) -> list[report.Section]:
  """What the items have to show, from the files of their runs."""
  finished = launch.read_finished(sweep, where)
  studies = {study.name: study for study in sweep.studies}
  papers_own = _SCALE.value == 'paper'
  days = _core_days(chosen, sweep, where) if papers_own else {}
  results = Results(
    sweep.studies,
    finished,
    comparable=papers_own,
    workdir=where.workdir,
    core_days=days,
  )

  @functools.cache  # Items share runs, and where they are may be far away.
  def commits(name: str) -> str:
    if name not in finished:
      return ''
    return ', '.join(environment.commits(where.workdir(name)))

  found = []
  for item in chosen:
    section = item.render(results, where.local / 'figures')
    behind = [
      run
      for node in with_needs(item.nodes)
      if node.name in studies  # Not all tasks of VTAB have a miniature.
      for run in schedule.known(studies[node.name], finished)
    ]
    runs = [
      report.Run(
        run.name,
        run.config,
        run.name in finished,
        hours=runs_lib.device_hours(finished.get(run.name, {})),
        commit=commits(run.name),
      )
      for run in behind
    ]
    found.append(
      report.Section(
        section.name,
        section.title,
        [_comparable(block) for block in section.blocks],
        runs,
        [*section.notes, *(_notes() if item.nodes else ())],
      )
    )
  return found


def _core_days(
  chosen: Sequence[items.Item], sweep: Sweep, where: running.Folders
) -> dict[str, float]:
  """What is known of them: see `planning.core_days`."""
  nodes = with_needs(node for item in chosen for node in item.nodes)
  runs = planning.pretraining_runs(nodes, sweep)
  return planning.core_days(planning.read(where.local), runs)


def _comparable(block):
  """The block, without differences where they would mean nothing."""
  if isinstance(block, report.Table) and _SCALE.value == 'mini':
    return dataclasses.replace(block, comparable=False)
  return block


def _notes() -> list[str]:
  if _SCALE.value == 'paper':
    return []
  return [
    'In miniature: Transformers with an eighth of the width and a sixth of the'
    ' layers, ResNets with an eighth and a quarter, on images of 32 px of'
    f' {_DATA.value or "rendered scenes"} and scanned digits (configs/mini.py).'
    ' The numbers are not those of the paper; only their order may be compared.'
  ]


def write(
  found: Sequence[report.Section],
  printed: Sequence[str],
  where: running.Folders,
) -> None:
  """Writes the pages.

  Args:
    found: what they show.
    printed: the items that are also printed.
    where: where the pages go.
  """
  runs = {run.name: run for section in found for run in section.runs}
  done = [run for run in runs.values() if run.finished]
  hours = sum(run.hours or 0.0 for run in done)
  page.write(
    found,
    where.local,
    title='An Image is Worth 16x16 Words, reproduced',
    facts={
      'scale': _SCALE.value,
      'date': datetime.date.today().isoformat(),
      'runs': f'{len(done)} of {len(runs)} finished',
      'device hours': f'{hours:.2f}',
    },
  )
  brief = [
    dataclasses.replace(section, runs=())
    for section in found
    if section.name in printed
  ]
  print(page.markdown(brief, title='Results', facts={}))
  print(f'{where.local}/index.html shows {len(done)} of {len(runs)} runs.')


def listing(
  chosen: Sequence[items.Item], sweep: Sweep, where: running.Folders
) -> str:
  """A line for each item: how many of its runs are finished, if it has any."""
  lines = []
  for item in chosen:
    done, total = progress(item, sweep, where)
    there = f'{done:>4} of {total:<4} runs' if item.nodes else 'from the code'
    if item.measure:
      there = 'measured'
    lines.append(f'{item.name:<9} {there:<17}  {item.title}')
  return '\n'.join(lines)


def progress(
  item: items.Item, sweep: Sweep, where: running.Folders
) -> tuple[int, int]:
  """How many runs of an item are finished, and how many it has."""
  studies = {study.name: study for study in sweep.studies}
  part = Sweep(
    [
      studies[node.name]
      for node in with_needs(item.nodes)
      if node.name in studies
    ]
  )
  finished = launch.read_finished(part, where)
  done = {
    run.name
    for study in part.studies
    for run in schedule.known(study, finished)
    if run.name in finished
  }
  return len(done), schedule.total(part, finished)


def main(words: Sequence[str]) -> None:
  chosen = items.find(words)
  names = [item.name for item in chosen]
  where = running.folders()
  if _TOPOLOGY.value and not _PLAN.value:
    raise ValueError('--topology is read by --plan only; give both.')
  if _PLAN.value:
    # Imported late: it imports the planner.
    from vit_jax.paper import plan_table

    text = plan_table.text(
      with_needs(node for item in chosen for node in item.nodes),
      read(names, where),
      where,
      papers_own=_SCALE.value == 'paper',
      topology=_TOPOLOGY.value,
    )
    print(text)
    return
  has_runs = any(item.nodes for item in chosen)
  if running.is_dry_run():
    if has_runs:
      running.run(sweep_text(names), table=False)
    return
  everything = read(list(items.ITEMS), where)
  if _LIST.value:
    print(listing(chosen, everything, where))
    return
  try:
    if has_runs and not _RENDER.value:
      running.run(sweep_text(names), table=False)
    for item in chosen:
      if item.measure and not _RENDER.value:
        folder = where.local / 'measured'
        folder.mkdir(parents=True, exist_ok=True)
        item.measure(_SCALE.value, folder)
  finally:
    # Also what there is when a run failed, or this was stopped; and all that
    # was ever run here or needs no run, not only what was asked for now.
    shown = [
      item
      for item in items.ITEMS.values()
      if item in chosen
      or not item.nodes
      or progress(item, everything, where)[0]
    ]
    write(sections(shown, everything, where), names, where)


def read(names: Sequence[str], where: running.Folders) -> Sweep:
  """The runs of some items, as the flags say.

  Raises:
    ValueError: --workdir holds other runs, such as those of another --scale.
  """
  sweep = running.with_overrides(reading.load(sweep_text(names)))
  state.check_same_runs(
    where.local, sweep, lambda name: where.workdir(name).exists()
  )
  return sweep


if __name__ == '__main__':
  command_line.run(
    main,
    required=('workdir',),
    arguments='the items, such as table5 table8, or all',
  )
