"""Neighbours and a linear probe on features: `python -m vit_jax.knn ...`

  --train=features/train --test=features/test             accuracies
  --train=features/train --test=features/test --k=1,5,20 --weights=uniform
  --train=features/train --test=features/test --linear_probe
  --train=features/train --test=features/test --linear_probe --l2=1e-5,1e-4 \\
      --selection=features/validation                     the best of two
  --train=features/photos robin.jpg more                  nearest images

The directories are those of python -m vit_jax.features. Accuracies are those of
evaluations of the kinds knn and linear_probe. scikit-learn finds neighbours: of
equally near images the first counts, of classes with equal votes the one with
the smallest number. The memory holds one file of --train at a time, and all of
--test; a linear probe holds everything.

With image files or folders in place of --test, lists the nearest images of
each, with their distances: 1 - cosine of the features' angle, which is 0 for
the same direction and 1 for a right angle. Their features come from the
checkpoint that --train was made with, or from --checkpoint if it has moved:

  robin.jpg
    distance  class  name
      0.0312  robin  train/robin/17.jpg
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
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
from vit_jax.runtime import command_line, printable

_TRAIN = flags.DEFINE_string(
  'train', None, 'Directory of the features among which neighbours are found.'
)
_TEST = flags.DEFINE_string(
  'test', None, 'Directory of the features that are classified.'
)
_SELECTION = flags.DEFINE_string(
  'selection', None, 'Directory of the features that choose among several --l2.'
)
_K = flags.DEFINE_list(
  'k', ['20'], 'Numbers of neighbours, such as 1,5,20; the largest is listed.'
)
_WEIGHTS = flags.DEFINE_enum(
  'weights',
  'softmax',
  ['softmax', 'uniform'],
  'Votes of a neighbour: exp(cosine / temperature) (softmax) or one (uniform).',
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.07, 'The temperature of --weights=softmax.'
)
_LINEAR_PROBE = flags.DEFINE_bool(
  'linear_probe', False, 'Fit a logistic regression in place of neighbours.'
)
_L2 = flags.DEFINE_list(
  'l2', ['1e-4'], 'Strengths of the regularisation of the linear probe.'
)
_MAX_STEPS = flags.DEFINE_integer(
  'max_steps', 1000, 'Most steps of the linear probe.', lower_bound=1
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
  values = _probe(train, test) if _LINEAR_PROBE.value else _vote(train, test)
  values['count'] = test.facts['rows']
  if _JSON.value:
    print(json.dumps(values))
    return
  width = max(map(len, values))
  for name, value in values.items():
    shown = f'{100 * value:.2f}%' if name.endswith('accuracy') else f'{value:g}'
    print(f'{name:{width}}  {shown:>8}')


def _section(kind: str, **values: Any) -> ml_collections.ConfigDict:
  """Returns a section with the values of flags, checked as in a config."""
  for name, value in values.items():
    rule = EVALUATIONS[kind][name].rule
    if not rule.holds(value):
      raise ValueError(f'--{name}={value} must be {rule.expected}.')
  return config_lib.evaluation('', kind, train_split='', **values)


def _neighbours(train: Stored) -> ml_collections.ConfigDict:
  section = _section(
    'knn',
    k=tuple(map(int, _K.value)),
    weights=_WEIGHTS.value,
    temperature=_TEMPERATURE.value,
  )
  if max(section.k) > train.facts['rows']:
    raise ValueError(
      f'--k={",".join(_K.value)}: {train.folder} has only'
      f' {train.facts["rows"]} images.'
    )
  return section


def _labelled(stored: Stored) -> Features:
  labels = stored.labels()  # Before the features, which take longer.
  return Features(np.concatenate(list(stored)), labels)


def _vote(train: Stored, test: Stored) -> dict[str, float]:
  section, labels = _neighbours(train), train.labels()
  return knn.accuracies(train, labels, _labelled(test), section)


def _probe(train: Stored, test: Stored) -> dict[str, float]:
  section = _section(
    'linear_probe', l2=tuple(map(float, _L2.value)), max_steps=_MAX_STEPS.value
  )
  stored = {'train': train, 'test': test}
  if len(section.l2) > 1:
    if not _SELECTION.value:
      raise ValueError(
        f'--l2={",".join(_L2.value)} are several strengths, and --test must not'
        ' choose among them: give --selection, or a single strength.'
      )
    stored['selection'] = Stored(_SELECTION.value)
    train.check_comparable(stored['selection'])
  return linear_probe.accuracies(
    {use: _labelled(one) for use, one in stored.items()},
    *(len(train.facts['class_names']), section, sharding.make_mesh()),
  )


def _list_neighbours(train: Stored, words: Sequence[str]) -> None:
  """Prints the nearest images of image files."""
  facts, k = train.facts, max(_neighbours(train).k)
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
  near = knn.nearest(train, queries, k)
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
      _print(name, listed)
  sys.stdout.flush()


def _print(name: str, listed: Sequence[Mapping[str, Any]]) -> None:
  """Prints an image's neighbours as a table."""
  width = max(len('class'), *(len(one.get('class', '')) for one in listed))
  print(printable.name(name))
  print(f'  distance  {"class":{width}}  name')
  for one in listed:
    shown = f'{one.get("class", "-"):{width}}'
    print(printable.name(f'  {one["distance"]:8.4f}  {shown}  {one["name"]}'))


if __name__ == '__main__':
  command_line.run(
    main,
    required=('train',),
    arguments='image files and folders of them, such as robin.jpg',
    optional=True,
  )
