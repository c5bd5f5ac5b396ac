"""Decides which runs are due, from the sweep and its finished runs only."""

import dataclasses
from collections.abc import Mapping, Sequence

from vit_jax.sweep import state
from vit_jax.sweep.spec import Run, Study, Sweep

# Maximum number of blocked runs that a message names.
_NAMED = 3

# Run name -> final metrics, of each finished run.
Finished = Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits on how often a run is started again.

  Attributes:
    retries: maximum number of retries after an error of the run.
    restarts: maximum number of restarts after the run was preempted, lost a
      host, got stuck or was killed.
  """

  retries: int = 2
  restarts: int = 20

  def gave_up(self, attempts: state.Attempts) -> bool:
    return attempts.failures > self.retries or attempts.restarts > self.restarts


def winner(study: Study, finished: Finished) -> Run | None:
  """Returns the candidate with the best accuracy on held-out data.

  The first of equally good candidates wins. Returns None if there are no
  candidates, or if one of them is not finished.

  Raises:
    ValueError: a finished candidate lacks this accuracy; the message names it.
  """
  if not study.candidates:
    return None
  # Read the finished ones even if others are not, to find errors early.
  accuracies = [
    state.held_out_accuracy(run.name, finished[run.name])
    for run in study.candidates
    if run.name in finished
  ]
  if len(accuracies) < len(study.candidates):
    return None
  best = max(range(len(accuracies)), key=accuracies.__getitem__)
  return study.candidates[best]


def reported(study: Study, finished: Finished) -> tuple[Run, ...] | None:
  """Returns the study's final runs; None until the candidate is chosen."""
  if study.finals is None:
    return ()
  chosen = winner(study, finished)
  if study.candidates and chosen is None:
    return None
  return study.finals_of(chosen)


def known(study: Study, finished: Finished) -> tuple[Run, ...]:
  """Returns the study's runs that are known so far, in order, each once."""
  runs = [*study.candidates, *(reported(study, finished) or ())]
  return tuple({run.name: run for run in runs}.values())


def due(sweep: Sweep, finished: Finished) -> list[Run]:
  """Returns the runs that can start and are not finished, in order.

  A run that two studies share is due only once.
  """
  runs = {
    run.name: run for study in sweep.studies for run in known(study, finished)
  }
  return [
    run
    for name, run in runs.items()
    if name not in finished and finished.keys() >= set(run.needs)
  ]


def held_back(sweep: Sweep, finished: Finished) -> list[Run]:
  """Returns the known runs that wait for the weights of other runs."""
  found = {
    run.name: run
    for study in sweep.studies
    for run in known(study, finished)
    if run.name not in finished and not finished.keys() >= set(run.needs)
  }
  return list(found.values())


def expected(sweep: Sweep, finished: Finished) -> dict[str, Run]:
  """Returns all runs by name.

  Before a candidate is chosen, the first one's finals stand for the finals.
  """
  runs = {}
  for study in sweep.studies:
    finals = reported(study, finished)
    if finals is None:
      finals = study.finals_of(study.candidates[0])
    runs |= {run.name: run for run in (*study.candidates, *finals)}
  return runs


def total(sweep: Sweep, finished: Finished) -> int:
  """Returns the number of runs of the sweep."""
  return len(expected(sweep, finished))


def blocked(
  sweep: Sweep, finished: Finished, failed: Sequence[str]
) -> list[str]:
  """Returns a line for each study or run whose failure blocks other runs."""
  lines = []
  for study in sweep.studies:
    bad = [run.name for run in study.candidates if run.name in failed]
    if bad and study.finals is not None:
      lines.append(
        f'{study.name}: nothing was chosen, as {", ".join(bad)} failed'
      )
  waiting = {run.name: run for run in held_back(sweep, finished)}
  without: dict[str, list[str]] = {}
  for name in waiting:
    for root in _roots(name, waiting, finished):
      without.setdefault(root, []).append(name)
  for root, names in without.items():
    some = ', '.join(names[:_NAMED]) + (', ...' if names[_NAMED:] else '')
    count = f'{len(names)} run{"s"[: len(names) > 1]}'
    lines.append(f'without {root}: {count} not started, {some}')
  return lines


def _roots(
  name: str, waiting: Mapping[str, Run], finished: Finished
) -> list[str]:
  """Returns the runs that a run waits for and that wait for no others."""
  if name not in waiting:
    return [name]
  found = [
    root
    for need in waiting[name].needs
    if need not in finished
    for root in _roots(need, waiting, finished)
  ]
  return list(dict.fromkeys(found))
