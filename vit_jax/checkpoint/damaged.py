"""Which steps are damaged, as far as this process knows.

`restore_newest` finds them, and may be unable to move them away; whoever saves
to the same folder must not take them for complete. All processes know the same.
"""

import collections

from etils import epath

_STEPS: dict[str, set[int]] = collections.defaultdict(set)


def steps(folder: epath.Path) -> frozenset[int]:
  """The steps in a folder that are damaged."""
  return frozenset(_STEPS.get(str(folder), ()))


def add(path: epath.Path) -> None:
  """Notes that the checkpoint `FOLDER/STEP` is damaged and still there."""
  _STEPS[str(path.parent)].add(int(path.name))


def discard(path: epath.Path) -> None:
  """Forgets a checkpoint `FOLDER/STEP`, which is there no more."""
  _STEPS[str(path.parent)].discard(int(path.name))


def forget(folder: epath.Path) -> None:
  """Forgets all steps of a folder, which are about to be read again."""
  _STEPS.pop(str(folder), None)
