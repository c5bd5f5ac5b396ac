"""Finds checkpoints, and moves damaged ones aside."""

import fsspec
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.workdir import files

FOLDER = 'checkpoints'
# These hold only parameters: those of the best and of the last step.
BEST = 'best'
FINAL = 'final'
# Damaged checkpoints are moved here, and nothing here is ever deleted.
DAMAGED = 'damaged_checkpoints'

# The folder of the state within a checkpoint; record.py names that of the
# digests. Orbax's manager gives this name to an unnamed item.
STATE = 'default'


def complete_steps(folder: epath.Path) -> list[epath.Path]:
  """Returns the complete checkpoints in a folder, oldest first."""
  # Orbax leaves out incomplete ones: on gs:// their names look the same.
  complete = ocp.utils.checkpoint_steps_paths(folder)
  steps = [path for path in complete if path.name.isdigit()]
  return sorted(steps, key=lambda path: int(path.name))


def latest_step(workdir: epath.PathLike) -> int | None:
  """Returns the newest complete step of a run, without changing any file."""
  steps = complete_steps(files.absolute(workdir) / FOLDER)
  return int(steps[-1].name) if steps else None


def candidates(path: epath.PathLike) -> list[epath.Path]:
  """Returns the checkpoints that a path stands for, oldest first.

  Args:
    path: see `find`.

  Raises:
    ValueError: see `find`.
  """
  path = files.absolute(path)
  if steps := complete_steps(path / FOLDER):
    return steps
  # Checked second: a run's directory may have any of these names, or be a
  # number.
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
      (each stands for its newest checkpoint), or one checkpoint, such as
      `WORKDIR/checkpoints/STEP`.

  Raises:
    ValueError: there is no checkpoint; says what the path has instead.
  """
  return candidates(path)[-1]


def workdir_of(path: epath.PathLike) -> epath.Path | None:
  """Returns the directory of the run that wrote a checkpoint.

  Args:
    path: the path of weights, such as `WORKDIR/checkpoints/STEP`.

  Returns:
    None if no run writes weights there, whatever lies around them.
  """
  path = files.absolute(path)
  folders = (FOLDER, BEST, FINAL, DAMAGED)
  if path.name.isdigit() and path.parent.name in folders:
    return path.parent.parent
  return None


def move_aside(path: epath.Path, folder: epath.Path) -> epath.Path:
  """Moves a checkpoint to `FOLDER/STEP`, or `FOLDER/STEP-2`, ...

  Where folders cannot be renamed, as in buckets and on some mounts, the files
  are copied, and deleted when all copies are complete.

  Returns:
    The new path.
  """
  target, number = folder / path.name, 2
  while target.exists():
    target, number = folder / f'{path.name}-{number}', number + 1
  folder.mkdir(parents=True, exist_ok=True)
  store, name = fsspec.core.url_to_fs(str(path))
  store.mv(name, str(target), recursive=True)
  return target
