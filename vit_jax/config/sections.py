"""The sections of a config that each experiment chooses, and their keys.

These are the optimizer, the schedule, the loss and the evaluations. Each
function returns a section with exactly the keys of its kind, so that a run's
config has no unused keys.
"""

import math
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections import config_dict

from vit_jax.config import optimizers
from vit_jax.models.model_options import Check, Key, at_least, one_of, within

# The values of `loss.name` that predict patches, and read no labels: masked
# patch prediction, and masked autoencoders.
MASKED_PATCH, MAE = 'masked_patch', 'mae'
PATCH_LOSSES = (MASKED_PATCH, MAE)


_POSITIVE, _SHARE = within('(0, inf)'), within('[0, 1]')


def different(each: Check) -> Check:
  """Returns the check of one or more different numbers."""
  return Check(
    lambda values: (
      0 < len(set(values)) == len(values) and all(map(each.holds, values))
    ),
    f'different numbers, each {each.expected}',
  )


_SCHEDULE = {
  'name': Key('', "'linear', 'cosine', 'constant', 'staircase' or 'rsqrt'."),
  'peak': Key(
    float,
    'The highest learning rate. -1: 3e-3 times the square root of batch / 4096;'
    ' for SGD, 0.03 times that of batch / 512.',
    Check(lambda x: x == -1 or 0 <= x < math.inf, 'at least 0, or -1'),
  ),
  'peak_batch': Key(
    0,
    'Above 0: the batch size that `peak` is for. For another one, `peak` is'
    ' multiplied by the batch size over this.',
  ),
  'warmup_steps': Key(
    int,
    'Steps of linear warm-up. -1: a tenth of the run, at most 10,000.',
    at_least(-1),
  ),
  'warmup_epochs': Key(
    0.0, 'Above 0: the length of the warm-up, in place of `warmup_steps`.'
  ),
  'warmup_start': Key(0.0, 'The learning rate at the start of the warm-up.'),
}
_DECAY = {**_SCHEDULE, 'end': Key(0.0, 'The last learning rate.')}
_COOLDOWN = {
  **_DECAY,
  'cooldown_steps': Key(
    0, 'The last steps, in which the rate goes linearly to `end`; 0: none.'
  ),
}
_LABEL_LOSS = {
  'label_smoothing': Key(
    0.0,
    'The share of a label that softmax spreads over all classes. The targets of'
    ' sigmoid are this share and 1 minus it.',
    within('[0, 1)'),
  ),
  'binary': Key(
    False,
    'Whether each of the two labels of a blend counts in full, as in DeiT III;'
    ' else by its share.',
  ),
  'reduce': Key(
    'sum',
    "'mean' divides the 'sum' over the classes by their number, as PyTorch's"
    ' BCE does.',
    one_of('sum', 'mean'),
  ),
}
# Of all evaluations.
_EVALUATION = {
  'dataset': Key('', "A data spec; '' is the training data's."),
  'split': Key(str, 'The split to evaluate on.'),
  'preprocess': Key(
    'resize', 'What happens to each image, in order; see `data/ops`.'
  ),
  'label_key': Key(
    '', "'': `data.label_key`, or 'label' for another data set."
  ),
  'batch_size': Key(0, '0 is the training batch size.'),
  'every': Key(
    0,
    'Steps between evaluations; 0 evaluates only after the last step, -1 after'
    ' every tenth of the run.',
    at_least(-1),
  ),
}
_LABELS = {
  **_EVALUATION,
  'max_labels': Key(0, 'The most labels per image; 0 is `data.max_labels`.'),
}
_FEATURES = {
  **_EVALUATION,
  'train_split': Key(str, 'The split that the classifier learns from.'),
}
_LAYER = Key('pre_logits', 'Whose features: see `models/layers.py`.')
_SELECTION = Key(
  '',
  'The split to choose a strength on, if `l2` has several: a part of the'
  ' training data that the classifier does not learn from, never `split`.',
)

