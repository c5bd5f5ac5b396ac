"""Neighbours and a linear probe on features: `python -m vit_jax.knn ...`

  --train=features/train --test=features/test             accuracies
  --train=features/train --test=features/test --k=1,5,20 --weights=uniform
  --train=features/train --test=features/test --linear_probe
  --train=features/train --test=features/test --linear_probe \
      --l2=1e-5,1e-4,1e-3 --selection=features/validation
  --train=features/photos robin.jpg more                  nearest images

The directories are those of python -m vit_jax.features. Accuracies are those of
evaluations of the kinds knn and linear_probe. Neighbours are exact: of equally
near images the first counts, of classes with equal votes the one with the
smallest number. The memory holds one file of --train at a time, and all of
--test; a linear probe holds everything.

With image files or folders in place of --test, lists the nearest images of
each. Their features come from the checkpoint that --train was made with, or
from --checkpoint if it has moved.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

import numpy as np
from absl import flags

from vit_jax import sharding
from vit_jax.checkpoint import fingerprint
from vit_jax.data import identity
from vit_jax.evaluators import knn, linear_probe, neighbours
from vit_jax.features.store import Stored
from vit_jax.inspect import subject
from vit_jax.predict import predictor
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
_METRIC = flags.DEFINE_enum(
  'metric', 'cosine', neighbours.METRICS, 'What near means.'
)
_WEIGHTS = flags.DEFINE_enum(
  'weights',
  'softmax',
  knn.WEIGHTS,
  'Votes of a neighbour: exp(cosine / temperature), one, or 1 / distance.',
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
  if bool(words) == bool(_TEST.value):
    raise ValueError(
      f'--test={_TEST.value} and files {list(words)}: give one of them.'
    )
  if words:
    _list_neighbours(train, words)
    return
  test = Stored(_TEST.value)
  _check_classes(train, test)
  values = _probe(train, test) if _LINEAR_PROBE.value else _vote(train, test)
  values['count'] = test.facts['rows']
  if _JSON.value:
    print(json.dumps(values))
    return
  width = max(map(len, values))
  for name, value in values.items():
    shown = f'{100 * value:.2f}%' if name.endswith('accuracy') else f'{value:g}'
    print(f'{name:{width}}  {shown:>8}')


def _numbers(flag: flags.FlagHolder, kind: type) -> tuple:
  try:
    return tuple(map(kind, flag.value))
  except ValueError:
    raise ValueError(
      f'--{flag.name}={",".join(flag.value)} must be numbers, such as'
      f' --{flag.name}={flag.default[0]}.'
    ) from None


def _check_classes(train: Stored, other: Stored) -> None:
  """Raises ValueError unless both have the same features and classes."""
  train.check_comparable(other)
  if train.facts['class_names'] != other.facts['class_names']:
    raise ValueError(
      f'{train.folder} and {other.folder} have different classes:'
      f' {len(train.facts["class_names"])} and'
      f' {len(other.facts["class_names"])}.'
    )


def _protocol() -> knn.Protocol:
  return knn.Protocol(
    _numbers(_K, int), _METRIC.value, _WEIGHTS.value, _TEMPERATURE.value
  )


def _vote(train: Stored, test: Stored) -> dict[str, float]:
  return _protocol().accuracies(
    train,
    train.labels(),
    np.concatenate(list(test)),
    test.labels(),
    len(train.facts['class_names']),
    sharding.make_mesh(),
  )


def _probe(train: Stored, test: Stored) -> dict[str, float]:
  protocol = linear_probe.Protocol(_numbers(_L2, float), _MAX_STEPS.value)
  if len(protocol.l2) > 1 and not _SELECTION.value:
    raise ValueError(
      f'--l2={",".join(_L2.value)} are several strengths, and --test must not'
      ' choose among them: give --selection, or a single strength.'
    )
  stored = {'train': train, 'test': test}
  if len(protocol.l2) > 1:
    stored['selection'] = Stored(_SELECTION.value)
    _check_classes(train, stored['selection'])
  pairs = {
    use: (np.concatenate(list(one)), one.labels())
    for use, one in stored.items()
  }
  mesh, classes = sharding.make_mesh(), len(train.facts['class_names'])
  return protocol.measure(pairs, classes, mesh)


def _list_neighbours(train: Stored, words: Sequence[str]) -> None:
  """Prints the nearest images of image files."""
  facts = train.facts
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
  found = subject.find_images(words)
  queries = model.features(found, facts['layer'])
  near = neighbours.nearest(
    train, queries, max(_protocol().k), _METRIC.value, model.mesh
  )
  of_train = train.column('name')
  labels = train.column('label') if facts['labels'] == 'one' else None
  for name, rows, distances in zip(
    found, near.rows, near.distances, strict=True
  ):
    listed = [
      {'name': str(of_train[row]), 'distance': float(distance)}
      | (
        {}
        if labels is None or labels[row] < 0
        else {'class': facts['class_names'][labels[row]]}
      )
      for row, distance in zip(rows, distances, strict=True)
    ]
    if _JSON.value:
      print(json.dumps({'name': str(name), 'neighbours': listed}))
      continue
    print(printable.name(str(name)))
    for one in listed:
      line = f'  {one["distance"]:.4f}  {one["name"]}  {one.get("class", "")}'
      print(printable.name(line.rstrip()))
  sys.stdout.flush()


if __name__ == '__main__':
  command_line.run(
    main,
    required=('train',),
    arguments='image files and folders of them, such as robin.jpg',
    optional=True,
  )
