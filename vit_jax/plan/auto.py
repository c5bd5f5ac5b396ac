"""Finds the smallest slice that a run fits, with its settings as given."""

import dataclasses

from vit_jax.plan import compiling, devices, runs, search

GENERATION = 'v3'


def smallest(
  run: runs.Run, generation: str, effort: runs.Effort, say: runs.Say
) -> runs.Plan:
  """Plans a run on the smallest slice of a generation that it fits.

  A device needs less the more devices there are, so the sizes are bisected,
  starting where the memory is predicted to suffice.

  Args:
    run: the run.
    generation: of the slices to look among.
    effort: of a search for other settings, if the run fits on no slice.
    say: takes lines on the progress.

  Returns:
    The plan; on the largest slice that its batch can be split over if it fits
    on none.

  Raises:
    ValueError: the batch can be split over no slice of that generation.
  """
  targets = [t for t in devices.of_generation(generation) if _divides(run, t)]
  if not targets:
    raise ValueError(
      f'data.batch_size={run.config.data.batch_size} in'
      f' accumulation_steps={run.config.accumulation_steps} can not be split'
      f' over the devices of any slice of {generation}.'
    )
  quick = dataclasses.replace(effort, search=False)
  plans: dict[int, runs.Plan] = {}
  low, high = 0, len(targets)  # The answer is in [low, high].
  while low < high:
    middle = _predicted(run, targets, low, high)
    say(f'Does {run.name} fit {targets[middle]}?')
    plans[middle] = runs.plan(run, targets[middle], quick, say)
    memory = plans[middle].memory.total / compiling.GIB
    fits = plans[middle].fits
    say(f'{"Yes" if fits else "No"}: {memory:.1f} GiB.')
    if fits:
      high = middle
    else:
      low = middle + 1
  if high < len(targets):
    return plans[high]
  return runs.plan(run, targets[-1], effort, say)


def _divides(run: runs.Run, target: devices.Target) -> bool:
  config = run.config
  rows = config.data.batch_size * config.mesh.tensor
  return rows % (target.devices * config.accumulation_steps) == 0


def _predicted(run: runs.Run, targets, low: int, high: int) -> int:
  """The first slice whose memory is expected to suffice, in [low, high)."""
  for index in range(low, high):
    expected = runs.describe({}, run, targets[index]).predict(
      search.EXPECTED_KEPT
    )
    if expected <= targets[index].chip.hbm_usable_bytes:
      return index
  return high - 1