_SCHEDULES = {
  'linear': _DECAY,
  'cosine': _DECAY,
  'constant': _COOLDOWN,
  'rsqrt': {
    **_COOLDOWN,
    'timescale': Key(
      10_000,
      'Steps from the end of the warm-up until the rate is the peak divided by'
      ' the square root of 2.',
      at_least(1),
    ),
  },
  'staircase': {
    **_SCHEDULE,
    'boundaries': Key(
      tuple,
      'Fractions of the run.',
      Check(lambda x: all(0 < b < 1 for b in x), 'fractions, each in (0, 1)'),
    ),
    'factor': Key(float, 'Multiplies the rate at each of the boundaries.'),
  },
}
_LOSSES = {
  'softmax': {
    'name': Key('softmax', 'The loss for mutually exclusive classes.'),
    **_LABEL_LOSS,
  },
  'sigmoid': {
    'name': Key('sigmoid', 'The loss for classes that do not exclude others.'),
    **_LABEL_LOSS,
  },
  MASKED_PATCH: {
    'name': Key(
      MASKED_PATCH, 'Masked patch prediction in place of a classification loss.'
    ),
    'target': Key(
      'mean_colour',
      "What to predict of a patch: its 'mean_colour' (the paper's choice), the"
      " patch 'downsized' to 4x4 colours, or all of its 'pixels'.",
      one_of('mean_colour', 'downsized', 'pixels'),
    ),
    'fraction': Key(
      0.5,
      'The fraction of patches to corrupt; the paper also tried 0.15, and found'
      ' it slightly worse.',
      _SHARE,
    ),
    'mask_share': Key(
      0.8, 'The share of corrupted patches that get the mask embedding.', _SHARE
    ),
    'other_share': Key(
      0.1,
      "The share that get another patch's; the rest stay unchanged.",
      _SHARE,
    ),
  },
  MAE: {
    'name': Key(
      MAE, 'A masked autoencoder (arXiv:2111.06377) in place of a classifier.'
    ),
    'mask': Key(0.75, 'The share of patches to hide.', within('(0, 1)')),
    'decoder_depth': Key(8, "The decoder's number of blocks.", at_least(1)),
    'decoder_width': Key(
      512, 'The width of its tokens; its MLPs are four times as wide.'
    ),
    'decoder_heads': Key(16, 'Its heads of attention.', at_least(1)),
    'normalise': Key(
      True,
      'Whether the pixels to predict of a patch have mean 0 and variance 1.',
    ),
  },
}
# Section -> its `name` -> its keys.
SECTIONS = {
  'optimizer': {
    name: optimizers.keys_of(name) for name in optimizers.OPTIMIZERS
  },
  'schedule': _SCHEDULES,
  'loss': _LOSSES,
}
# The `kind` of an evaluation -> its keys.
EVALUATIONS = {
  'classification': {
    'kind': Key('classification', 'Accuracy and loss on a split.'),
    **_LABELS,
    'classes': Key(
      '',
      "How the data set's classes map to the training classes. '': they are the"
      " same. 'names': by name. PATH: by ObjectNet's own folder of mappings."
      ' Images of other classes do not count.',
    ),
    'restrict': Key(
      False, 'Whether to predict only the classes that occur in this data set.'
    ),
    'save_predictions': Key(
      False,
      'Whether to write the prediction for each example to'
      ' WORKDIR/predictions/NAME.parquet. Needs pyarrow.',
    ),
  },
  MASKED_PATCH: {
    'kind': Key(MASKED_PATCH, 'Masked patch prediction on a split.'),
    **_LABELS,
  },
  MAE: {
    'kind': Key(MAE, "A masked autoencoder's loss on a split."),
    **_LABELS,
  },
  'few_shot': {
    'kind': Key('few_shot', 'Few-shot accuracy of the frozen features.'),
    **_FEATURES,
    'selection_split': _SELECTION,
    'shots': Key(
      (1, 5, 10, 25),
      'Numbers of images per class; each number is a separate experiment.',
      different(at_least(1)),
    ),
    'seeds': Key(
      (0, 1, 2),
      'Each draws other shots; the accuracy is the mean.',
      different(at_least(0)),
    ),
    'l2': Key(
      (1024.0,),
      'Strengths of the regularisation of the least squares.',
      different(_POSITIVE),
    ),
  },
  'knn': {
    'kind': Key('knn', 'Nearest neighbours of the frozen features.'),
    **_FEATURES,
    'layer': _LAYER,
    'k': Key(
      (20,),
      'Numbers of neighbours; each number is a separate result.',
      different(at_least(1)),
    ),
    'weights': Key(
      'softmax',
      "The votes of a neighbour. 'softmax': exp(cosine / temperature), as in"
      " DINO. 'uniform': one.",
      one_of('softmax', 'uniform'),
    ),
    'temperature': Key(0.07, 'Of the softmax.', _POSITIVE),
  },
  'linear_probe': {
    'kind': Key('linear_probe', 'Logistic regression on the frozen features.'),
    **_FEATURES,
    'selection_split': _SELECTION,
    'layer': _LAYER,
    'l2': Key(
      (1e-4,),
      'Strengths of the regularisation of the mean loss: 1 / (N C) of'
      " scikit-learn's C for N images.",
      different(_POSITIVE),
    ),
    'max_steps': Key(
      1000, 'The most steps of L-BFGS per strength.', at_least(1)
    ),
  },
}


