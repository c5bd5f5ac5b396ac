"""Finds and moves checkpoints, and remembers which are damaged."""

import collections

import orbax.checkpoint as ocp
from etils import epath

from vit_jax.workdir import files

FOLDER = 'checkpoints'
# These hold only parameters: those of the best and of the last step.
BEST = 'best'
FINAL = 'final'
# Damaged checkpoints are moved here, and nothing here is ever deleted.
DAMAGED = 'damaged_checkpoints'
# The suffix of a checkpoint while another of the same step replaces it.
REPLACED = '.replaced'

# The folder of the state within a checkpoint; record.py names that of the
# digests. Orbax's manager gives this name to an unnamed item.
STATE = 'default'

# On an object store, a checkpoint without this file is incomplete.
_COMMIT = 'commit_success.txt'
# Damaged steps by folder, the same on all processes. `restore_newest` finds
# them, but may fail to move them away; a later save to the folder must not
# treat them as complete.
_DAMAGED_STEPS: dict[str, set[int]] = collections.defaultdict(set)


def complete_steps(folder: epath.Path) -> list[epath.Path]:
  """Returns the complete checkpoints in a folder, oldest first."""
  return [path for path in _steps(folder) if _holds_something(path)]


def empty_steps(folder: epath.Path) -> list[epath.Path]:
  """Returns the empty folders that are named like a checkpoint."""
  return [path for path in _steps(folder) if _holds_something(path) is False]


def _holds_something(path: epath.Path) -> bool | None:
  """Whether a folder is not empty; None if it is gone or not a folder."""
  try:
    return any(path.iterdir())
  except (FileNotFoundError, NotADirectoryError):
    return None


def _steps(folder: epath.Path) -> list[epath.Path]:
  # Orbax leaves out incomplete ones: on gs:// their names look the same.
  complete = ocp.utils.checkpoint_steps_paths(folder)
  steps = [path for path in complete if path.name.isdigit()]
  return sorted(steps, key=lambda path: int(path.name))


def latest_step(workdir: epath.PathLike) -> int | None:
  """Returns the newest complete step of a run, without changing any file.

  Leaves out the steps that `restore_newest` found damaged in this process.
  """
  folder = files.absolute(workdir) / FOLDER
  steps = {int(path.name) for path in complete_steps(folder)}
  return max(steps - damaged_steps(folder), default=None)


def replaced_steps(folder: epath.Path) -> list[epath.Path]:
  """Returns the checkpoints that a killed run was replacing, oldest first.

  Each of them is complete unless its replacement is.
  """
  if not folder.exists():
    return []
  leftovers = [
    path
    for path in folder.iterdir()
    if path.name.endswith(REPLACED)
    and path.name.removesuffix(REPLACED).isdigit()
  ]
  return sorted(
    leftovers, key=lambda path: int(path.name.removesuffix(REPLACED))
  )


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
  if path.name in (BEST, FINAL) and (steps := replaced_steps(path)):
    return steps
  step = path.name.removesuffix(REPLACED)
  if step.isdigit():
    # A save may have renamed STEP to STEP.replaced, or back, since the user
    # wrote the path down.
    for name in dict.fromkeys((path.name, step, step + REPLACED)):
      if (path.parent / name).is_dir():
        return [path.parent / name]
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
      `WORKDIR/checkpoints/STEP`. If a run was killed while it replaced the only
      checkpoint in `best` or `final`, that checkpoint is `STEP.replaced` until
      the next save.

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
  step = path.name.removesuffix(REPLACED)
  if step.isdigit() and path.parent.name in (FOLDER, BEST, FINAL, DAMAGED):
    return path.parent.parent
  return None


def move(path: epath.Path, target: epath.Path) -> None:
  """Moves a folder; passes on the file system's errors.

  Folders on object stores, and on some mounts, cannot be renamed: their files
  are copied, and deleted when all copies are complete.

  Args:
    path: the folder.
    target: the new path, which does not exist; its parent is created.
  """
  if '://' not in str(path):
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
      path.rename(target)
    except OSError:
      if not path.is_dir() or target.exists():
        raise
    else:
      return
  _copy(path, target)
  # The commit file goes first: half of a checkpoint must not look complete.
  (path / _COMMIT).unlink(missing_ok=True)
  path.rmtree()


def _copy(folder: epath.Path, target: epath.Path) -> None:
  target.mkdir(parents=True, exist_ok=True)
  # The commit file comes last. Object stores may list a folder within itself.
  entries = [entry for entry in folder.iterdir() if entry != folder]
  for entry in sorted(entries, key=lambda entry: entry.name == _COMMIT):
    if entry.is_dir():
      _copy(entry, target / entry.name)
    else:
      entry.copy(target / entry.name)


def unused(folder: epath.Path, name: str) -> epath.Path:
  """Returns an unused path in a folder: `name`, or `name-2`, ..."""
  path, number = folder / name, 2
  while path.exists():
    path, number = folder / f'{name}-{number}', number + 1
  return path


def damaged_steps(folder: epath.Path) -> frozenset[int]:
  """Returns the steps in a folder that are known to be damaged."""
  return frozenset(_DAMAGED_STEPS.get(str(folder), ()))


def note_damaged(path: epath.Path) -> None:
  """Notes that the checkpoint `FOLDER/STEP` is damaged and still in place."""
  _DAMAGED_STEPS[str(path.parent)].add(int(path.name))


def discard_damaged(path: epath.Path) -> None:
  """Forgets the damage of `FOLDER/STEP`, which no longer exists."""
  _DAMAGED_STEPS[str(path.parent)].discard(int(path.name))


def forget_damaged(folder: epath.Path) -> None:
  """Forgets all damage in a folder, which is about to be read again."""
  _DAMAGED_STEPS.pop(str(folder), None)
