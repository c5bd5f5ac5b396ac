"""Makes the items' runs, measurements and pages; a failure stops no others."""

import collections
import dataclasses
import datetime
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import logging

from vit_jax import certificate
from vit_jax.paper import (
  answers,
  cost,
  inside,
  items,
  miniature,
  page,
  planning,
  report,
)
from vit_jax.paper.item import Item
from vit_jax.paper.page import texts
from vit_jax.paper.report import Section
from vit_jax.paper.runs import Node, Pretraining, Results, with_needs
from vit_jax.runtime import errors
from vit_jax.sweep import bring_to_end, state
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Study, Sweep
from vit_jax.workdir import environment, files

_EXPLORES = (
  'exploration. The set-up was chosen by looking at such runs, so they cannot'
  ' confirm a claim. --first_seed=N makes runs that can.'
)
# Folder below WORKDIR for measurements that are made outside of runs.
MEASURED = 'measured'
# The numbers behind the claims.
NUMBERS = 'numbers.json'
# Seconds to wait for another process that draws in the same directory.
WAIT = 900.0


@dataclasses.dataclass(frozen=True)
class Workplace:
  """A work directory, and what its runs are.

  Attributes:
    where: the folders of the runs, measurements and pages.
    scale: one of `runs.SCALES`.
    seeds: pre-trainings of each mean of a claim.
    data: spec of the data of a smaller scale; '' if it has scenes.
    first_seed: of a miniature's runs; 0 if they explore.
    studies: the runs of all items.
  """

  where: Folders
  scale: str
  seeds: int
  data: str = ''
  first_seed: int = 0
  studies: Sequence[Study] = ()

  @property
  def measured(self) -> pathlib.Path:
    return self.where.local / MEASURED

  def nodes(self, *chosen: Item) -> list[Node]:
    """Returns what items show, what their claims need, and pre-trainings."""
    return with_needs(
      node for item in chosen for node in item.nodes(self.scale, self.seeds)
    )

  def results(self, chosen: Sequence[Item]) -> Results:
    """Reads the results of the finished runs of some items."""
    nodes, days = self.nodes(*chosen), {}
    names = {node.name for node in nodes}
    part = [study for study in self.studies if study.name in names]
    if self.scale == 'paper':
      runs = planning.pretraining_runs(nodes, Sweep(part))
      days = planning.core_days(runs, self.where.local)
    return Results(
      self.studies,
      bring_to_end.read_finished(Sweep(part), self.where),
      scale=self.scale,
      workdir=self.where.workdir,
      days=days,
    )

  def of_item(self, item: Item, results: Results) -> Results:
    """Returns the results as an item counts pre-trainings."""
    counts = item.counts(self.scale, self.seeds)
    return dataclasses.replace(results, counts=counts)

  def progress_measured(self, item: Item) -> tuple[int, int]:
    """Returns how many of its measurements are done, and how many exist."""
    return item.measured(self.scale, self.measured) if item.measured else (0, 0)


def listing(chosen: Sequence[Item], place: Workplace) -> str:
  """Returns a line for each item: its runs or measurements, and its title."""
  lines, results = [], place.results(chosen)
  width = max((len(item.name) for item in chosen), default=0)
  for item in chosen:
    there = 'from the code'
    if place.scale not in item.scales:
      there = 'not at this scale'
    elif nodes := place.nodes(item):
      done, total = results.progress(nodes)
      there = f'{done:>4} of {total:<4} runs'
    elif item.measured:
      done, total = place.progress_measured(item)
      there = f'{done:>4} of {total} measured' if done else 'not measured'
    claims = len(item.claims(place.scale))
    asks = f' ({texts.plural(claims, "claim")})' if claims else ''
    lines.append(f'{item.name:<{width}} {there:<17}  {item.title}{asks}')
  return '\n'.join(lines)


