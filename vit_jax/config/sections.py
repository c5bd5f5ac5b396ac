"""Builds the sections of a config that each config file chooses.

These are the optimizer, the schedule, the loss and the evaluations. Each
function returns a section with exactly the keys of its kind, so that a run's
config has no unused keys.
"""

import re
from collections.abc import Sequence
from typing import Any

import ml_collections

from vit_jax.data import exclusion

# The end of the name of an evaluation without near-duplicates.
CLEAN = '_clean'
# The value of `loss.name` for masked patch prediction.
MASKED_PATCH = 'masked_patch'


def adam(
  *, weight_decay: float = 0.0, clip_norm: float = 0.0
) -> ml_collections.ConfigDict:
  """Adam with the paper's betas; see `optimizer.adam`.

  Args:
    weight_decay: the share of a weight that a step at learning rate 1 removes.
    clip_norm: larger gradients are scaled to this global norm; 0 clips none.
  """
  return ml_collections.ConfigDict(
    dict(
      name='adam',
      # The decay of the averages of gradients, and of their squares.
      beta1=0.9,
      beta2=0.999,
      eps=1e-8,  # Added to the denominator.
      weight_decay=float(weight_decay),
      weight_decay_params='all',  # Which parameters decay: 'all' or 'kernels'.
      moment_dtype='float32',  # The dtype of the average of gradients.
      clip_norm=float(clip_norm),
    )
  )


def sgd(
  *, weight_decay: float = 0.0, clip_norm: float = 0.0
) -> ml_collections.ConfigDict:
  """SGD with momentum 0.9; see `optimizer.sgd`.

  Args:
    weight_decay: the share of a weight that is added to its gradient.
    clip_norm: larger gradients are scaled to this global norm; 0 clips none.
  """
  return ml_collections.ConfigDict(
    dict(
      name='sgd',
      momentum=0.9,  # The decay of the sum of gradients.
      weight_decay=float(weight_decay),
      weight_decay_params='all',  # Which parameters decay: 'all' or 'kernels'.
      moment_dtype='float32',  # The dtype of the sum of gradients.
      clip_norm=float(clip_norm),
    )
  )


def schedule(
  name: str, *, peak: float, warmup_steps: int, **others: Any
) -> ml_collections.ConfigDict:
  """Returns a learning-rate schedule's section; see `optimizer.SCHEDULES`.

  Args:
    name: 'linear', 'cosine', 'constant' or 'staircase'.
    peak: the highest learning rate. -1: for Adam, 3e-3 times the square root
      of batch / 4096; for SGD, 0.03 times that of batch / 512.
    warmup_steps: steps of linear warm-up from 0. -1: a tenth of the run, at
      most 10,000.
    others: `end`, the last rate of 'linear' and 'cosine'; or `boundaries`, the
      fractions of the run at which 'staircase' multiplies the rate by `factor`.
  """
  section = dict(name=name, peak=float(peak), warmup_steps=warmup_steps)
  if name in ('linear', 'cosine'):
    section['end'] = 0.0
  return ml_collections.ConfigDict(section | others)


def softmax(label_smoothing: float = 0.0) -> ml_collections.ConfigDict:
  """The loss for mutually exclusive classes; see `losses.build`.

  Args:
    label_smoothing: the share of a label that is spread over all classes. The
      loss 'sigmoid' has the same keys: its targets are this share and 1 minus
      it.
  """
  return ml_collections.ConfigDict(
    dict(name='softmax', label_smoothing=float(label_smoothing))
  )


def masked_patch(
  target: str = 'mean_colour', *, fraction: float = 0.5
) -> ml_collections.ConfigDict:
  """Masked patch prediction in place of a classification loss (B.1.2).

  Args:
    target: what to predict of a patch: its 'mean_colour' (the paper's choice),
      the patch 'downsized' to 4x4 colours, or all of its 'pixels'.
    fraction: the fraction of patches to corrupt; the paper also tried 0.15, and
      found it slightly worse.
  """
  return ml_collections.ConfigDict(
    dict(
      name=MASKED_PATCH,
      target=target,
      fraction=float(fraction),
      # The share of corrupted patches that get the mask embedding, and the
      # share that get another patch's embedding; the rest stay unchanged.
      mask_share=0.8,
      other_share=0.1,
    )
  )


