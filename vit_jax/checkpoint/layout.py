"""Where checkpoints lie."""

import orbax.checkpoint as ocp
from etils import epath

from vit_jax import paths

FOLDER = 'checkpoints'
# Only parameters, of the best and of the last step.
BEST = 'best'
FINAL = 'final'
# Where damaged checkpoints are moved to. None is ever deleted.
DAMAGED = 'damaged_checkpoints'

# The folder in a checkpoint in which the state is; that of the digests is in
# record.py. It is the name that Orbax's manager gives to an unnamed item.
STATE = 'default'


def complete_steps(folder: epath.Path) -> list[epath.Path]:
  """The complete checkpoints in a folder, oldest first."""
  # On gs:// what is half-written differs by more than its name.
  complete = ocp.utils.checkpoint_steps_paths(folder)
  steps = [path for path in complete if path.name.isdigit()]
  return sorted(steps, key=lambda path: int(path.name))


def latest_step(workdir: epath.PathLike) -> int | None:
  """The newest complete checkpoint of a run; only looks."""
  complete = complete_steps(paths.absolute(workdir) / FOLDER)
  return int(complete[-1].name) if complete else None


def candidates(path: epath.PathLike) -> list[epath.Path]:
  """The checkpoints that a path stands for, oldest first.

  Args:
    path: see `find`.

  Raises:
    ValueError: see `find`.
  """
  path = paths.absolute(path)
  if steps := complete_steps(path / FOLDER):
    return steps
  # Only now: a run's directory may have any of these names, and be a number.
  if path.name in (FOLDER, BEST, FINAL) and (steps := complete_steps(path)):
    return steps
  if path.name.isdigit() and path.is_dir():
    return [path]
  if not path.exists():
    found = 'the path does not exist'
  elif not path.is_dir():
    found = 'it is a file'
  else:
    names = sorted(p.name for p in path.iterdir())
    found = f'it holds {names[:8] or "nothing"}'
  raise ValueError(
    f"No checkpoint at {path}: {found}. Expected a run's directory (with"
    f' {FOLDER}/STEP in it), WORKDIR/{FOLDER}/STEP, WORKDIR/{BEST} or'
    f' WORKDIR/{FINAL}.'
  )


def find(path: epath.PathLike) -> epath.Path:
  """Resolves a run's directory, or a checkpoint's, to one checkpoint.

  Args:
    path: `WORKDIR` or `WORKDIR/checkpoints`, `WORKDIR/best` or `WORKDIR/final`
      (the newest checkpoint there), or one of them, such as
      `WORKDIR/checkpoints/STEP`.

  Raises:
    ValueError: there is no checkpoint; says what is there instead.
  """
  return candidates(path)[-1]