def make(
  chosen: Sequence[Item],
  place: Workplace,
  *,
  run: Callable[[], None] | None,
  data: Mapping[str, str],
) -> list[Exception]:
  """Makes the missing runs and measurements; a failing step stops no other.

  Args:
    chosen: the items.
    place: of the runs.
    run: finishes the items' runs; None: they have none.
    data: item -> what `--NAME=PATH` gives.

  Returns:
    The errors of the steps that failed.

  Raises:
    PreemptedError: the process was asked to stop.
    InUseError: another process does the same in this directory.
  """
  steps = [run] if run else []
  steps += [
    functools.partial(_measure, item, place, data.get(item.name, ''))
    for item in chosen
    if item.measure and (data.get(item.name) or not item.lacking)
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


def _measure(item: Item, place: Workplace, data: str) -> None:
  place.measured.mkdir(parents=True, exist_ok=True)
  results = place.results([item])
  # Runs beside a measurement would slow it down.
  with state.lock(place.where.local):
    item.measure(
      place.of_item(item, results),
      *(place.measured, data),
    )


def finish(
  chosen: Sequence[Item],
  place: Workplace,
  failures: Sequence[Exception],
) -> None:
  """Writes the pages, then raises what failed, before or now.

  The pages show every item that has finished runs here or needs no run, not
  only the chosen ones. Items beyond the paper share runs with the paper's, and
  reading their weights takes time, so they are shown only if they are chosen or
  measured.

  Args:
    chosen: the items that are also printed.
    place: of the runs.
    failures: what `make` returned.

  Raises:
    Exception: the only failure; ValueError with a line for each if there are
      several.
  """
  every = list(items.ITEMS.values())
  results, failures = place.results(every), list(failures)
  shown = [
    item
    for item in every
    if item in chosen
    or (
      not item.beyond
      and (not (nodes := place.nodes(item)) or results.progress(nodes)[0])
    )
    or place.progress_measured(item)[0]
  ]
  try:
    place.where.local.mkdir(parents=True, exist_ok=True)
    with state.lock(
      place.where.local,
      'pages.lock',
      holder='process that draws its pages',
      wait=WAIT,
    ):
      names = [item.name for item in chosen]
      lines = _write(shown, names, place, results)
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
  place: Workplace,
  results: Results,
) -> list[str]:
  """Draws and writes the pages; returns a line for each item that failed."""
  found, failures = sections(shown, place, results)
  found = [
    dataclasses.replace(
      section,
      folded=section.name not in printed
      and texts.status(section).word != texts.COMPLETE,
    )
    for section in found
  ]
  about = functools.partial(miniature.about, scale=place.scale, data=place.data)
  runs = {run.name: run for section in found for run in section.runs}
  done = [run for run in runs.values() if run.finished]
  hours = [run.hours for run in done if run.hours is not None]
  facts = {'scale': place.scale}
  if place.scale == 'mini':
    seeds = f'confirmation, by seeds from {place.first_seed} on'
    facts['status'] = seeds if place.first_seed else _EXPLORES
  facts |= {
    'date': datetime.date.today().isoformat(),
    'runs': f'{len(done)} of {len(runs)} finished',
    'device hours': f'{sum(hours):.2f}' if hours else 'not known',
  }
  page.write(
    found,
    place.where.local,
    title='An Image is Worth 16x16 Words, reproduced'
    + (f' ({report.MINIATURE})' if place.scale != 'paper' else ''),
    facts=facts,
    about=about(found),
  )
  brief = [section for section in found if section.name in printed]
  print(
    page.markdown(
      brief, title='Results', facts={}, about=about(brief), list_runs=False
    )
  )
  local = place.where.local
  print(f'{local}/index.html shows {len(done)} of {len(runs)} runs.')
  return failures


