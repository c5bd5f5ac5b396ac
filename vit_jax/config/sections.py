"""Sections of a config: what `config.default` leaves to each config file.

An optimizer, a schedule, evaluations: functions that give a section with all of
its keys, so that a run's config holds none that nothing reads.
"""

from collections.abc import Sequence
from typing import Any

import ml_collections

# The value of `loss.name` for masked patch prediction.
MASKED_PATCH = 'masked_patch'


def adam(
  *, weight_decay: float = 0.0, clip_norm: float = 0.0
) -> ml_collections.ConfigDict:
  """Adam with the paper's betas; see `optimizer.adam`."""
  return ml_collections.ConfigDict(
    dict(
      name='adam',
      beta1=0.9,
      beta2=0.999,
      eps=1e-8,
      weight_decay=float(weight_decay),
      weight_decay_params='all',
      moment_dtype='float32',
      clip_norm=float(clip_norm),
    )
  )


def sgd(
  *, weight_decay: float = 0.0, clip_norm: float = 0.0
) -> ml_collections.ConfigDict:
  """SGD with momentum 0.9; see `optimizer.sgd`."""
  return ml_collections.ConfigDict(
    dict(
      name='sgd',
      momentum=0.9,
      weight_decay=float(weight_decay),
      weight_decay_params='all',
      moment_dtype='float32',
      clip_norm=float(clip_norm),
    )
  )


def schedule(
  name: str, *, peak: float, warmup_steps: int, **others: Any
) -> ml_collections.ConfigDict:
  """A learning-rate schedule's section; see `optimizer.SCHEDULES`."""
  section = dict(name=name, peak=float(peak), warmup_steps=warmup_steps)
  if name in ('linear', 'cosine'):
    section['end'] = 0.0
  return ml_collections.ConfigDict(section | others)


def softmax(label_smoothing: float = 0.0) -> ml_collections.ConfigDict:
  """The loss of classes that exclude each other; see `losses.build`."""
  return ml_collections.ConfigDict(
    dict(name='softmax', label_smoothing=float(label_smoothing))
  )


def masked_patch(
  target: str = 'mean_colour', *, fraction: float = 0.5
) -> ml_collections.ConfigDict:
  """Masked patch prediction in place of a classification loss (B.1.2).

  Args:
    target: 'mean_colour' of a patch, the paper's choice, 'downsized', the
      patch as 4x4 colours, or 'pixels', all of it.
    fraction: of the patches that are corrupted; the paper tried 0.15 too, and
      found it slightly worse.
  """
  return ml_collections.ConfigDict(
    dict(
      name=MASKED_PATCH,
      target=target,
      fraction=float(fraction),
      # Of the corrupted patches, what gets the mask embedding, and what another
      # patch's; the rest stays as it is.
      mask_share=0.8,
      other_share=0.1,
    )
  )


def evaluation(
  split: str, *, preprocess: str = 'resize', every: int = 0
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: accuracy and loss on a split.

  Args:
    split: of the training data's source, unless `dataset` is set.
    preprocess: see `data/ops.py`.
    every: steps between evaluations; 0 is only after the last step, -1 a tenth
      of the run.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='classification',
      dataset='',  # A data spec; '' is the training data's.
      split=split,
      preprocess=preprocess,
      label_key='',  # '': `data.label_key`; of another data set 'label'.
      max_labels=0,  # Labels an image at most; 0 is `data.max_labels`.
      # '': the classes are those trained on. 'names': those of the same name
      # are. PATH: a file says which are, see `evaluators/classes.py`. Images of
      # other classes do not count.
      classes='',
      # Whether only the classes that occur here may be predicted.
      restrict=False,
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


def masked_patch_evaluation(
  split: str, *, preprocess: str = 'resize', every: int = 0
) -> ml_collections.ConfigDict:
  """An entry of `config.evals`: masked patch prediction on a split.

  For runs with the loss of that name.

  Args: those of `evaluation`.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='masked_patch',
      dataset='',  # A data spec, any; '' is the training data's.
      split=split,
      preprocess=preprocess,
      # Labels are read, though nothing depends on them.
      label_key='',  # '': `data.label_key`; of another data set 'label'.
      max_labels=0,  # Labels an image at most; 0 is `data.max_labels`.
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

  The paper reports 5 shots on ImageNet. Its figures' strength of regularisation
  is not established; 1024 is that of its authors' public code.

  Args:
    train_split: what the shots are drawn from.
    split: what the accuracy is of.
    dataset: a data spec, any; '' is the training data's.
    preprocess: see `data/ops.py`; the public code resizes to 256 x 256 and
      takes the central crop of 224.
    shots: images of a class, each an experiment of its own.
    every: steps between evaluations; 0 is only after the last step, -1 a tenth
      of the run.
  """
  return ml_collections.ConfigDict(
    dict(
      kind='few_shot',
      dataset=dataset,
      train_split=train_split,
      split=split,
      # What a strength is selected on, where `l2` are several: part of what is
      # left of the training data, never `split`.
      selection_split='',
      preprocess=preprocess,
      label_key='',  # '': `data.label_key`; of another data set 'label'.
      shots=tuple(shots),
      seeds=(0, 1, 2),  # Of the drawing; the accuracy is the mean.
      l2=(1024.0,),
      batch_size=0,  # 0 is the training batch size.
      every=every,
    )
  )


def metrics_of(section: ml_collections.ConfigDict) -> list[str]:
  """The metrics of an evaluation by which checkpoints can be compared."""
  if section.kind == 'few_shot':
    return [f'{shots}shot/accuracy' for shots in section.shots]
  return ['accuracy', 'loss']


def is_due(section: ml_collections.ConfigDict, step: int) -> bool:
  """Whether an evaluation falls on this step; the last step has them all."""
  return section.every > 0 and step % section.every == 0
