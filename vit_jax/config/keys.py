"""Every key of a run: its default value, its meaning and its check.

A config file's `get_config(argument)` starts from `default()` and changes the
keys of its experiment. Every run therefore has the same keys, and each key is
explained once, in `KEYS`, or in `sections` if the experiment chooses its
section. The command line can override values:

    --config=configs/finetune.py:ViT-B/16,cifar10 --config.data.batch_size=256
"""

import math
from collections.abc import Mapping
from typing import Any

import ml_collections
from flax import traverse_util
from ml_collections import config_dict

from vit_jax.config.sections import (
  EVALUATIONS,
  SECTIONS,
  metrics_of,
  optimizer,
  schedule,
  softmax,
)
from vit_jax.models.model_options import (
  OPTIONS,
  Check,
  Key,
  at_least,
  one_of,
  within,
)

# As an evaluation's split and name: `complete` chooses them when the data
# set is open. As a model's name: `warm_start.with_model` takes it from the
# weights that the run starts from. As steps between saves: see there.
AUTO = 'auto'
# Keys that two launches of the same run may set differently, and the beginnings
# of names of such keys: they do not change what is computed.
FREE_KEYS = (
  *('evals.', 'checkpoint.', 'guard.', 'log.', 'profile.', 'mesh.'),
  *('data.data_dir', 'data.unreadable', 'data.threads', 'data.workers'),
  *('data.read_ahead', 'data.cache', 'model.attention_implementation'),
  'distill.teacher',  # `training.teacher` compares its content.
)

_SIZE = Check(
  lambda x: len(x) == 2 and all(isinstance(n, int) and n > 0 for n in x),
  '(height, width) in pixels, such as (224, 224)',
)

