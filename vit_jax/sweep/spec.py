"""What a sweep is: runs, compared in studies.

A sweep file, `configs/sweeps/NAME.py`, defines `get_sweep(argument) -> Sweep`.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# The names that an evaluation may have to choose by. What it must read is
# checked too (`held_out.check`), so this is for the reader of a config.
HELD_OUT = ('validation', 'held_out')

# Before the name of a run of the sweep, as a value of `init.checkpoint`: that
# run comes first, and its weights are what this one starts from.
OF_RUN = 'run:'
# Before a path, as the value of a key: in the sweep's own directory.
OF_SWEEP = 'sweep:'

Value = bool | int | float | str | tuple
# A file's name in a path: not empty, not hidden, no separators.
_PART = re.compile(r'[A-Za-z0-9_+:][A-Za-z0-9_+:.,=-]*')


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of vit_jax.main.

  Attributes:
    name: its folder under SWEEPDIR/runs; see `make_run`.
    config: `configs/FILE.py[:ARGUMENT]`.
    overrides: config key -> value; `init.checkpoint` may be `run:NAME`, the
      weights of another run of the sweep, and any key `sweep:PATH`, a path in
      the sweep's directory.
    labels: columns of the table.
  """

  name: str
  config: str
  overrides: Mapping[str, Value] = dataclasses.field(default_factory=dict)
  labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def needs(self) -> tuple[str, ...]:
    """The names of the runs that must be finished before this one starts."""
    return tuple(
      value.removeprefix(OF_RUN)
      for value in self.overrides.values()
      if isinstance(value, str) and value.startswith(OF_RUN)
    )


@dataclasses.dataclass(frozen=True)
class Study:
  """Runs that are compared with each other, and those that are reported.

  Attributes:
    name: a line of the table.
    candidates: the runs to choose from, by their accuracy on held-out data.
    finals: makes the runs to report from the chosen one; or those runs, where
      there is nothing to choose; or None, if the candidates are all.
  """

  name: str
  candidates: Sequence[Run] = ()
  finals: Callable[[Run], Sequence[Run]] | Sequence[Run] | None = None

  def finals_of(self, winner: Run | None) -> tuple[Run, ...]:
    """The runs to report, given the chosen one (None: nothing to choose)."""
    if self.finals is None:
      return ()
    return tuple(self.finals(winner) if callable(self.finals) else self.finals)

  def all_runs(self) -> Iterator[Run]:
    """Every run that may become due, whichever candidate is chosen."""
    yield from self.candidates
    for winner in self.candidates or (None,):
      yield from self.finals_of(winner)


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Studies that share a directory and a table.

  Attributes:
    studies: in the order in which their runs are started.
    summary: given the frame of `table.gather`, a text to print below the table.
  """

  studies: Sequence[Study]
  summary: Callable[[Any], str] | None = None


def grid(**axes: Sequence[Any]) -> Iterator[dict[str, Any]]:
  """Yields all combinations of the axes' values, the last axis fastest."""
  for values in itertools.product(*axes.values()):
    yield dict(zip(axes, values, strict=True))


def make_run(
  study: str,
  config: str,
  overrides: Mapping[str, Value],
  **labels: Any,
) -> Run:
  """A run whose name says its labels: `digits:01/rate=0.03,seed=0`.

  Args:
    study: the name of its study; becomes a folder.
    config: `configs/FILE.py[:ARGUMENT]`.
    overrides: config key -> value.
    **labels: what sets it apart from the study's other runs.

  Raises:
    ValueError: there are no labels to name it by.
  """
  if not labels:
    raise ValueError(f'A run of {study!r} has no labels to be named by.')
  leaf = ','.join(f'{key}={value}' for key, value in labels.items())
  return Run(f'{_safe(study)}/{_safe(leaf)}', config, overrides, labels)


def _safe(text: str) -> str:
  """A text as the name of a folder."""
  return re.sub(r'[^A-Za-z0-9_+:.,=-]', '_', text).lstrip('.-') or '_'


