"""Moving checkpoints out of the way, on object stores, too."""

from etils import epath

# Without it a checkpoint on an object store is not complete.
_COMMIT = 'commit_success.txt'


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