def evaluation(
  split: str, *, preprocess: str = 'resize', every: int = 0
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: accuracy and loss on a split.

  Args:
    split: a split of the training data's source, or of `dataset` if it is set.
    preprocess: what happens to each image, in order; see `data/ops.py`.
    every: steps between evaluations; 0 evaluates only after the last step, -1
      after every tenth of the run.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='classification',
      dataset='',  # A data spec; '' is the training data's.
      split=split,
      preprocess=preprocess,
      label_key='',  # '': `data.label_key`, or 'label' for another data set.
      max_labels=0,  # The most labels per image; 0 is `data.max_labels`.
      # How the data set's classes map to the training classes. '': they are the
      # same. 'names': by name. PATH: by a file, see
      # `evaluators/classes.py`. Images of other classes do not count.
      classes='',
      # Whether to predict only the classes that occur in this data set.
      restrict=False,
      # Whether to write the prediction for each example to
      # WORKDIR/predictions/NAME.parquet. Needs pyarrow.
      save_predictions=False,
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


def add_clean(config: ml_collections.ConfigDict, path: str, usage: str) -> None:
  """Adds NAME_clean beside each evaluation NAME of a test split.

  It leaves out the images in a list, such as those with near-duplicates in the
  training data, and is otherwise the same.

  Args:
    config: changed; its evaluations are complete.
    path: the list, see `data.exclusion`.
    usage: one line that ends every error message.

  Raises:
    ValueError: no evaluation is of a whole split of known data. A list counts
      the images of whole splits, so parts of a split would mean others.
  """
  found = {}
  base, _ = exclusion.split(config.data.dataset or '')
  for name, section in config.evals.items():
    whole = not re.search(r'[\[(]', section.split)
    # A list is about one data set. Another one, such as ImageNet-ReaL, has its
    # images in another order.
    own = base and not section.get('dataset')
    if section.kind == 'classification' and whole and own:
      clean = section.copy_and_resolve_references()
      clean.dataset = exclusion.join(base, path)
      found[f'{name}{CLEAN}'] = clean
  if not found:
    raise ValueError(
      f'clean={path} adds an evaluation beside each one of a whole test split,'
      f' but there is none whose data are known among {list(config.evals)}: add'
      f' it in your own config file. {usage}'
    )
  config.evals.update(found)


def masked_patch_evaluation(
  split: str, *, preprocess: str = 'resize', every: int = 0
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: masked patch prediction on a split.

  It needs a run with the loss `masked_patch`. The arguments are those of
  `evaluation`.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='masked_patch',
      dataset='',  # Any data spec; '' is the training data's.
      split=split,
      preprocess=preprocess,
      # Labels are read, although nothing depends on them.
      label_key='',  # '': `data.label_key`, or 'label' for another data set.
      max_labels=0,  # The most labels per image; 0 is `data.max_labels`.
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


def few_shot(
  train_split: str,
  split: str,
  *,
  dataset: str = '',
  preprocess: str = 'resize',
  shots: Sequence[int] = (1, 5, 10, 25),
  every: int = 0,
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: few-shot accuracy of the frozen features.

  The paper reports 5 shots on ImageNet. It does not state its figures' strength
  of regularisation; its authors' public code uses 1024.

  Args:
    train_split: the split to draw the shots from.
    split: the split to measure the accuracy on.
    dataset: any data spec; '' is the training data's.
    preprocess: what happens to each image, in order; see `data/ops.py`. The
      public code resizes to 256 x 256 and takes the central crop of 224.
    shots: numbers of images per class; each number is a separate experiment.
    every: steps between evaluations; 0 evaluates only after the last step, -1
      after every tenth of the run.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='few_shot',
      dataset=dataset,
      train_split=train_split,
      split=split,
      # The split to choose a strength on, if `l2` has several: a part of the
      # training data without shots, never `split`.
      selection_split='',
      preprocess=preprocess,
      label_key='',  # '': `data.label_key`, or 'label' for another data set.
      shots=tuple(shots),
      seeds=(0, 1, 2),  # Each draws other shots; the accuracy is the mean.
      # Strengths of the regularisation of the least squares.
      l2=(1024.0,),
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


def knn(
  train_split: str,
  split: str,
  *,
  dataset: str = '',
  preprocess: str = 'resize',
  k: Sequence[int] = (20,),
  every: int = 0,
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: nearest neighbours of the frozen features.

  Args:
    train_split: the split that has the neighbours.
    split: the split to measure the accuracy on.
    dataset: any data spec; '' is the training data's.
    preprocess: what happens to each image, in order; see `data/ops.py`.
    k: numbers of neighbours; each number is a separate result.
    every: steps between evaluations; 0 evaluates only after the last step, -1
      after every tenth of the run.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='knn',
      dataset=dataset,
      train_split=train_split,
      split=split,
      preprocess=preprocess,
      label_key='',  # '': `data.label_key`, or 'label' for another data set.
      layer='pre_logits',  # Whose features: see `models/layers.py`.
      k=tuple(k),
      metric='cosine',  # Or 'euclidean'.
      # The votes of a neighbour. 'softmax': exp(cosine / temperature), as in
      # DINO. 'uniform': one. 'distance': 1 / distance.
      weights='softmax',
      temperature=0.07,
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


def linear_probe(
  train_split: str,
  split: str,
  *,
  dataset: str = '',
  preprocess: str = 'resize',
  every: int = 0,
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: logistic regression on the frozen features.

  Args:
    train_split: the split to fit the classifier to.
    split: the split to measure the accuracy on.
    dataset: any data spec; '' is the training data's.
    preprocess: what happens to each image, in order; see `data/ops.py`.
    every: steps between evaluations; 0 evaluates only after the last step, -1
      after every tenth of the run.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='linear_probe',
      dataset=dataset,
      train_split=train_split,
      split=split,
      # The split to choose a strength on, if `l2` has several: a part of the
      # training data that is not in `train_split`, never `split`.
      selection_split='',
      preprocess=preprocess,
      label_key='',  # '': `data.label_key`, or 'label' for another data set.
      layer='pre_logits',  # Whose features: see `models/layers.py`.
      # Strengths of the regularisation of the mean loss: 1 / (N C) of
      # scikit-learn's C for N images.
      l2=(1e-4,),
      max_steps=1000,  # The most steps of L-BFGS per strength.
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


# The kinds of evaluations that use features, and neither the head nor the loss.
FEATURES = ('few_shot', 'knn', 'linear_probe')


def metrics_of(section: ml_collections.ConfigDict) -> list[str]:
  """Returns the metrics of an evaluation that can compare checkpoints."""
  if section.kind == 'few_shot':
    return [f'{shots}shot/accuracy' for shots in section.shots]
  if section.kind == 'knn':
    return [f'{k}nn/accuracy' for k in section.k]
  if section.kind == 'linear_probe':
    return ['accuracy']
  return ['accuracy', 'loss']


def is_due(section: ml_collections.ConfigDict, step: int) -> bool:
  """Whether `every` is due at a step; the last step has all evaluations."""
  return section.every > 0 and step % section.every == 0
