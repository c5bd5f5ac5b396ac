"""Lists of test images that have near-duplicates in pre-training data.

`python -m vit_jax.dedup` writes them, for one pre-training set at a time:

  DIR/jft300m/exclude_test*.json
  DIR/imagenet21k/exclude_test*.json

Each list is of the task whose data spec is its `dataset`.
"""

from collections.abc import Mapping, Sequence

from vit_jax.data import exclusion
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import DATASETS
from vit_jax.workdir import files

# The pre-training sets that may hold test images of a task.
DATA = (values.JFT, values.IMAGENET21K)
_LISTS = 'exclude_test*.json'
HOW = (
  '--clean=DIR names the test images that have near-duplicates, where python'
  ' -m vit_jax.dedup --data=SPEC --test=tfds:cifar10 --to=DIR/jft300m, or'
  ' DIR/imagenet21k, has found them in that pre-training set (docs/dedup.md).'
)


def lists(
  folder: str, tests: Mapping[str, tuple[str, str]]
) -> dict[tuple[str, str], str]:
  """Returns (pre-training set, task) -> the path of its list.

  Lists of other data sets are left out. Whether a list is for this copy of the
  data is checked when the data set is opened.

  Args:
    folder: DIR, local or in a bucket.
    tests: task -> its data spec, and the split that is reported.

  Raises:
    ValueError: there is no usable list, a file is no list, a list is not of the
      split that is reported, or a task has several.
  """
  root = files.absolute(folder)
  tasks = {spec: task for task, (spec, _) in tests.items()}
  found: dict[tuple[str, str], str] = {}
  others: list[str] = []
  for data in DATA:
    for path in sorted((root / DATASETS[data]).glob(_LISTS)):
      spec, entries = exclusion.read(path)
      if spec not in tasks:
        others.append(f'{path} is of {spec}')
        continue
      task = tasks[spec]
      _check_split(str(path), entries, tests[task][1])
      if (data, task) in found:
        raise ValueError(
          f'{found[data, task]} and {path} are both of {spec}: leave one in'
          f' {path.parent}.'
        )
      found[data, task] = _in_config(str(path))
  if not found:
    raise ValueError(
      f'--clean={folder} has no usable list'
      f'{f" ({others[0]})" if others else ""}: expected'
      f' {" or ".join(f"{DATASETS[data]}/{_LISTS}" for data in DATA)} there, of'
      f' {", ".join(tasks)}. {HOW}'
    )
  return found


def _check_split(path: str, splits: Sequence[str], reported: str) -> None:
  if reported not in splits:
    raise ValueError(
      f'{path} is about the split {", ".join(map(repr, splits)) or "none"}, but'
      f' {reported!r} is reported: write it again with python -m vit_jax.dedup'
      f' --test_split={reported}.'
    )


def _in_config(path: str) -> str:
  if any(letter in path for letter in ',()'):
    raise ValueError(
      f'--clean: the path {path} must not contain a comma or a parenthesis, as'
      ' it becomes a part of --config=FILE:ARGUMENT. Move the folder.'
    )
  return path
