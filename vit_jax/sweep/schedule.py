"""Which runs are due: pure functions of the sweep and of what is finished."""

import dataclasses
from collections.abc import Mapping, Sequence

from vit_jax.sweep import state
from vit_jax.sweep.spec import Run, Study, Sweep

# Runs that a line names of those that wait for the same one.
_NAMED = 3

# The metrics of each finished run by its name.
Finished = Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Limits:
  """How often a run is started again, within the life of a launcher.

  Attributes:
    retries: after errors of its own.
    restarts: after it was preempted, lost a host, got stuck or was killed.
  """

  retries: int = 2
  restarts: int = 20

  def gave_up(self, attempts: state.Attempts) -> bool:
    return attempts.failures > self.retries or attempts.restarts > self.restarts


def winner(study: Study, finished: Finished) -> Run | None:
  """The candidate with the best accuracy on held-out data; of equals the first.

  Only that number is looked at. None: there are no candidates, or one of them
  is not finished.

  Raises:
    ValueError: a finished candidate lacks the number; says which.
  """
  if not study.candidates:
    return None
  # Also of the first ones: what is wrong is to be said before hours have gone.
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
  """The study's finals; None as long as they wait for a choice."""
  if study.finals is None:
    return ()
  chosen = winner(study, finished)
  if study.candidates and chosen is None:
    return None
  return study.finals_of(chosen)


def known(study: Study, finished: Finished) -> tuple[Run, ...]:
  """All runs of the study that are known by now, in order, each once."""
  runs = [*study.candidates, *(reported(study, finished) or ())]
  return tuple({run.name: run for run in runs}.values())


def due(sweep: Sweep, finished: Finished) -> list[Run]:
  """The runs that can be started and are not finished, in order.

  Two studies may have a run in common, which is run once.
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
  """The runs that are known but for whose weights others must be finished."""
  found = {
    run.name: run
    for study in sweep.studies
    for run in known(study, finished)
    if run.name not in finished and not finished.keys() >= set(run.needs)
  }
  return list(found.values())


def expected(sweep: Sweep, finished: Finished) -> dict[str, Run]:
  """All runs by name; before a choice, the finals of the first candidate."""
  runs = {}
  for study in sweep.studies:
    finals = reported(study, finished)
    if finals is None:  # Not known yet.
      finals = study.finals_of(study.candidates[0])
    runs |= {run.name: run for run in (*study.candidates, *finals)}
  return runs


def total(sweep: Sweep, finished: Finished) -> int:
  """How many runs the sweep has."""
  return len(expected(sweep, finished))


def blocked(
  sweep: Sweep, finished: Finished, failed: Sequence[str]
) -> list[str]:
  """What failed runs leave undone: a line for each of them, and each study."""
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
  """What a run waits for in the end: runs that wait for nothing themselves."""
  if name not in waiting:
    return [name]
  found = [
    root
    for need in waiting[name].needs
    if need not in finished
    for root in _roots(need, waiting, finished)
  ]
  return list(dict.fromkeys(found))
