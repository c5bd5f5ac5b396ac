"""Brings items to their end: runs, measurements, pages; none loses another."""

import datetime
import functools
from collections.abc import Callable, Sequence

from vit_jax.paper import items, overview, page, rendering
from vit_jax.paper.items.item import Item
from vit_jax.runtime import errors
from vit_jax.sweep import state
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Sweep

# Seconds to wait for another process that draws in the same directory.
WAIT = 900.0


def make(
  chosen: Sequence[Item],
  where: Folders,
  *,
  scale: str,
  run: Callable[[], None],
) -> list[Exception]:
  """Runs and measures what is missing; a step that fails stops no other one.

  Args:
    chosen: the items.
    where: the runs work, and measurements go.
    scale: 'paper' or 'mini'.
    run: brings the items' runs to their end.

  Returns:
    What failed.

  Raises:
    PreemptedError: it was asked to stop.
    InUseError: another process does the same in this directory.
  """
  steps = [run] if any(item.nodes for item in chosen) else []
  steps += [
    functools.partial(_measure, item, where, scale)
    for item in chosen
    if item.measure
  ]
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
  # What runs beside it would slow it down.
  with state.lock(where.local):
    item.measure(scale, folder)


def finish(
  chosen: Sequence[Item],
  everything: Sweep,
  where: Folders,
  failures: Sequence[Exception],
  *,
  scale: str,
  data: str = '',
  wait: float = WAIT,
) -> None:
  """Writes the pages, then says what failed, before or now.

  The pages have all that was ever run here or needs no run, not only what was
  asked for now.

  Args:
    chosen: the items that are also printed.
    everything: the runs of all items.
    where: they work, and the pages go.
    failures: of `make`.
    scale: 'paper' or 'mini'.
    data: of a miniature; see `rendering.about`.
    wait: seconds, for another process that draws here.

  Raises:
    Exception: the one that failed; ValueError with a line for each of several.
  """
  shown = [
    item
    for item in items.ITEMS.values()
    if item in chosen
    or not item.nodes
    or overview.progress(item, everything, where, scale)[0]
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
      lines = _write(shown, printed, everything, where, scale, data)
    failures += [ValueError(line) for line in lines]
  except Exception as error:
    # It must not hide what failed before.
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
  scale: str,
  data: str,
) -> list[str]:
  """Draws and writes the pages; returns a line for each item that failed."""
  found, failures = rendering.sections(shown, everything, where, scale=scale)
  about = functools.partial(rendering.about, scale=scale, data=data)
  runs = {run.name: run for section in found for run in section.runs}
  done = [run for run in runs.values() if run.finished]
  hours = [run.hours for run in done if run.hours is not None]
  page.write(
    found,
    where.local,
    title='An Image is Worth 16x16 Words, reproduced',
    facts={
      'scale': scale,
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
