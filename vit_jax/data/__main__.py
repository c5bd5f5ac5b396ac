"""Prints what a split expression selects: `python -m vit_jax.data --data=SPEC`.

  python -m vit_jax.data --data=digits --split='shuffled(train)[:10%]'
  python -m vit_jax.data --data=folder:/data/birds --split='train+val'
  python -m vit_jax.data --data=tfds:cifar10 --split='train[98%:]+test'

The output lists the data set's splits, the number of selected records, and the
number of examples of each class that has some, the largest first. A split
expression is a sum of these terms:

  NAME[A:B]                             a TFDS slice, in examples or percent
  shuffled(EXPRESSION)[A:B]             a random part: [:20%] contains [:10%]
  shuffled(EXPRESSION, seed=N)[A:B]     a random part with another seed
"""

import itertools

import numpy as np
from absl import flags, logging

from vit_jax import data
from vit_jax.data import source_flags
from vit_jax.runtime import command_line, printable

flags.adopt_module_key_flags(source_flags)
_DATA = flags.DEFINE_string('data', None, 'Data spec, such as digits.')
_SPLIT = flags.DEFINE_string('split', 'train', 'Split expression.')


def class_balance(view: data.View) -> np.ndarray:
  """Counts the examples of each class.

  Args:
    view: examples with one or several labels each.

  Returns:
    int64 [classes]. An example counts for each of its labels.

  Raises:
    ValueError: a label lies outside of the classes.
  """
  classes = view.source.info.num_classes
  labels = data.read_labels(view)
  if isinstance(labels, list):  # An example counts once for a repeated label.
    labels = [*itertools.chain.from_iterable(map(set, labels))]
  labels = np.asarray(labels, np.int64)
  wrong = labels[(labels < 0) | (labels >= classes)]
  if wrong.size:
    raise ValueError(
      f'{view.split!r} of {view.source.info.spec!r} has the label {wrong[0]},'
      f' but its labels must lie in [0, {classes}). Repair the data set.'
    )
  return np.bincount(labels, minlength=classes)


def main() -> None:
  source = data.open_source(_DATA.value, **source_flags.arguments())
  view = data.View(source, _SPLIT.value)
  sizes = ', '.join(
    f'{printable.name(k)} ({n:,})' for k, n in source.info.splits.items()
  )
  print(f'{source.info.spec}: {sizes}')
  print(f'{view.split}: {len(view):,} examples; the first is {view[0].name}')
  if view.labels() is None:
    logging.info('Reading all records to count their classes.')
  counts = class_balance(view)
  order = np.argsort(-counts, kind='stable')
  present = np.count_nonzero(counts)
  print(f'{present:,} of {len(counts):,} classes have examples:')
  for index in order[:present]:
    print(f'{counts[index]:>12,}  {source.info.class_names[index]}')


if __name__ == '__main__':
  command_line.run(main, required=('data',))