KEYS = {
  'seed': Key(
    0,
    'The seed of initial parameters, shuffling, augmentation and dropout.',
    Check(lambda x: 0 <= x < 2**32, 'at least 0 and below 2**32'),
  ),
  'total_steps': Key(int, "The run's length, unless `epochs` says it."),
  'epochs': Key(float, "The run's length in passes over the data."),
  'image_size': Key((224, 224), 'Height and width that the model sees.', _SIZE),
  'channels': Key(3, 'Colours of an image: 3, or 1 for grey.', at_least(1)),
  'num_classes': Key(int, 'Unset or 0: that of the data, which must agree.'),
  # ---- data ------------------------------------------------------------------
  'data.dataset': Key(str, 'A data spec, such as `folder:/data/pets`.'),
  'data.data_dir': Key(
    '',
    "The folder of `tfds:` and `vtab:` data sets ('': TFDS's default), or of"
    " the scenes of `shapes:`, which runs can share ('': drawn every time).",
  ),
  'data.image_key': Key('image', 'The feature or column of the image.'),
  'data.label_key': Key(
    'label',
    'That of the label. For `tfds:` and `arrayrecord:` also'
    ' `PACKAGE.MODULE:FUNCTION`, which computes it; see'
    ' `data/sources/tfds.py`.',
  ),
  'data.num_examples': Key(int, 'Those of `train_split`; the data must agree.'),
  'data.examples_per_epoch': Key(
    int,
    'The size of an epoch, if not that of `train_split`. -1: that of the data'
    ' of which a shuffled `train_split` is a part, so that a run on a subset'
    ' has as many steps.',
    at_least(-1),
  ),
  'data.max_labels': Key(
    1, 'The most labels per image; above 1: multi-label.', at_least(1)
  ),
  'data.train_split': Key('train', 'A split, or parts of some: `train[:98%]`.'),
  'data.preprocess': Key(
    'inception_crop|flip',
    'What happens to each training image, in order; see `data/ops`.',
  ),
  'data.batch_size': Key(
    4096,
    'Images per step, on all devices together. 0: the largest power of two up'
    ' to a 256th of the examples, 16 to 4096; with `init.checkpoint`, up to an'
    ' eighth of the examples, 16 to 512.',
  ),
  'data.repeats': Key(
    1,
    'Repeated augmentation: how often an image comes in a batch, each time with'
    ' other random numbers. An epoch keeps its length, so it has fewer'
    ' different images. DeiT uses 3.',
    at_least(1),
  ),
  'data.unreadable': Key(
    'error',
    "What to do at an unreadable image: 'error' ends the run; 'skip-and-count'"
    ' takes another image, or leaves it out of an evaluation.',
    one_of('error', 'skip-and-count'),
  ),
  'data.exif_orientation': Key(
    bool,
    'Whether to rotate photographs as their EXIF data say. Unset: those in the'
    " user's own files, prepared ones included; the images of `tfds:` and `hf:`"
    ' stay, as in the released code.',
  ),
  'data.jpeg_dct': Key(
    'fast',
    "How to decode JPEGs: 'fast' is TensorFlow's default, as in the released"
    " code; 'accurate' differs from it by a grey level on average.",
    one_of('fast', 'accurate'),
  ),
  'data.threads': Key(
    int,
    'Threads that read; 0 reads in the main thread. A worker process has as'
    ' many. Unset: the cores, at most 16; in a worker, one.',
  ),
  'data.workers': Key(
    int,
    'Processes that read; 0: only threads. Unset: one per core, which start'
    ' when the loop waits for images.',
  ),
  'data.read_ahead': Key(
    int,
    'Records that are read at the same time, by as many threads; 0: no more'
    ' than `data.threads`. Unset: 500 if the data lie in a bucket, else 0.',
  ),
  'data.cache': Key(
    '',
    "'memory' keeps decoded images for the next epochs and evaluations, and"
    " threads alone read; '' decodes them each time. Of an image is kept what"
    ' the first operations make before one draws random numbers, where it is'
    ' smallest.',
  ),
  'data.cache_gib': Key(4.0, 'The most that each process keeps, in GiB.'),
  # ---- model -----------------------------------------------------------------
  'model.name': Key(
    'ViT-B/16',
    "One of `models.names()`; 'auto' is the model of init.checkpoint. The other"
    " keys override the named model's values if they are set; setting one that"
    ' the model does not have is an error.',
  ),
  **{
    f'model.{name}': option
    for name, option in OPTIONS.items()
    if name != 'num_classes'
  },
  'model.dtype': Key(
    AUTO,
    "'auto': float32 on CPU, bfloat16 on TPU and GPU.",
    one_of(AUTO, 'float32', 'bfloat16'),
  ),
  # ---- training --------------------------------------------------------------
  'mixup_alpha': Key(
    0.0,
    'Above 0: pairs of images, and their labels, are blended. Each step draws'
    " one proportion from Beta(alpha, alpha). BiT's fine-tuning uses 0.1,"
    " AugReg's pre-training 0.2 to 0.8.",
  ),
  'cutmix_alpha': Key(
    0.0,
    'Above 0: a box of each image, whose size is drawn by Beta(alpha, alpha),'
    ' is that of another (CutMix), and the labels are blended.',
  ),
  'cutmix_share': Key(
    0.5,
    'If both are above 0, the share of steps with CutMix.',
    within('[0, 1]'),
  ),
  'mix_by': Key(
    'batch',
    "What is drawn anew for mixup and CutMix: for each 'batch', for each 'pair'"
    " of neighbours, or for each 'element'.",
    one_of('batch', 'pair', 'element'),
  ),
  'flexi.patch_sizes': Key(
    (),
    'Sides of patches, of which each step draws one (FlexiViT); (): none.',
    Check(lambda sides: all(n > 0 for n in sides), 'sides in pixels'),
  ),
  'tuning.freeze': Key(
    '',
    'A regular expression of the names, as in parameters.txt, of parameters'
    " that do not train; 'head' also means all names that begin with 'head/'.",
  ),
  'tuning.train': Key('', 'The same of the only parameters that train.'),
  'tuning.layer_decay': Key(
    1.0,
    "Below 1: each layer's learning rate is this times that of the layer behind"
    ' it. Typical are 0.65 to 0.75.',
    within('(0, 1]'),
  ),
  'lora.rank': Key(
    0,
    'Of low-rank additions to kernels, which are then trained in their place,'
    ' with the head or what `tuning.train` names; 0: none.',
  ),
  'lora.alpha': Key(
    16.0,
    'The additions are multiplied by alpha / rank.',
    within('(0, inf)'),
  ),
  'lora.targets': Key(
    ('query', 'value'),
    "Kernels of Transformers: 'query', 'key', 'value', 'out' and 'mlp'.",
  ),
  'accumulation_steps': Key(1, 'Micro-batches per step.', at_least(1)),
  'sam.rho': Key(
    0.0,
    'Above 0: sharpness-aware minimisation. The gradient is that at the weights'
    ' which this distance up the slope leads to; a step takes twice as long.',
  ),
  'sam.rho_end': Key(
    -1.0,
    'The distance when the learning rate is at its end, towards which it falls'
    ' as the rate does. -1: always `sam.rho`.',
    Check(lambda x: x == -1 or 0 <= x < math.inf, 'at least 0, or -1'),
  ),
  'sam.alpha': Key(
    0.0,
    'Above 0: GSAM. The gradient at the weights themselves is followed upwards,'
    ' times this, as far as it is orthogonal to the other one.',
  ),
  'dropout_rng': Key(
    'threefry',
    "How masks of dropout and stochastic depth are drawn: 'threefry', the same"
    " on any devices, or 'rbg', which is faster, and depends on the devices.",
    one_of('threefry', 'rbg'),
  ),
  'polyak.decay': Key(
    0.0,
    'Of a moving average of the weights, which evaluations use; 0: none.',
    within('[0, 1)'),
  ),
  'polyak.start_step': Key(0, 'Before it, the average is the weights.'),
  'init.checkpoint': Key(
    '',
    "Weights to start from: a run's WORKDIR or WORKDIR/checkpoints/STEP; a"
    ' `.npz` file; a Hugging Face folder, also as `hf://OWNER/NAME`; the name'
    ' of a released file, such as `augreg/B_16`; or, in a config with stages,'
    " `stage:NAME`. '': none.",
  ),
  'init.new_head': Key(
    True,
    'Whether to replace their head; False needs equal classes. A hidden layer'
    ' before the head is kept if the model has one of the same size.',
  ),
  'init.preprocess': Key(
    '',
    "'auto': image size and preparation are those of the weights, if they are a"
    ' folder of transformers or timm that says them. The run records the'
    ' operations here.',
  ),
  'distill.teacher': Key(
    '',
    'A frozen model to learn from, besides labels: its weights, named as those'
    " of `init.checkpoint`; '': none.",
  ),
  'distill.model': Key(
    '',
    "Its model, such as 'ViT-B/16:gelu=exact'; '': what the weights say.",
  ),
  'distill.image_size': Key(
    (),
    'Height and width to which it sees the images resized; (): as they are.',
    Check(lambda x: not x or _SIZE.holds(x), f'() or {_SIZE.expected}'),
  ),
  'distill.kind': Key(
    'soft',
    "To learn its probabilities, 'soft', or its most likely class, 'hard'.",
    one_of('soft', 'hard'),
  ),
  'distill.temperature': Key(
    1.0, "What divides the logits of both, if 'soft'.", within('(0, inf)')
  ),
  'distill.weight': Key(
    0.5,
    'Its share of the loss; that of labels is the rest. 1: no labels are used.',
    within('[0, 1]'),
  ),
  # ---- the run ---------------------------------------------------------------
  'checkpoint.every': Key(
    1000,
    "Steps between saves. 'auto': a row of metrics is saved when the last save"
    ' has ended, and has blocked the loop for at most 1% of the time since it'
    ' began.',
    Check(
      lambda x: x == AUTO or (isinstance(x, int) and x >= 1),
      f"at least 1, or '{AUTO}'",
    ),
    field_type=object,
  ),
  'checkpoint.every_minutes': Key(
    0.0, 'Minutes after which the next logged step is saved, too; 0: never.'
  ),
  'checkpoint.keep': Key(2, 'How many of the newest stay.', at_least(1)),
  'checkpoint.keep_every': Key(
    0,
    "Multiples of this many steps stay, too. With `every='auto'`, they are"
    ' saved for this.',
  ),
  'checkpoint.best': Key(
    '',
    "Also keeps the best step by a metric, such as 'test/accuracy' or"
    " 'test/loss' ('': none). It is saved when it is measured, also as"
    ' WORKDIR/best.',
  ),
  'checkpoint.timeout': Key(
    1800.0,
    'Seconds that a bucket may take to answer, and a save to be written.',
    at_least(1),
  ),
  'guard.nonfinite': Key(
    'stop',
    "What to do if a loss or gradient is not finite: 'stop' the run, or 'skip'"
    ' the step and count it.',
    one_of('stop', 'skip'),
  ),
  'guard.max_skipped': Key(10, 'The most steps in a row that are skipped.'),
  'guard.exit_after': Key(
    3600.0,
    'Seconds without a step, an evaluated batch or a save, after which all'
    " threads' stacks are logged and the process ends; 0: never.",
  ),
  'guard.replay_every': Key(
    0,
    'Every so many steps, one step is computed twice, and a difference ends the'
    ' run (exit code 78); 0: never. See docs/help.md.',
  ),
  'log.every': Key(50, 'Steps between two rows of metrics.', at_least(1)),
  'log.tensorboard': Key(True, "Whether to write TensorBoard's files too."),
  'log.trackers': Key(
    '',
    "Where to send metrics, too: 'wandb', or '' for nowhere. See"
    ' docs/watch.md.',
    one_of('', 'wandb'),
  ),
  'profile.start_step': Key(10, 'The first step of a profiler trace.'),
  'profile.steps': Key(0, 'Its steps; 0: none.'),
  'mesh.data': Key(
    -1,
    'Devices along an axis that splits the batch; -1 takes what the others'
    ' leave. If `data` and `fsdp` are both -1, `fsdp` is the largest power of'
    ' two up to 32 that fits.',
    at_least(-1),
  ),
  'mesh.fsdp': Key(
    1, 'Devices that split the batch, and what `shard` says.', at_least(-1)
  ),
  'mesh.tensor': Key(1, 'Devices that split heads and MLPs.', at_least(-1)),
  'mesh.shard': Key(
    'all',
    "What `fsdp` splits besides the batch: 'none', 'optimizer' or 'all'.",
    one_of('none', 'optimizer', 'all'),
  ),
  'mesh.gather': Key(
    'step',
    "Split parameters are gathered once a 'step' or 'micro_batch'.",
    one_of('step', 'micro_batch'),
  ),
  'mesh.partition': Key(
    AUTO,
    "'manual': each device works on its own rows, and gradients are summed once"
    " a step. 'compiler': the compiler splits everything, as `tensor` needs."
    " 'auto': manual if possible.",
    one_of(AUTO, 'manual', 'compiler'),
  ),
  'mesh.reduce_dtype': Key(
    AUTO,
    "The dtype of manual sums of kernels' gradients: 'float32', 'bfloat16' or"
    " 'auto', which depends on the platform and the number of devices.",
    one_of(AUTO, 'float32', 'bfloat16'),
  ),
}


