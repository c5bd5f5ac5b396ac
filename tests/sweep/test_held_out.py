"""Guards: candidates are chosen by held-out training data and nothing else."""

import pytest

from vit_jax import config as config_lib
from vit_jax.sweep import held_out


# This data set is not on this machine, so its sizes are unknown.
def _config(train, dataset='tfds:no_such_thing', **evals):
  config = config_lib.default()
  config.data.dataset = dataset
  config.data.train_split = train
  for name, split in evals.items():
    config.evals[name] = config_lib.evaluation(split)
  return config


def _check(candidate, *finals):
  held_out.check(
    'c', candidate, {f'final {i}': f for i, f in enumerate(finals)}
  )


@pytest.mark.parametrize(
  'train, part, whole',
  [
    ('train[:98%]', 'train[98%:]', 'train'),
    ('train[:75]', 'train[75:280]', 'train[:280]'),
    ('train[:-20]', 'train[-20:]', 'train'),
    ('train[:90%]+test[:90%]', 'train[90%:]', 'train+test[:90%]'),
    ('shuffled(train)[:90%]', 'shuffled(train)[90%:]', 'shuffled(train)'),
    ('shuffled(train[:90%])[:10%]', 'train[90%:]', 'train'),
    ('shuffled(train)[:9]', 'shuffled(train)[9:18]', 'shuffled(train)[:18]'),
  ],
)
def test_held_out_training_data_is_accepted(train, part, whole):
  for name in ('validation', 'held_out'):
    candidate = _config(train, **{name: part})
    _check(candidate)
  _check(candidate, _config(whole, test='test[90%:]'))


@pytest.mark.parametrize(
  'train, evals, message',
  [
    ('train[:90%]', {'test': 'test'}, 'a choice by a test result'),
    ('train[:90%]', {'test': 'train[90%:]'}, 'has the evaluations .*test'),
    (
      'train[:90%]',
      {'validation': 'train[90%:]', 'test': 'test'},
      'has the evaluations .*test',
    ),
    ('train[:90%]', {}, r'has the evaluations \[\]'),
    ('train[:90%]', {'validation': 'test'}, r"\['test'\] is no split that it"),
    (
      'train[:90%]',
      {'validation': 'train[90%:]+test'},
      r"\['test'\] is no split that it trains on",
    ),
    ('train', {'validation': 'train[90%:]'}, 'not held out'),
    ('train[:91%]', {'validation': 'train[90%:]'}, 'not held out'),
    ('train[:90%]', {'validation': 'train'}, 'not held out'),
    # Random parts in different orders may share examples.
    (
      'shuffled(train)[:90%]',
      {'validation': 'shuffled(train, seed=1)[90%:]'},
      'not held out',
    ),
    ('shuffled(train)[:90%]', {'validation': 'train[90%:]'}, 'not held out'),
    (
      'shuffled(train)[:90%]',
      {'validation': 'shuffled(train)[89%:]'},
      'not held out',
    ),
    (
      'shuffled(train)[:90%]',
      {'validation': 'shuffled(train+test)[90%:]'},
      r"\['test'\] is no split that it trains on",
    ),
  ],
)
def test_evaluations_on_other_data_are_refused(train, evals, message):
  with pytest.raises(ValueError, match=message):
    _check(_config(train, **evals))


@pytest.mark.parametrize(
  'final, message',
  [
    # The final run is evaluated on the held-out part, under another name.
    (('train[:90%]', {'test': 'train[90%:]'}), 'biases this result'),
    (('train[:50%]', {'test': 'train[95%:]+test'}), 'biases this result'),
    # The final run is evaluated on data that it trains on.
    (('train', {'test': 'train[:50%]+test'}), 'evaluated on some of the same'),
    # The final run may be evaluated on the held-out part.
    (('train', {'auto': 'auto'}), "evals.auto.split='auto'"),
    # The choice uses a split that the final run does not train on.
    (('test[:50%]', {'test': 'test[50%:]'}), "'train'] is no split that final"),
  ],
)
def test_finals_must_not_test_on_the_validation_data(final, message):
  train, evals = final
  candidate = _config('train[:90%]', validation='train[90%:]')
  with pytest.raises(ValueError, match=message):
    _check(candidate, _config(train, **evals))
  with pytest.raises(ValueError, match="trains on 'digits:45', but"):
    _check(candidate, _config('train', 'digits:45', test='test'))
