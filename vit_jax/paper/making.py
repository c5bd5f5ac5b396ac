"""Makes the items' runs, measurements and pages; a failure stops no others."""

import dataclasses
import datetime
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import logging

from vit_jax.paper import (
  answers,
  cost,
  inside,
  items,
  miniature,
  page,
  planning,
  registered,
  report,
)
from vit_jax.paper.item import Item
from vit_jax.paper.page import texts
from vit_jax.paper.report import Section
from vit_jax.paper.runs import Node, Pretraining, Results, with_needs
from vit_jax.runtime import errors
from vit_jax.sweep import bring_to_end, schedule, state
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Sweep
from vit_jax.workdir import environment, files

_EXPLORES = (
  'exploration. The set-up was not registered before these runs, so they cannot'
  ' confirm a claim. --confirm makes runs that can.'
)
# Folder below WORKDIR for measurements that are made outside of runs.
MEASURED = 'measured'
# The numbers behind the claims.
NUMBERS = 'numbers.json'
# Seconds to wait for another process that draws in the same directory.
WAIT = 900.0


@dataclasses.dataclass(frozen=True)
class Setup:
  """What the runs are.

  Attributes:
    scale: one of `runs.SCALES`.
    seeds: pre-trainings of each mean of a claim.
    data: spec of the data of a smaller scale; '' if it has scenes.
    confirms: the date and the hash of the registered set-up that the runs
      confirm, as a sentence; '' if they explore.
  """

  scale: str
  seeds: int
  data: str = ''
  confirms: str = ''

  def nodes(self, item: Item) -> list[Node]:
    """Returns the item's runs: what it shows, and what its claims need."""
    return item.nodes(self.scale, self.seeds)


class Workplace:
  """A work directory with the runs of all items."""

  def __init__(self, everything: Sweep, where: Folders, setup: Setup):
    """Stores them.

    Args:
      everything: the runs of all items.
      where: the folders of the runs, measurements and pages.
      setup: what the runs are.
    """
    self._studies = {study.name: study for study in everything.studies}
    self.where, self.setup = where, setup
    self.measured = where.local / MEASURED

  def _part(self, nodes: Iterable[Node]) -> Sweep:
    # Some tasks of VTAB have no miniature.
    names = [node.name for node in with_needs(nodes)]
    return Sweep([self._studies[n] for n in names if n in self._studies])

  def runs(
    self, nodes: Iterable[Node], finished: schedule.Finished
  ) -> list[Run]:
    """Returns the known runs of the nodes and of their pre-trainings."""
    return [
      run
      for study in self._part(nodes).studies
      for run in schedule.known(study, finished)
    ]

  def finished(self, chosen: Iterable[Item]) -> dict[str, dict[str, float]]:
    """Returns run name -> final metrics, of the items' finished runs."""
    nodes = [node for item in chosen for node in self.setup.nodes(item)]
    return bring_to_end.read_finished(self._part(nodes), self.where)

  def progress(
    self, item: Item, finished: schedule.Finished
  ) -> tuple[int, int]:
    """Returns how many runs of an item are finished, and how many it has."""
    nodes = self.setup.nodes(item)
    known = {run.name for run in self.runs(nodes, finished)}
    return len(known & {*finished}), schedule.total(self._part(nodes), finished)

  def progress_measured(self, item: Item) -> tuple[int, int]:
    """Returns how many of its measurements are done, and how many exist."""
    if not item.measured:
      return 0, 0
    return item.measured(self.setup.scale, self.measured)

  def results(
    self, chosen: Sequence[Item], finished: schedule.Finished
  ) -> Results:
    """Returns the results of the finished runs of some items."""
    days = {}
    if self.setup.scale == 'paper':
      nodes = with_needs(n for i in chosen for n in self.setup.nodes(i))
      runs = planning.pretraining_runs(nodes, Sweep([*self._studies.values()]))
      days = planning.core_days(planning.read(self.where.local), runs)
    return Results(
      self._studies.values(),
      finished,
      scale=self.setup.scale,
      workdir=self.where.workdir,
      core_days=days,
    )


def listing(chosen: Sequence[Item], place: Workplace) -> str:
  """Returns a line for each item: its runs or measurements, and its title."""
  lines, finished = [], place.finished(chosen)
  width = max((len(item.name) for item in chosen), default=0)
  for item in chosen:
    there = 'from the code'
    if place.setup.scale not in item.scales:
      there = 'not at this scale'
    elif place.setup.nodes(item):
      done, total = place.progress(item, finished)
      there = f'{done:>4} of {total:<4} runs'
    elif item.measured:
      done, total = place.progress_measured(item)
      there = f'{done:>4} of {total} measured' if done else 'not measured'
    claims = len(item.claims(place.setup.scale))
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
  counts = item.counts(place.setup.scale, place.setup.seeds)
  results = place.results([item], place.finished([item])).counting(counts)
  # Runs beside a measurement would slow it down.
  with state.lock(place.where.local):
    item.measure(results, place.measured, data)