def default() -> ml_collections.ConfigDict:
  """Returns a config of all keys at their defaults."""
  values = {
    name: config_dict.placeholder(key.default)
    if isinstance(key.default, type)
    else config_dict.FieldReference(key.default, key.field_type)
    if key.field_type
    else key.default
    for name, key in KEYS.items()
  }
  config = ml_collections.ConfigDict(
    traverse_util.unflatten_dict(values, sep='.')
  )
  config.loss = softmax()
  config.optimizer = optimizer('adamw', weight_decay=0.0)
  config.schedule = schedule('cosine', peak=1e-3, warmup_steps=0)
  config.evals = ml_collections.ConfigDict()  # Name -> `evaluation(...)`.
  # Locks the keys, so that a misspelt key in a config file is an error.
  config.lock()
  config.evals.unlock()
  return config


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
  """Flattens nested sections to `{'data.batch_size': 4096, ...}`."""
  if isinstance(config, ml_collections.ConfigDict):
    config = config.to_dict()
  return traverse_util.flatten_dict(config, sep='.')


def table(config: ml_collections.ConfigDict) -> dict[str, Key]:
  """Returns every key that a config must have, by its name.

  Args:
    config: a run's config, which chooses sections and evaluations.

  Raises:
    ValueError: a section's name, or an evaluation's kind, is unknown.
  """
  found, flat = dict(KEYS), flatten(config)
  chosen = [(parent, 'name', SECTIONS[parent]) for parent in SECTIONS]
  chosen += [(f'evals.{name}', 'kind', EVALUATIONS) for name in config.evals]
  for parent, own, choices in chosen:
    choice = flat.get(f'{parent}.{own}')
    if choice not in choices:
      where = 'SECTIONS' if parent in SECTIONS else 'EVALUATIONS'
      raise ValueError(
        f'{parent}.{own}={choice!r} must be one of {list(choices)}. One of your'
        f' own needs an entry in vit_jax.config.{where}, see docs/extend.md.'
      )
    found |= {f'{parent}.{name}': k for name, k in choices[choice].items()}
  return found


