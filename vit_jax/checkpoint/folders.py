"""Where checkpoints lie: finding them, moving them, and which are damaged."""

import collections

import orbax.checkpoint as ocp
from etils import epath

from vit_jax.workdir import files

FOLDER = 'checkpoints'
# Only parameters, of the best and of the last step.
BEST = 'best'
FINAL = 'final'
# Where damaged checkpoints are moved to. None is ever deleted.
DAMAGED = 'damaged_checkpoints'
# What a step is called while one of the same step takes its place.
REPLACED = '.replaced'

# The folder in a checkpoint in which the state is; that of the digests is in
# record.py. It is the name that Orbax's manager gives to an unnamed item.
STATE = 'default'

# Without it a checkpoint on an object store is not complete.
_COMMIT = 'commit_success.txt'
# Damaged steps by folder, as far as this process knows. `restore_newest` finds
# them, and may be unable to move them away; a save to the same folder must not
# take them for complete. All processes know the same.
_DAMAGED_STEPS: dict[str, set[int]] = collections.defaultdict(set)


def complete_steps(folder: epath.Path) -> list[epath.Path]:
  """The complete checkpoints in a folder, oldest first."""
  return [path for path in _steps(folder) if _holds_something(path)]


def empty_steps(folder: epath.Path) -> list[epath.Path]:
  """What is called like a checkpoint, but holds nothing."""
  return [path for path in _steps(folder) if _holds_something(path) is False]


def _holds_something(path: epath.Path) -> bool | None:
  """Whether a folder does; None if a run has just deleted it, or it is none."""
  try:
    return any(path.iterdir())
  except (FileNotFoundError, NotADirectoryError):
    return None


def _steps(folder: epath.Path) -> list[epath.Path]:
  # On gs:// what is half-written differs by more than its name.
  complete = ocp.utils.checkpoint_steps_paths(folder)
  steps = [path for path in complete if path.name.isdigit()]
  return sorted(steps, key=lambda path: int(path.name))


def latest_step(workdir: epath.PathLike) -> int | None:
  """The newest complete checkpoint of a run; only looks.

  Leaves out what `restore_newest` found damaged in this process.
  """
  folder = files.absolute(workdir) / FOLDER
  steps = {int(path.name) for path in complete_steps(folder)}
  return max(steps - damaged_steps(folder), default=None)


def replaced_steps(folder: epath.Path) -> list[epath.Path]:
  """What was to be replaced when a run was killed, oldest first.

  Each is complete if there is no complete checkpoint of its step.
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
  """The checkpoints that a path stands for, oldest first.

  Args:
    path: see `find`.

  Raises:
    ValueError: see `find`.
  """
  path = files.absolute(path)
  if steps := complete_steps(path / FOLDER):
    return steps
  # Only now: a run's directory may have any of these names, and be a number.
  if path.name in (FOLDER, BEST, FINAL) and (steps := complete_steps(path)):
    return steps
  if path.name in (BEST, FINAL) and (steps := replaced_steps(path)):
    return steps
  step = path.name.removesuffix(REPLACED)
  if step.isdigit():
    # Either may have taken the other's place since the path was written down.
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
      (the newest checkpoint there), or one of them, such as
      `WORKDIR/checkpoints/STEP`. If a run was killed while it replaced the only
      one in `best` or `final`, that is `STEP.replaced` until the next is saved.

  Raises:
    ValueError: there is no checkpoint; says what is there instead.
  """
  return candidates(path)[-1]


def move(path: epath.Path, target: epath.Path) -> None:
  """Moves a folder; raises whatever the file system does.

  Folders of object stores cannot be renamed, nor can some that are mounted:
  there the files are copied, and deleted when all copies are complete.

  Args:
    path: of a folder.
    target: does not exist; its parent is created.
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
  # First what makes it complete: half of it must not look like all.
  (path / _COMMIT).unlink(missing_ok=True)
  path.rmtree()


def _copy(folder: epath.Path, target: epath.Path) -> None:
  target.mkdir(parents=True, exist_ok=True)
  # The mark of completeness last. Object stores may list a folder in itself.
  entries = [entry for entry in folder.iterdir() if entry != folder]
  for entry in sorted(entries, key=lambda entry: entry.name == _COMMIT):
    if entry.is_dir():
      _copy(entry, target / entry.name)
    else:
      entry.copy(target / entry.name)


def unused(folder: epath.Path, name: str) -> epath.Path:
  """A path in a folder that does not exist: `name`, or `name-2`, ..."""
  path, number = folder / name, 2
  while path.exists():
    path, number = folder / f'{name}-{number}', number + 1
  return path


def damaged_steps(folder: epath.Path) -> frozenset[int]:
  """The steps in a folder that are damaged."""
  return frozenset(_DAMAGED_STEPS.get(str(folder), ()))


def note_damaged(path: epath.Path) -> None:
  """Notes that the checkpoint `FOLDER/STEP` is damaged and still there."""
  _DAMAGED_STEPS[str(path.parent)].add(int(path.name))


def discard_damaged(path: epath.Path) -> None:
  """Forgets a checkpoint `FOLDER/STEP`, which is there no more."""
  _DAMAGED_STEPS[str(path.parent)].discard(int(path.name))


def forget_damaged(folder: epath.Path) -> None:
  """Forgets all steps of a folder, which are about to be read again."""
  _DAMAGED_STEPS.pop(str(folder), None)
