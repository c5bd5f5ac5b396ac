"""Makes the items' runs, measurements and pages; a failure stops no others."""

import dataclasses
import datetime
import functools
from collections.abc import Callable, Sequence

from vit_jax.paper import items, overview, page, rendering, report
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.paper.page import page_parts
from vit_jax.paper.runs import Results
from vit_jax.runtime import errors
from vit_jax.sweep import bring_to_end, state
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Sweep

_EXPLORES = (
  'exploration. The set-up was not registered before these runs, so they cannot'
  ' confirm a claim. --confirm makes runs that can.'
)
# Seconds to wait for another process that draws in the same directory.
WAIT = 900.0


def make(
  chosen: Sequence[Item],
  where: Folders,
  *,
  scale: str,
  run: Callable[[], None] | None,
  more: Sequence[Callable[[], None]] = (),
) -> list[Exception]:
  """Makes the missing runs and measurements; a failing step stops no other.

  Args:
    chosen: the items.
    where: the folders of the runs and of the measurements.
    scale: one of `design.SCALES`.
    run: finishes the items' runs; None: they have none.
    more: steps after these.

  Returns:
    The errors of the steps that failed.

  Raises:
    PreemptedError: the process was asked to stop.
    InUseError: another process does the same in this directory.
  """
  steps = [run] if run else []
  steps += [
    functools.partial(_measure, item, where, scale)
    for item in chosen
    if item.measure
  ]
  steps += more
  failures = []
  for step in steps:
    try:
      step()
    except (errors.RestartableError, state.InUseError):
      raise
    except Exception as error:
      failures.append(error)
  return failures


def _measure(item: Item, where: Folders, scale: str) -> None:
  folder = where.local / overview.MEASURED
  folder.mkdir(parents=True, exist_ok=True)
  # Runs beside a measurement would slow it down.
  with state.lock(where.local):
    item.measure(scale, folder)


def evaluate(
  item: Item, everything: Sweep, where: Folders, design: Design, data: str
) -> None:
  """Evaluates the finished runs of an item that needs data for that.

  Args:
    item: has `evaluate`.
    everything: the runs of all items.
    where: the folders of the runs and of the measurements.
    design: the scale, and how many pre-trainings there are.
    data: the folder of the data.

  Raises:
    ValueError: an evaluation failed.
  """
  results = Results(
    everything.studies,
    bring_to_end.read_finished(everything, where),
    comparable=design.scale == 'paper',
    scale=design.scale,
    workdir=where.workdir,
    counts=design.counts(item),
  )
  with state.lock(where.local):
    item.evaluate(results, data, where.local / overview.MEASURED)


def finish(
  chosen: Sequence[Item],
  everything: Sweep,
  where: Folders,
  failures: Sequence[Exception],
  *,
  design: Design,
  data: str = '',
  wait: float = WAIT,
) -> None:
  """Writes the pages, then raises what failed, before or now.

  The pages show every item that has finished runs here or needs no run, not
  only the chosen ones. Items beyond the paper share runs with the paper's, and
  reading their weights takes time, so they are shown only if they are chosen or
  measured.

  Args:
    chosen: the items that are also printed.
    everything: the runs of all items.
    where: the folders of the runs and the pages.
    failures: what `make` returned.
    design: the scale, and how many pre-trainings there are.
    data: of a miniature; see `rendering.about`.
    wait: seconds to wait for another process that draws here.

  Raises:
    Exception: the only failure; ValueError with a line for each if there are
      several.
  """
  every = list(items.ITEMS.values())
  finished = overview.read_finished(every, everything, where, design)
  shown = [
    item
    for item in every
    if item in chosen
    or (
      not item.beyond
      and (
        not item.nodes
        or overview.progress(item, everything, finished, design)[0]
      )
    )
    or overview.measured(item, where, design)[0]
  ]
  printed = [item.name for item in chosen]
  failures = list(failures)
  try:
    where.local.mkdir(parents=True, exist_ok=True)
    with state.lock(
      where.local,
      'pages.lock',
      holder='process that draws its pages',
      wait=wait,
    ):
      lines = _write(shown, printed, everything, where, design, data)
    failures += [ValueError(line) for line in lines]
  except Exception as error:
    # This error must not hide earlier ones.
    failures.append(error)
  if len(failures) == 1:
    raise failures[0]
  if failures:
    raise ValueError('\n'.join(map(str, failures))) from failures[0]


def _write(
  shown: Sequence[Item],
  printed: Sequence[str],
  everything: Sweep,
  where: Folders,
  design: Design,
  data: str,
) -> list[str]:
  """Draws and writes the pages; returns a line for each item that failed."""
  scale = design.scale
  found, failures = rendering.sections(shown, everything, where, design)
  found = [
    dataclasses.replace(
      section,
      folded=section.name not in printed
      and page_parts.status(section).word != page_parts.COMPLETE,
    )
    for section in found
  ]
  about = functools.partial(rendering.about, scale=scale, data=data)
  runs = {run.name: run for section in found for run in section.runs}
  done = [run for run in runs.values() if run.finished]
  hours = [run.hours for run in done if run.hours is not None]
  page.write(
    found,
    where.local,
    title='An Image is Worth 16x16 Words, reproduced'
    + (f' ({report.MINIATURE})' if scale != 'paper' else ''),
    facts={
      'scale': scale,
      # Only the miniature can be registered.
      **({'status': design.confirms or _EXPLORES} if scale == 'mini' else {}),
      'date': datetime.date.today().isoformat(),
      'runs': f'{len(done)} of {len(runs)} finished',
      'device hours': f'{sum(hours):.2f}' if hours else 'not known',
    },
    about=about(found),
  )
  brief = [section for section in found if section.name in printed]
  print(
    page.markdown(
      brief, title='Results', facts={}, about=about(brief), list_runs=False
    )
  )
  print(f'{where.local}/index.html shows {len(done)} of {len(runs)} runs.')
  return failures
