"""Neighbours and a linear probe on features: `python -m vit_jax.knn ...`

  --train=features/train --test=features/test             accuracies
  --train=features/train --test=features/test --k=1,5,20 --weights=uniform
  --train=features/train --test=features/test --linear_probe --l2=1e-4
  --train=features/photos robin.jpg more                  nearest images

The directories are those of python -m vit_jax.features. Accuracies are those of
evaluations of the kinds knn and linear_probe, which can also choose among
strengths. scikit-learn finds neighbours; of classes with equal votes the one
with the smallest number counts. The memory holds all features.

With image files or folders in place of --test, lists the nearest images of
each, with their distances: 1 - cosine of the features' angle, which is 0 for
the same direction and 1 for a right angle. Their features come from the
checkpoint that --train was made with, or from --checkpoint if it has moved:

  robin.jpg
  class  name                distance
  robin  train/robin/17.jpg    0.0312
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np
from absl import flags

from vit_jax import config as config_lib
from vit_jax import images, sharding
from vit_jax.checkpoint import fingerprint
from vit_jax.config.sections import EVALUATIONS
from vit_jax.data import identity
from vit_jax.evaluators import knn, linear_probe
from vit_jax.evaluators.frozen import Features
from vit_jax.predict import predictor
from vit_jax.predict.store import Stored
from vit_jax.runtime import command_line, printable, text_table

_TRAIN = flags.DEFINE_string(
  'train', None, 'Directory of the features among which neighbours are found.'
)
_TEST = flags.DEFINE_string(
  'test', None, 'Directory of the features that are classified.'
)
_K = flags.DEFINE_list(
  'k', ['20'], 'Numbers of neighbours, such as 1,5,20; the largest is listed.'
)
_WEIGHTS = flags.DEFINE_enum(
  'weights',
  'softmax',
  ['softmax', 'uniform'],
  'Votes of a neighbour: exp(cosine / 0.07) (softmax) or one (uniform).',
)
_LINEAR_PROBE = flags.DEFINE_bool(
  'linear_probe', False, 'Fit a logistic regression in place of neighbours.'
)
_L2 = flags.DEFINE_float(
  'l2', 1e-4, 'Strength of the regularisation of the linear probe.'
)
_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', None, 'Weights for image files; by default those of --train.'
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print JSON: an object with the metrics, or one per image.'
)


def main(words: Sequence[str]) -> None:
  train = Stored(_TRAIN.value)
  images.check_one(words, test=_TEST.value)
  if words:
    _list_neighbours(train, words)
    return
  test = Stored(_TEST.value)
  train.check_comparable(test)
  if _LINEAR_PROBE.value:
    section = _section('linear_probe', l2=(_L2.value,))
    classes = len(train.facts['class_names'])
    more = (classes, section, sharding.make_mesh())
    measure = linear_probe.accuracies
  else:
    measure, more = knn.accuracies, (_neighbours(),)
  features = {'train': _labelled(train), 'test': _labelled(test)}
  values = measure(features, *more) | {'count': test.facts['rows']}
  if _JSON.value:
    print(json.dumps(values))
    return
  lines = [
    (name, f'{value:.2%}' if name.endswith('accuracy') else f'{value:g}')
    for name, value in values.items()
  ]
  print(text_table.aligned(lines))


def _section(kind: str, **values: Any) -> ml_collections.ConfigDict:
  """Returns a section with the values of flags, checked as in a config."""
  for name, value in values.items():
    rule = EVALUATIONS[kind][name].rule
    if not rule.holds(value):
      raise ValueError(f'--{name}={value} must be {rule.expected}.')
  return config_lib.evaluation('', kind, train_split='', **values)


def _neighbours() -> ml_collections.ConfigDict:
  k = tuple(map(int, _K.value))
  return _section('knn', k=k, weights=_WEIGHTS.value)


def _labelled(stored: Stored) -> Features:
  labels = stored.labels()  # Before the features, which take longer.
  return Features(stored.vectors(), labels)


def _list_neighbours(train: Stored, words: Sequence[str]) -> None:
  """Prints the nearest images of image files."""
  facts, k = train.facts, max(_neighbours().k)
  model = predictor.load(
    _CHECKPOINT.value or facts['checkpoint'],
    image_size=tuple(facts['image_size']),
    preprocess=facts['preprocess'],
    dtype=facts['compute_dtype'],
  )
  model.preprocess = dataclasses.replace(model.preprocess, **facts['decoding'])
  weights = identity.short_hash(fingerprint.digests(model.params))
  if weights != facts['weights']:
    raise ValueError(
      f'{model.origin} has other weights than those that {train.folder} was'
      ' made with: name the right ones with --checkpoint.'
    )
  found = images.find(words)
  queries = model.features(found, facts['layer'])
  near = knn.nearest(train.vectors(), queries, k)
  names = train.column('name')
  classes = np.full(len(names), '', object)
  if facts['labels'] == 'one':
    # The last entry is for images without a label, whose label is -1.
    choices = np.array([*facts['class_names'], ''], object)
    classes = choices[train.column('label')]
  for name, rows, distances in zip(found, *near, strict=True):
    listed = [
      {'name': str(names[row]), 'distance': float(distance)}
      | ({'class': classes[row]} if classes[row] else {})
      for row, distance in zip(rows, distances, strict=True)
    ]
    if _JSON.value:
      print(json.dumps({'name': name, 'neighbours': listed}))
    else:
      lines = [
        (
          *map(printable.name, (one.get('class', '-'), one['name'])),
          f'{one["distance"]:.4f}',
        )
        for one in listed
      ]
      print(printable.name(name))
      print(text_table.aligned([('class', 'name', 'distance'), *lines], 2))
  sys.stdout.flush()


if __name__ == '__main__':
  command_line.run(
    main,
    required=('train',),
    arguments='image files and folders of them, such as robin.jpg',
    optional=True,
  )