def check(sweep: Sweep) -> None:
  """Checks what needs no config.

  Raises:
    ValueError: says which study or run is wrong.
  """
  names: dict[str, Any] = {}
  studies = set()
  for study in sweep.studies:
    if study.name in studies:
      raise ValueError(f'Two studies are called {study.name!r}.')
    studies.add(study.name)
    if study.candidates and study.finals is not None:
      if not callable(study.finals):
        raise ValueError(
          f'Study {study.name!r}: finals is a list, so its candidates would'
          ' choose nothing; make it a function of the chosen candidate.'
        )
    elif callable(study.finals):
      raise ValueError(
        f'Study {study.name!r}: finals is a function of the chosen candidate,'
        ' but there are no candidates.'
      )
    runs = list(study.all_runs())
    if not runs:
      raise ValueError(f'Study {study.name!r} has no runs.')
    for run in runs:
      if not all(map(_PART.fullmatch, run.name.split('/'))):
        raise ValueError(
          f'{run.name!r} cannot be the name of a run: expected letters, digits'
          ' and _+:.,=- in each part between slashes.'
        )
      # The same runs may follow from several candidates of one study.
      what = (study.name, run.config, dict(run.overrides))
      if names.setdefault(run.name, what) != what:
        raise ValueError(
          f'Two different runs are called {run.name!r}: {names[run.name]} and'
          f' {what}.'
        )
    if len({run.name for run in study.candidates}) < len(study.candidates):
      raise ValueError(f'Study {study.name!r} has a candidate twice.')
  _check_nesting(names)
  _check_needs(sweep)


def _check_needs(sweep: Sweep) -> None:
  """Refuses needs that may never be met."""
  # Of the finals that follow from a choice, nobody knows which there will be.
  certain = {}
  for study in sweep.studies:
    finals = () if callable(study.finals) else study.finals_of(None)
    certain |= {run.name: run for run in (*study.candidates, *finals)}
  for study in sweep.studies:
    for run in study.all_runs():
      before, waiting = set(), list(run.needs)
      while waiting:
        name = waiting.pop()
        if name not in certain:
          raise ValueError(
            f'{run.name} starts from {OF_RUN}{name}, but that is none of the'
            f' runs that are certain to be run: {", ".join(sorted(certain))}.'
          )
        if name == run.name:
          raise ValueError(f'{run.name} starts, in the end, from itself.')
        if name not in before:
          before.add(name)
          waiting += certain[name].needs


def _check_nesting(names: Mapping[str, Any]) -> None:
  """Refuses a run inside of another's work directory."""
  for name in names:
    parts = name.split('/')
    for length in range(1, len(parts)):
      outer = '/'.join(parts[:length])
      if outer in names:
        raise ValueError(f'The run {name!r} would lie inside of {outer!r}.')


# As JSON ---------------------------------------------------------------------


def to_json(sweep: Sweep) -> list[dict[str, Any]]:
  """The studies, with the finals of each candidate, as plain values."""
  return [
    {
      'name': study.name,
      'candidates': [dataclasses.asdict(run) for run in study.candidates],
      'finals': study.finals is not None
      and [
        [dataclasses.asdict(run) for run in study.finals_of(winner)]
        for winner in study.candidates or (None,)
      ],
    }
    for study in sweep.studies
  ]


def from_json(studies: Sequence[Mapping[str, Any]]) -> Sweep:
  """What `to_json` wrote, as a sweep without a summary."""

  def runs(values):
    return tuple(_run(**value) for value in values)

  result = []
  for study in studies:
    candidates = runs(study['candidates'])
    finals = None
    if study['finals'] is not False:
      lists = [runs(values) for values in study['finals']]
      if candidates:
        names = [run.name for run in candidates]
        table = dict(zip(names, lists, strict=True))
        finals = lambda winner, table=table: table[winner.name]  # noqa: E731
      else:
        finals = lists[0]
    result.append(Study(study['name'], candidates, finals))
  return Sweep(tuple(result))


def _run(name, config, overrides, labels) -> Run:
  # JSON has no tuples, configs no lists.
  overrides = {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in overrides.items()
  }
  return Run(name, config, overrides, labels)
