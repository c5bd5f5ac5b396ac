"""Finds the smallest slice or machine that a run fits, as it is given."""

import dataclasses
import time

from vit_jax.plan import compiling, devices, one_run, remedies
from vit_jax.sharding import mesh as mesh_lib

GENERATION = 'v3'


def smallest(
  run: one_run.Run, generation: str, effort: one_run.Effort, say: one_run.Say
) -> one_run.Plan:
  """Plans a run on the smallest slice of a generation that it fits.

  The memory per device falls as the number of devices grows, so this function
  bisects the sizes. It starts with the smallest slice whose predicted memory
  suffices. If the run fits no slice, it searches for other settings.

  Args:
    run: the run.
    generation: the TPU generation or GPU.
    effort: limits for all compilations together, including the search.
    say: is called with progress messages.

  Returns:
    The plan; if no slice was found to fit, the plan on the largest tried one.

  Raises:
    ValueError: the mesh and the batch suit no slice of that generation.
  """
  targets = [t for t in devices.of_generation(generation) if _suits(run, t)]
  if not targets:
    raise ValueError(
      f'No slice of {generation} suits the mesh {_axes(run)} with'
      f' data.batch_size={run.config.data.batch_size} and'
      f' accumulation_steps={run.config.accumulation_steps}. Change one of'
      ' them, or choose another generation.'
    )
  quick = dataclasses.replace(effort, search=False)
  plans: dict[int, one_run.Plan] = {}
  start, ended = time.monotonic(), ''

  def left() -> one_run.Effort:
    tries = sum(bool(plan.compiled or plan.error) for plan in plans.values())
    return dataclasses.replace(
      effort,
      max_tries=effort.max_tries - tries,
      max_seconds=effort.max_seconds - (time.monotonic() - start),
    )

  low, high = 0, len(targets)  # The answer is in [low, high].
  while low < high:
    ended = remedies.limit(left().max_tries, left().max_seconds)
    if plans and ended:
      break
    middle = _predicted(run, targets, low, high)
    say(f'Does {run.name} fit {targets[middle]}?')
    plans[middle] = plan = one_run.plan(run, targets[middle], quick, say)
    if plan.memory:
      memory = plan.memory.total / compiling.GIB
      say(f'{"Yes" if plan.fits else "No"}: {memory:.1f} GiB.')
    if plan.fits:
      high = middle
    else:
      low = middle + 1
  unsure = ended if low < high else ''
  if high < len(targets):
    return dataclasses.replace(plans[high], ended=unsure)
  largest = plans[max(plans)]
  if unsure:
    return dataclasses.replace(largest, ended=unsure)
  return one_run.with_fix(largest, left(), say)


def _suits(run: one_run.Run, target: devices.Target) -> bool:
  try:
    devices.check(run.config, target)
  except ValueError:
    return False
  return True


def _axes(run: one_run.Run) -> str:
  return ' x '.join(f'{axis}={run.config.mesh[axis]}' for axis in mesh_lib.AXES)


def _predicted(run: one_run.Run, targets, low: int, high: int) -> int:
  """Returns the first index in [low, high) whose memory should suffice."""
  for index in range(low, high):
    expected = one_run.describe({}, run, targets[index]).predict(
      remedies.EXPECTED_KEPT
    )
    if expected <= targets[index].chip.hbm_usable_bytes:
      return index
  return high - 1