def validate(
  config: ml_collections.ConfigDict, *, located: bool = True
) -> None:
  """Checks what the tables say of each key, and what keys say together.

  Args:
    config: the config; not changed.
    located: whether the user must have said where the data and the weights
      are; a plan needs neither.

  Raises:
    ValueError: a value is wrong; names the key, its value and what it may be.
  """
  keys, flat = table(config), flatten(config)
  # Keys of the user's may stand beside these, but not in a chosen section.
  chosen = tuple(f'{name}.' for name in (*SECTIONS, 'evals'))
  wrong = [name for name in keys if name not in flat]
  wrong += [n for n in flat if n not in keys and n.startswith(chosen)]
  for name in wrong:
    section = name.rpartition('.')[0]
    parts = [key.rpartition('.') for key in keys]
    own = [key for parent, _, key in parts if parent == section]
    raise ValueError(
      f'{name} is {"missing" if name in keys else "unknown"}: the section'
      f' {section!r} has the keys {own}. In a config file, set a section as a'
      ' whole by a function of vit_jax/config/sections.py, and single keys by'
      f' config.{section}.update(...).'
    )
  for name, key in keys.items():
    if expected := key.refusal(flat[name]):
      raise ValueError(f'{name}={flat[name]!r} must be {expected}.')
  if bool(config.total_steps) == bool(config.epochs):
    raise ValueError(
      f'total_steps={config.total_steps} and epochs={config.epochs}: set'
      ' exactly one of the two, and the other to 0.'
    )
  section = config.schedule
  for key, other, wrong in (
    ('warmup_epochs', 'warmup_steps', section.warmup_steps != 0),
    ('peak_batch', 'peak', section.peak == -1),
  ):
    if section[key] and wrong:
      raise ValueError(
        f'schedule.{key}={section[key]} does not go with schedule.{other}='
        f'{section[other]}, which says the same: set schedule.{key} to 0, or'
        f' schedule.{other} to {"a rate" if key == "peak_batch" else 0}.'
      )
  best = config.checkpoint.best
  choices = [
    f'{name}/{metric}'
    for name, section in config.evals.items()
    for metric in metrics_of(section)
  ]
  if best and best not in choices:
    raise ValueError(
      f'checkpoint.best={best!r} must be a metric of one of evals: {choices}.'
    )
  if not located:
    return
  if not config.data.dataset:
    raise ValueError(
      'data.dataset is not set: this config leaves the location of its data'
      ' to you. Pass --config.data.dataset=SPEC, for example'
      ' tfds:NAME or folder:/path/to/images.'
    )
  for key, use, without in (
    ('init.checkpoint', 'starts from', 'train from scratch'),
    ('distill.teacher', 'learns from', 'learn from labels alone'),
  ):
    if flat[key] is None:
      raise ValueError(
        f'{key} is not set: this config {use} trained weights. Pass'
        f" --config.{key}=WORKDIR of the run they come from (or '' to"
        f' {without}).'
      )