def _section(keys: Mapping[str, Key], **values: Any):
  """Returns a section of these keys, with their defaults or these values."""
  section = {name: key.default for name, key in keys.items()} | values
  lacking = {n for n, value in section.items() if isinstance(value, type)}
  if wrong := sorted(section.keys() - keys | lacking):
    raise TypeError(f'{wrong}: exactly the keys {list(keys)} are to be set.')
  for name, key in keys.items():
    unset = isinstance(section[name], config_dict.FieldReference)
    if key.kind in (float, tuple) and not unset:
      section[name] = key.kind(section[name])
  return ml_collections.ConfigDict(section)


def optimizer(name: str, **values: Any) -> ml_collections.ConfigDict:
  """Returns an optimizer's section; see `training.optimizer`.

  Args:
    name: a key of `OPTIMIZERS`.
    **values: keys of that optimizer, which are optax's arguments.

  Raises:
    ValueError: there is no such optimizer.
    TypeError: it has no such key.
  """
  if name not in SECTIONS['optimizer']:
    raise ValueError(
      f'optimizer={name!r} must be one of {list(SECTIONS["optimizer"])}.'
    )
  keys = SECTIONS['optimizer'][name]
  unset = {
    key: config_dict.placeholder(keys[key].default)
    for key in keys
    if isinstance(keys[key].default, type) and values.get(key) is None
  }
  return _section(keys, **values | unset)


def schedule(name: str, **values: Any) -> ml_collections.ConfigDict:
  """Returns a learning-rate schedule's section; see `build_schedule`.

  Args:
    name: 'linear', 'cosine', 'constant', 'staircase' or 'rsqrt'.
    **values: its keys in `SECTIONS`; all that have no default, but only one of
      `warmup_steps` and `warmup_epochs`.
  """
  if 'warmup_epochs' in values:
    values.setdefault('warmup_steps', 0)
  # `validate` names the choices if there is no such schedule.
  keys = _SCHEDULES.get(name, _SCHEDULE)
  return _section(keys, name=name, **values)


def softmax(label_smoothing: float = 0.0) -> ml_collections.ConfigDict:
  """The loss for mutually exclusive classes; see `losses.build`."""
  return _section(_LOSSES['softmax'], label_smoothing=label_smoothing)


def sigmoid(
  label_smoothing: float = 0.0, binary: bool = False, reduce: str = 'sum'
) -> ml_collections.ConfigDict:
  """The loss for classes that do not exclude others; see `losses.build`."""
  return _section(
    _LOSSES['sigmoid'],
    label_smoothing=label_smoothing,
    binary=binary,
    reduce=reduce,
  )


def masked_patch(
  target: str = 'mean_colour', *, fraction: float = 0.5
) -> ml_collections.ConfigDict:
  """Masked patch prediction in place of a classification loss (B.1.2)."""
  return _section(_LOSSES[MASKED_PATCH], target=target, fraction=fraction)


def mae(mask: float = 0.75, **values: Any) -> ml_collections.ConfigDict:
  """A masked autoencoder in place of a classifier (arXiv:2111.06377).

  Args:
    mask: the share of patches to hide.
    **values: its other keys in `SECTIONS`.
  """
  return _section(_LOSSES[MAE], mask=mask, **values)


def evaluation(
  split: str, kind: str = 'classification', **values: Any
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`; by default, accuracy and loss on a split.

  Those of features learn from `train_split`: `few_shot` by least squares, `knn`
  by neighbours, `linear_probe` by logistic regression. The paper reports 5
  shots on ImageNet. It does not state its figures' strength of regularisation;
  its authors' public code uses 1024. That code resizes to 256 x 256 and takes
  the central crop of 224. `masked_patch` and `mae` need a run with that loss;
  they read labels, although nothing depends on them.

  Args:
    split: a split of the training data's source, or of `dataset` if it is set.
    kind: a key of `EVALUATIONS`.
    **values: other keys of that kind.
  """
  return _section(EVALUATIONS[kind], split=split, **values)


# The kinds of evaluations that use features, and neither the head nor the loss.
FEATURES = ('few_shot', 'knn', 'linear_probe')


def metrics_of(section: ml_collections.ConfigDict) -> list[str]:
  """Returns the metrics of an evaluation that can compare checkpoints."""
  if section.kind == 'few_shot':
    return [f'{shots}shot/accuracy' for shots in section.shots]
  if section.kind == 'knn':
    return [f'{k}nn/accuracy' for k in section.k]
  if section.kind == MAE:
    return ['loss']
  return ['accuracy'] if section.kind in FEATURES else ['accuracy', 'loss']


def due(config: ml_collections.ConfigDict, step: int) -> list[str]:
  """Returns the evaluations that are due at a step: all at the last one."""
  return [
    name
    for name, section in config.evals.items()
    if step == config.total_steps
    or (step and section.every > 0 and step % section.every == 0)
  ]