def sections(
  chosen: Sequence[Item], place: Workplace, results: Results
) -> tuple[list[Section], list[str]]:
  """Renders the items; a failing item does not stop the others.

  Pictures go to WORKDIR/figures, the numbers of the claims to
  WORKDIR/numbers.json.

  Args:
    chosen: the items.
    place: of the runs.
    results: of the runs of these items, and possibly others.

  Returns:
    A section for each item; and a line for each item that could not be drawn,
    whose section gives the reason too.
  """
  scale = place.scale
  own = {item.name: place.of_item(item, results) for item in chosen}
  numbers, failures = inside.measure(
    _from_weights(chosen, own), results, place.measured
  )
  known = results.known(place.nodes(*chosen))
  runs = {run.name: _reported(run, place, results) for run in known}
  found, claims = {}, {}
  for item in chosen:
    its = dataclasses.replace(own[item.name], weights=numbers)
    try:
      section = item.render(its, place.where.local / 'figures')
      values = answers.lookup(its)
      claims |= {
        (item.name, claim.key): (claim, values) for claim in item.claims(scale)
      }
    # An item may fail in any way: the page must still show the others.
    except Exception as error:
      logging.vlog(1, '%s:', item.name, exc_info=True)
      kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}:'
      why = f'could not be drawn: {" ".join(f"{kind} {error}".split())}'
      failures.append(f'{item.name}: {why}')
      section = Section(item.name, item.title, missing=(why,))
    section = dataclasses.replace(
      section,
      runs=[runs[run.name] for run in results.known(place.nodes(item))],
    )
    found[item.name] = (
      section if scale == 'paper' else miniature.marked(section)
    )
  said = answers.of_page(claims, miniature=scale == 'mini')
  for (name, _), claim in said.items():
    blocks = (*found[name].blocks, claim)
    found[name] = dataclasses.replace(found[name], blocks=blocks)
  _write_numbers(place, claims.values(), runs)
  return [*found.values()], failures


def _from_weights(
  chosen: Iterable[Item], results: Mapping[str, Results]
) -> dict[Pretraining, dict[str, Callable[[str], float]]]:
  """Returns pre-training -> what reads the numbers of it that are shown.

  Args:
    chosen: the items.
    results: item -> its own results, see `Workplace.of_item`.
  """
  wanted = collections.defaultdict(dict)
  for item in chosen:
    own = results[item.name]
    asked = [mean for claim in item.asked(own.scale) for mean in claim.means()]
    for mean in (*item.means(own.scale), *asked):
      if kind := mean.measure.inside:
        for start in own.seeds(mean.start):
          wanted[start][kind] = mean.measure.read
  return wanted


def _reported(run: Run, place: Workplace, results: Results) -> report.Run:
  """Returns what the page says of a run."""
  commits, proof = [], ''
  workdir = place.where.workdir(run.name)
  if run.name in results.finished:
    commits = environment.commits(workdir)
    if (path := workdir / certificate.FILE).exists():
      proof = os.fspath(path).removeprefix(f'{place.where.local}/')
  return report.Run(
    run.name,
    ' '.join([run.config, *(f'{k}={v}' for k, v in run.overrides.items())]),
    run.name in results.finished,
    hours=cost.device_hours(results.finished.get(run.name, {})),
    commit=', '.join(commits),
    certificate=proof,
  )


def _write_numbers(
  place: Workplace, claims: Iterable, runs: Mapping[str, report.Run]
) -> None:
  """Writes the numbers behind the claims, and each run's device minutes."""
  values: dict[str, dict[str, Sequence[float]]] = {}
  for claim, lookup in claims:
    for mean in claim.means():
      if found := lookup(mean):
        # Items may have different numbers of the same pre-trainings.
        known = values.setdefault(mean.measure.name, {})
        known[mean.start.name] = max(
          known.get(mean.start.name, []), found, key=len
        )
  minutes = {
    name: round(60 * runs[name].hours, 3)
    for name in sorted(runs)
    if runs[name].hours is not None
  }
  if values or minutes:
    with files.atomic(place.where.local / NUMBERS) as temporary:
      found = {'values': values, 'minutes': minutes}
      temporary.write_text(json.dumps(found, indent=1) + '\n')
