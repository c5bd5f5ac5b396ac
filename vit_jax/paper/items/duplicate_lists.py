"""Lists of test images that have near-duplicates in the pre-training data.

`python -m vit_jax.dedup` lists the images for one pre-training set at a time:

  DIR/jft300m/exclude_test*.json
  DIR/imagenet21k/exclude_test*.json

Each list is of the task whose data spec is its `dataset`.
"""

from collections.abc import Mapping

from vit_jax.data import exclusion
from vit_jax.paper.numbers import IMAGENET21K, JFT
from vit_jax.paper.runs import DATASETS
from vit_jax.workdir import files

# The pre-training sets that may hold test images of a task.
DATA = (JFT, IMAGENET21K)
_LISTS = 'exclude_test*.json'
HOW = (
  '--clean=DIR names the test images that have near-duplicates, where python'
  ' -m vit_jax.dedup --data=SPEC --test=tfds:cifar10 --to=DIR/jft300m, or'
  ' DIR/imagenet21k, has found them in that pre-training set (docs/dedup.md).'
)


def find(
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
      reported = tests[task][1]
      if reported not in entries:
        splits = ', '.join(map(repr, entries)) or 'none'
        raise ValueError(
          f'{path} is about the split {splits}, but {reported!r} is reported:'
          ' write it again with python -m vit_jax.dedup'
          f' --test_split={reported}.'
        )
      if (data, task) in found:
        raise ValueError(
          f'{found[data, task]} and {path} are both of {spec}: leave one in'
          f' {path.parent}.'
        )
      found[data, task] = str(path)
  if not found:
    raise ValueError(
      f'--clean={folder} has no usable list'
      f'{f" ({others[0]})" if others else ""}: expected'
      f' {" or ".join(f"{DATASETS[data]}/{_LISTS}" for data in DATA)} there, of'
      f' {", ".join(tasks)}. {HOW}'
    )
  return found
