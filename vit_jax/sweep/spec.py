"""Defines sweeps: runs, which are compared in studies.

A sweep file, `configs/sweeps/NAME.py`, defines `get_sweep(argument) -> Sweep`.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# The allowed names of the evaluation by which a study chooses. The name only
# helps the reader of a config; `held_out.check` also checks the data.
HELD_OUT = ('validation', 'held_out')

# Prefix of a value of `init.checkpoint`: `run:NAME` starts from the weights of
# the run NAME of the sweep, which therefore runs first.
OF_RUN = 'run:'
# Prefix of any value: `sweep:PATH` is a path in the sweep's directory.
OF_SWEEP = 'sweep:'

Value = bool | int | float | str | tuple


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of vit_jax.main.

  Attributes:
    name: its folder under SWEEPDIR/runs; see `make_run`.
    config: `configs/FILE.py[:ARGUMENT]`.
    overrides: config key -> value. `init.checkpoint` may be `run:NAME`, which
      means the weights of another run of the sweep. Any value may be
      `sweep:PATH`, which means a path in the sweep's directory.
    labels: column -> value, for the table.
  """

  name: str
  config: str
  overrides: Mapping[str, Value] = dataclasses.field(default_factory=dict)
  labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def needs(self) -> tuple[str, ...]:
    """The names of the runs that must finish before this run starts."""
    return tuple(
      value.removeprefix(OF_RUN)
      for value in self.overrides.values()
      if isinstance(value, str) and value.startswith(OF_RUN)
    )


@dataclasses.dataclass(frozen=True)
class Study:
  """Candidate runs that are compared, and the final runs that are reported.

  Attributes:
    name: the study's name in the table.
    candidates: the runs to choose from, by their accuracy on held-out data.
    finals: a function that makes the final runs from the chosen candidate; or
      the final runs, in a study without candidates; or None, for no final runs.
  """

  name: str
  candidates: Sequence[Run] = ()
  finals: Callable[[Run], Sequence[Run]] | Sequence[Run] | None = None

  def finals_of(self, winner: Run | None) -> tuple[Run, ...]:
    """Returns the final runs for the chosen candidate (None: no candidates)."""
    if self.finals is None:
      return ()
    return tuple(self.finals(winner) if callable(self.finals) else self.finals)

  def all_runs(self) -> Iterator[Run]:
    """Yields every run that may become due, whichever candidate is chosen."""
    yield from self.candidates
    for winner in self.candidates or (None,):
      yield from self.finals_of(winner)


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Studies that share a directory and a table.

  Attributes:
    studies: the studies, in the order in which their runs start.
  """

  studies: Sequence[Study]


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
  """Returns a run that is named by its labels: `digits:01/rate=0.03,seed=0`.

  Args:
    study: the name of its study, which becomes a folder.
    config: `configs/FILE.py[:ARGUMENT]`.
    overrides: config key -> value.
    **labels: the values in which it differs from the study's other runs, at
      least one.
  """
  leaf = ','.join(f'{key}={value}' for key, value in labels.items())
  return Run(f'{_safe(study)}/{_safe(leaf)}', config, overrides, labels)


def _safe(text: str) -> str:
  """Turns a text into a valid name of a folder."""
  return re.sub(r'[^A-Za-z0-9_+:.,=-]', '_', text).lstrip('.-') or '_'


def check(sweep: Sweep) -> None:
  """Checks everything that can be checked without reading the configs.

  Raises:
    ValueError: the sweep is wrong; the message names the study or run.
  """
  names: dict[str, Any] = {}
  for study in sweep.studies:
    fits = callable(study.finals) == bool(study.candidates)
    if study.finals is not None and not fits:
      raise ValueError(
        f'Study {study.name!r}: finals must be a function of the chosen'
        ' candidate if there are candidates, and else a list.'
      )
    runs = list(study.all_runs())
    if not runs:
      raise ValueError(f'Study {study.name!r} has no runs.')
    for run in runs:
      # Several candidates of one study may lead to the same final runs.
      what = (study.name, run.config, dict(run.overrides))
      if names.setdefault(run.name, what) != what:
        raise ValueError(
          f'Two different runs are called {run.name!r}: {names[run.name]} and'
          f' {what}.'
        )
  # Finals that depend on a choice are left out, because they may never run.
  certain = {}
  for study in sweep.studies:
    finals = () if callable(study.finals) else study.finals_of(None)
    certain |= {run.name: run for run in (*study.candidates, *finals)}
  for study in sweep.studies:
    for run in study.all_runs():
      if bad := sorted({*run.needs} - certain.keys()):
        raise ValueError(
          f'{run.name} starts from {OF_RUN}{bad[0]}, but only these runs are'
          f' certain to run: {", ".join(sorted(certain))}.'
        )