def finish(
  chosen: Sequence[Item],
  place: Workplace,
  failures: Sequence[Exception],
  *,
  wait: float = WAIT,
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
    wait: seconds to wait for another process that draws here.

  Raises:
    Exception: the only failure; ValueError with a line for each if there are
      several.
  """
  every = list(items.ITEMS.values())
  finished = place.finished(every)
  shown = [
    item
    for item in every
    if item in chosen
    or (
      not item.beyond
      and (not place.setup.nodes(item) or place.progress(item, finished)[0])
    )
    or place.progress_measured(item)[0]
  ]
  failures = list(failures)
  try:
    place.where.local.mkdir(parents=True, exist_ok=True)
    with state.lock(
      place.where.local,
      'pages.lock',
      holder='process that draws its pages',
      wait=wait,
    ):
      names = [item.name for item in chosen]
      lines = _write(shown, names, place, finished)
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
  finished: schedule.Finished,
) -> list[str]:
  """Draws and writes the pages; returns a line for each item that failed."""
  setup = place.setup
  found, failures = sections(shown, place, finished)
  found = [
    dataclasses.replace(
      section,
      folded=section.name not in printed
      and texts.status(section).word != texts.COMPLETE,
    )
    for section in found
  ]
  about = functools.partial(miniature.about, scale=setup.scale, data=setup.data)
  runs = {run.name: run for section in found for run in section.runs}
  done = [run for run in runs.values() if run.finished]
  hours = [run.hours for run in done if run.hours is not None]
  facts = {'scale': setup.scale}
  if setup.scale == 'mini':  # Only the miniature can be registered.
    facts |= {'status': setup.confirms or _EXPLORES, **registered.earlier()}
  facts |= {
    'date': datetime.date.today().isoformat(),
    'runs': f'{len(done)} of {len(runs)} finished',
    'device hours': f'{sum(hours):.2f}' if hours else 'not known',
  }
  page.write(
    found,
    place.where.local,
    title='An Image is Worth 16x16 Words, reproduced'
    + (f' ({report.MINIATURE})' if setup.scale != 'paper' else ''),
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
  chosen: Sequence[Item], place: Workplace, finished: schedule.Finished
) -> tuple[list[Section], list[str]]:
  """Renders the items; a failing item does not stop the others.

  Pictures go to WORKDIR/figures, the numbers of the claims to
  WORKDIR/numbers.json.

  Args:
    chosen: the items.
    place: of the runs.
    finished: run -> its last numbers; it may have further runs.

  Returns:
    A section for each item; and a line for each item that could not be drawn,
    whose section gives the reason too.
  """
  scale = place.setup.scale
  results = place.results(chosen, finished)
  counts = {item.name: item.counts(scale, place.setup.seeds) for item in chosen}
  numbers, failures = inside.measure(
    _from_weights(chosen, counts, scale), results, place.measured
  )
  results = results.knowing(numbers)

  @functools.cache  # Items share runs, and reading remote folders is slow.
  def commits(name: str) -> str:
    if name not in finished:
      return ''
    return ', '.join(environment.commits(place.where.workdir(name)))

  found, claims = {}, {}
  for item in chosen:
    own = results.counting(counts[item.name])
    section = _render(item, own, place)
    if isinstance(section, str):
      failures.append(f'{item.name}: {section}')
      section = Section(item.name, item.title, missing=(section,))
    else:
      values = answers.lookup(own)
      claims |= {
        (item.name, claim.key): (claim, values) for claim in item.claims(scale)
      }
    runs = [
      report.Run(
        run.name,
        _config(run),
        run.name in finished,
        hours=cost.device_hours(finished.get(run.name, {})),
        commit=commits(run.name),
      )
      for run in place.runs(place.setup.nodes(item), finished)
    ]
    section = dataclasses.replace(section, runs=runs)
    found[item.name] = (
      section if scale == 'paper' else miniature.marked(section)
    )
  said = answers.of_page(claims, miniature=scale == 'mini')
  for (name, _), claim in said.items():
    blocks = (*found[name].blocks, claim)
    found[name] = dataclasses.replace(found[name], blocks=blocks)
  _write_numbers(
    place, claims, (run for section in found.values() for run in section.runs)
  )
  return [*found.values()], failures


def _from_weights(
  chosen: Sequence[Item],
  counts: Mapping[str, Mapping[Pretraining, int]],
  scale: str,
) -> dict[Pretraining, set[str]]:
  """Returns pre-training -> the numbers from its weights that are shown."""
  wanted: dict[Pretraining, set[str]] = {}
  for item in chosen:
    asked = [mean for claim in item.asked(scale) for mean in claim.means()]
    for mean in (*item.means(scale), *asked):
      if kind := mean.measure.inside:
        for start in mean.start.seeds(counts[item.name].get(mean.start, 1)):
          wanted.setdefault(start, set()).add(kind)
  return wanted


def _render(item: Item, results: Results, place: Workplace) -> Section | str:
  """Returns an item's section, or the reason why there is none."""
  try:
    section = item.render(results, place.where.local / 'figures')
    texts.check([section])
  # An item may fail in any way: the page must still show the others.
  except Exception as error:
    logging.vlog(1, '%s:', item.name, exc_info=True)
    kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
    return f'could not be drawn: {kind}{" ".join(str(error).split())}'
  return section


def _config(run: Run) -> str:
  """Returns a run's config with what is set otherwise than in its file."""
  return ' '.join(
    [run.config, *(f'{key}={value}' for key, value in run.overrides.items())]
  )


def _write_numbers(
  place: Workplace, claims: Mapping, runs: Iterable[report.Run]
) -> None:
  """Writes the numbers behind the claims, and each run's device minutes."""
  values: dict[str, dict[str, Sequence[float]]] = {}
  for claim, lookup in claims.values():
    for mean in claim.means():
      if found := lookup(mean):
        # Items may have different numbers of the same pre-trainings.
        known = values.setdefault(mean.measure.name, {})
        known[mean.start.name] = max(
          known.get(mean.start.name, []), found, key=len
        )
  hours = {run.name: run.hours for run in runs if run.hours is not None}
  minutes = {name: round(60 * hours[name], 3) for name in sorted(hours)}
  if values or minutes:
    with files.atomic(place.where.local / NUMBERS) as temporary:
      found = {'values': values, 'minutes': minutes}
      temporary.write_text(json.dumps(found, indent=1) + '\n')
