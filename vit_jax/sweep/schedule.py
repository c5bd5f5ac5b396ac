"""Decides which runs are due, from the sweep and its finished runs only."""

from collections.abc import Mapping

from vit_jax.sweep import state
from vit_jax.sweep.spec import Run, Study, Sweep

# Run name -> final metrics, of each finished run.
Finished = Mapping[str, Mapping[str, float]]


def winner(study: Study, finished: Finished) -> Run | None:
  """Returns the candidate with the best accuracy on held-out data.

  The first of equally good candidates wins. Returns None if there are no
  candidates, or if one of them is not finished.

  Raises:
    ValueError: a finished candidate lacks this accuracy; the message names it.
  """
  # Read the finished ones even if others are not, to find errors early.
  accuracies = {
    run.name: state.held_out_accuracy(run.name, finished[run.name])
    for run in study.candidates
    if run.name in finished
  }
  if not study.candidates or any(
    run.name not in accuracies for run in study.candidates
  ):
    return None
  return max(study.candidates, key=lambda run: accuracies[run.name])


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
