"""How many test images have near-duplicates in pre-training data, by BiT.

BiT (arXiv:1912.11370) prints the numbers; the ViT paper removes duplicates as
BiT does. BiT's detector is not published, so other numbers are no error.
"""

import re

# Test set -> training set -> number of its test images with near-duplicates.
COUNTS = {
  'ImageNet': {'JFT-300M': 6470, 'ImageNet-21k': 3834, 'ImageNet-1k': 879},
  'CIFAR-10': {'JFT-300M': 435, 'ImageNet-21k': 687, 'ImageNet-1k': 82},
  'CIFAR-100': {'JFT-300M': 491, 'ImageNet-21k': 890, 'ImageNet-1k': 136},
  'Pets': {'JFT-300M': 600, 'ImageNet-21k': 80, 'ImageNet-1k': 58},
  'Flowers': {'JFT-300M': 412, 'ImageNet-21k': 335, 'ImageNet-1k': 0},
}
_SIZES = {
  'ImageNet': 50_000,
  'CIFAR-10': 10_000,
  'CIFAR-100': 10_000,
  'Pets': 3_669,
  'Flowers': 6_149,
}
# What a data spec of these sets contains; the first that fits counts.
_TEST = {
  'CIFAR-100': 'cifar-?_?100',
  'CIFAR-10': 'cifar-?_?10',
  'ImageNet': 'imagenet2012|imagenet-?_?1k|ilsvrc-?_?2012',
  'Pets': 'oxford_iiit_pet',
  'Flowers': 'oxford_flowers102',
}
_TRAIN = {
  'ImageNet-21k': 'imagenet-?_?21k',
  'ImageNet-1k': 'imagenet2012|imagenet-?_?1k|ilsvrc-?_?2012',
  'JFT-300M': 'jft',
}


def note(test: str, train: str, images: int) -> str:
  """Returns BiT's numbers for two data specs, as `BiT: 82 in ImageNet-1k`.

  Args:
    test: the data spec of the test set.
    train: that of the training set. If it is unknown, all numbers are listed.
    images: number of test images.

  Returns:
    '' if the test set is unknown, or has another number of images.
  """
  test, train = _find(_TEST, test), _find(_TRAIN, train)
  counts = COUNTS[test] if _SIZES.get(test) == images else {}
  shown = {train: counts[train]} if train in counts else counts
  if not shown:
    return ''
  return 'BiT: ' + ', '.join(f'{n:,} in {name}' for name, n in shown.items())


def _find(patterns: dict[str, str], spec: str) -> str:
  for name, pattern in patterns.items():
    if re.search(pattern, spec, re.IGNORECASE):
      return name
  return ''
