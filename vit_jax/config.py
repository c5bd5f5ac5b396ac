"""Configs: the keys of a run, the arguments of config files, and checks.

A config file's `get_config(argument)` starts from `default()` and changes what
its experiment needs, so that every run has the same keys and each key is
explained here once. Values may then be overridden on the command line:

    --config=configs/finetune.py:ViT-B/16,cifar10 --config.data.batch_size=256
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
from etils import epath
from ml_collections import config_dict

from vit_jax import platforms, small_files
from vit_jax.data import splits
from vit_jax.sections import adam as adam
from vit_jax.sections import evaluation as evaluation
from vit_jax.sections import few_shot as few_shot
from vit_jax.sections import masked_patch as masked_patch
from vit_jax.sections import (
  masked_patch_evaluation as masked_patch_evaluation,
)
from vit_jax.sections import metrics_of, schedule
from vit_jax.sections import sgd as sgd
from vit_jax.sections import softmax as softmax

FILE = 'config.json'
_REMEDY = 'bring it back, or delete it to go on with the config that you pass'

# What may differ between two launches of the same run (see `check_same_run`).
FREE_KEYS = (
  'mesh.',
  'log.',
  'profile.',
  'evals.',
  'checkpoint.',
  'guard.',
  'model.attention_implementation',
  'data.data_dir',
  'data.uneven_classes',
  'data.unreadable',
  'data.threads',
  'data.workers',
  'data.prefetch',
  'data.max_pixels',
  'init.max_inflation',
)
# An evaluation's split, and its name, that are chosen once the data set is
# open: see `inputs.settle`. A model's name that is taken from the weights that
# a run starts from: see `warm_start.with_model`.
AUTO = 'auto'
_WITHOUT_JPEGS = ('digits', 'shapes')
# Data specs that name a location, which may change, after the colon.
LOCATED_DATASETS = ('folder', 'classes')


def default() -> ml_collections.ConfigDict:
  """Every key of a run with its default value, and what it means."""
  placeholder = config_dict.placeholder
  config = ml_collections.ConfigDict()

  # Initial parameters, shuffling, augmentation and dropout all follow from it.
  config.seed = 0
  # Length: exactly one of the two is set by a config, the other is unset or 0;
  # the data's size turns epochs into steps.
  config.total_steps = placeholder(int)
  config.epochs = placeholder(float)
  config.image_size = (224, 224)  # Height and width that the model sees.
  config.channels = 3
  # From the data set when unset or 0; set, it must agree with the data set.
  config.num_classes = placeholder(int)

  config.data = data = ml_collections.ConfigDict()
  data.dataset = placeholder(str)  # A data spec, such as `folder:/data/pets`.
  # Where `tfds:` data sets lie, '' is TFDS's own default. For `shapes:` a local
  # folder to keep drawn scenes in, which runs share; '' draws them every time.
  data.data_dir = ''
  data.image_key = 'image'  # Names of the two features of a `tfds:` data set.
  data.label_key = 'label'
  data.num_examples = placeholder(int)  # Of `train_split`; checked when set.
  # What an epoch is, where it isn't `train_split` (JFT-300M's nominal size).
  # -1: all that a shuffled `train_split` takes a part of, so that a run on a
  # subset has as many steps as one on the whole.
  data.examples_per_epoch = placeholder(int)
  data.max_labels = 1  # Labels an image at most; above 1: multi-label.
  data.train_split = 'train'
  data.preprocess = 'inception_crop|flip'
  # 0: the power of two that is about a 256th of the examples, 16 to 4096.
  data.batch_size = 4096
  data.unreadable = 'error'  # Or 'skip-and-count'.
  # A stored image with more pixels is unreadable; 2**28 are 0.8 GB decoded.
  data.max_pixels = 2**28
  # Class folders of which there is one, or one without an image in what is used
  # of a split: 'error', or 'accept'.
  data.uneven_classes = 'error'
  # Whether photographs are turned as the camera was held; unset: those of
  # one's own folders are, those of TFDS not, as in the released code.
  data.exif_orientation = placeholder(bool)
  # How JPEGs are decoded: 'fast' as in the released code, TensorFlow's default,
  # or 'accurate', a grey level from it on average.
  data.jpeg_dct = 'fast'
  # Unset: as many threads as cores (over all workers), at most 16.
  data.threads = placeholder(int)  # 0 reads in the main thread.
  data.workers = 0  # Processes that read training data; 0: only threads.
  # Batches that a process holds ready; unset: two, or what threads need.
  data.prefetch = placeholder(int)

  # Name -> `evaluation(...)`, `few_shot(...)`, `masked_patch_evaluation(...)`;
  # each writes NAME/accuracy and so on.
  config.evals = ml_collections.ConfigDict()

  config.model = model = ml_collections.ConfigDict()
  # See `models.names()`; 'auto' is that of init.checkpoint.
  model.name = 'ViT-B/16'
  # The next ones override the named model's own values where they are set; to
  # set one that the model does not have is an error. `models/vit.py` explains
  # them; ResNets have the last two, and AxialResNets also heads.
  model.width = placeholder(int)
  model.depth = placeholder(int)
  model.heads = placeholder(int)
  model.mlp_dim = placeholder(int)
  model.patch_size = placeholder(tuple)  # (height, width), or one side.
  model.resnet_blocks = placeholder(tuple)  # Of a hybrid: (3, 4, 9), say.
  model.resnet_width = placeholder(float)
  # Hidden tanh layer of the head: -1 is as wide as the model, 0 none.
  model.representation_size = placeholder(int)
  model.pooling = placeholder(str)  # 'token', 'gap' or 'map'.
  # '1d', '2d', 'sincos2d', 'none', 'relative' or 'relative_per_head'.
  model.position_embedding = placeholder(str)
  # 'stem', 'every_layer' or 'every_layer_shared'.
  model.position_site = placeholder(str)
  model.position_stddev = placeholder(float)  # Of initial values; 0.02.
  model.attention = placeholder(str)  # 'full' or 'axial'.
  # 'plain', 'lanes' (TPU), 'splash' (long sequences; TPU from v4 on), 'cudnn'
  # (GPU); unset: what was found best on the platform.
  model.attention_implementation = placeholder(str)
  model.gelu = placeholder(str)  # 'tanh' or 'exact'.
  model.norm_epsilon = placeholder(float)
  model.dropout_rate = placeholder(float)
  model.scan = placeholder(bool)  # One compiled block, looped over.
  model.blocks = placeholder(tuple)  # Units of each stage of a ResNet.
  model.width_factor = placeholder(float)
  # Initial value; unset: 0 for softmax, the log-odds of one class of all for
  # sigmoid.
  model.head_bias = placeholder(float)
  model.dtype = 'auto'  # Compute: float32 on CPU, bfloat16 on TPU and GPU.
  # Recomputed in the backward pass: 'full', blocks; 'dots', all but matmuls
  # and convolutions.
  model.remat = 'none'

  # Of classification; or `masked_patch(...)`.
  config.loss = softmax()
  # Above 0: images are blended in twos, in a proportion from Beta(alpha, alpha)
  # a step, and so are their labels; BiT's fine-tuning has 0.1.
  config.mixup_alpha = 0.0
  config.optimizer = adam()
  # warmup_steps=-1 is a tenth of the run, at most 10,000 steps. peak=-1 is for
  # Adam: 3e-3 at a batch of 4096, times the square root of batch / 4096.
  config.schedule = schedule('cosine', peak=1e-3, warmup_steps=0)
  config.accumulation_steps = 1  # Micro-batches a step.
  config.dropout_rng = 'threefry'  # Or 'rbg': faster, topology-dependent.
  # Moving average of the weights, evaluated in their place; decay 0 is off.
  config.polyak = ml_collections.ConfigDict(dict(decay=0.0, start_step=0))

  config.init = init = ml_collections.ConfigDict()
  # Start from other weights: WORKDIR, or WORKDIR/checkpoints/STEP, of a run;
  # a `.npz` file; a Hugging Face folder; the name of a released file, such as
  # `augreg/B_16`; inside a config with stages also `stage:NAME`.
  init.checkpoint = ''
  # Leave their head out; False needs equal classes. A hidden layer before it
  # is kept where the model has one of the same size.
  init.new_head = True
  # How many times larger than a `.npz` file its arrays may be.
  init.max_inflation = 16.0

  config.checkpoint = checkpoint = ml_collections.ConfigDict()
  checkpoint.every = 1000  # Steps between saves.
  # Minutes after which the next step that is logged is saved, too; 0: never.
  checkpoint.every_minutes = 0.0
  checkpoint.keep = 2  # The newest ones stay,
  checkpoint.keep_every = 0  # all multiples of so many steps (0: none),
  # and the one with the best value of a metric, such as 'test/accuracy' or
  # 'test/loss', which is saved when it is measured, also as WORKDIR/best. '':
  # none.
  checkpoint.best = ''
  # Seconds that the loop waits for a save, and for a bucket to answer.
  checkpoint.timeout = 1800.0

  config.guard = guard = ml_collections.ConfigDict()
  # A loss or gradient that is not finite: 'stop' the run, or 'skip' the step
  # and count it, at most `max_skipped` steps in a row.
  guard.nonfinite = 'stop'
  guard.max_skipped = 10
  # Seconds without a step (or evaluated batch, or save) until all threads'
  # stacks are logged, and until the process ends; 0: never.
  guard.report_after = 600.0
  guard.exit_after = 3600.0
  config.log = log = ml_collections.ConfigDict(dict(every=50, tensorboard=True))
  # Seconds between uploads of numbers to a work directory in an object store,
  # at least.
  log.upload_every = 30.0
  # A profiler trace of `steps` steps from `start_step` on; steps=0: none.
  config.profile = ml_collections.ConfigDict(dict(start_step=10, steps=0))
  config.mesh = mesh = ml_collections.ConfigDict()
  # Devices along each axis; -1 is what the others leave. If `data` and `fsdp`
  # both are, `fsdp` takes the largest power of two up to 32 that divides it.
  # The batch is split over `data` and `fsdp`, heads and MLPs over `tensor`.
  mesh.data = -1
  mesh.fsdp = 1
  mesh.tensor = 1
  # What `fsdp` splits beside the batch: 'none', 'optimizer' or 'all'.
  mesh.shard = 'all'
  # Split parameters are gathered once a 'step' or in every 'micro_batch'.
  mesh.gather = 'step'
  # 'manual': each device works through its rows, gradients are summed once a
  # step; 'compiler' splits all, as `tensor` needs; 'auto': manual if possible.
  mesh.partition = 'auto'
  # What manual sums are in: 'float32', 'bfloat16' or 'auto', which follows from
  # the platform and the number of devices.
  mesh.reduce_dtype = 'auto'
  # Groups of devices with a slow network between them; 0: TPU slices.
  mesh.slices = 0
  # A misspelt key in a config file is an error there.
  config.lock()
  config.evals.unlock()
  return config


# Arguments of config files ---------------------------------------------------


def parse_argument(
  argument: str | None,
  *,
  positional: Sequence[str],
  options: Mapping[str, Callable[[str], Any]],
  usage: str,
) -> dict[str, Any]:
  """Parses the part of `--config=FILE:ARGUMENT` after the colon.

  Args:
    argument: such as `ViT-B/16,cifar10,epochs=3`.
    positional: names of the leading values, all required. Only the last may
      hold commas, and only when it is a data spec with a path.
    options: optional `key=value` parts and the type of each.
    usage: one line that is part of every error.

  Returns:
    Name -> value; options that were not given are absent.

  Raises:
    ValueError: missing, unknown, repeated or misspelt parts.
  """
  values: dict[str, Any] = {}
  words: list[str] = []
  # Not in parentheses: `shuffled(train, seed=1)`.
  for part in re.split(r',(?![^()]*\))', argument or ''):
    key, equals, value = part.partition('=')
    if equals and key in options:
      if key in values:
        raise ValueError(f'{key}= is given twice in {argument!r}. {usage}')
      try:
        values[key] = options[key](value)
      except ValueError:
        raise ValueError(
          f'{key}={value!r} is not of type {options[key].__name__}. {usage}'
        ) from None
    elif part:
      words.append(part)
  last = len(positional) - 1
  if last >= 0 and len(words) > last and ':/' in words[last]:
    words[last:] = [','.join(words[last:])]
  if len(words) < len(positional):
    raise ValueError(
      f'The config argument {argument or ""!r} lacks'
      f' {", ".join(n.upper() for n in positional[len(words) :])}. {usage}'
    )
  if len(words) > len(positional):
    raise ValueError(
      f'The config argument {argument!r} has {words[len(positional) :]} left'
      f' over; options are {sorted(options) or "none"}. {usage}'
    )
  return dict(zip(positional, words, strict=True)) | values


def name_of_split(split: str) -> str:
  """What an evaluation on a split is called, from its metrics on.

  What is held out of the training data, to choose by, must not be taken for
  what is reported.
  """
  names = splits.names(split)
  if any(name.startswith('train') for name in names):
    return 'held_out'
  return '_'.join(sorted(names))


def is_located(dataset: str | None) -> bool:
  """Whether a data spec is a folder of one's own."""
  return (dataset or '').partition(':')[0] in LOCATED_DATASETS


# Checks ----------------------------------------------------------------------


def validate(
  config: ml_collections.ConfigDict, *, complete: bool = True
) -> None:
  """Checks the values that nothing else checks when it is built.

  Args:
    config: not changed.
    complete: whether the places of data and weights, which a config may leave
      to the user, must be set; a plan needs neither.

  Raises:
    ValueError: says which key, what it is, and what it may be.
  """
  at_least = {
    'seed': 0,
    'total_steps': 0,
    'epochs': 0,
    'num_classes': 0,
    'channels': 1,
    'accumulation_steps': 1,
    'mixup_alpha': 0,
    'data.num_examples': 0,
    'data.examples_per_epoch': -1,
    'data.batch_size': 0,
    'data.max_labels': 1,
    'data.max_pixels': 1,
    'data.threads': 0,
    'data.workers': 0,
    'data.prefetch': 1,
    'init.max_inflation': 1,
    'polyak.start_step': 0,
    'checkpoint.every': 1,
    'checkpoint.every_minutes': 0,
    'checkpoint.keep': 1,
    'checkpoint.keep_every': 0,
    'checkpoint.timeout': 1,
    'guard.max_skipped': 0,
    'guard.report_after': 0,
    'guard.exit_after': 0,
    'log.every': 1,
    'log.upload_every': 0,
    'profile.start_step': 0,
    'profile.steps': 0,
  }
  flat = flatten(config)
  for name in config.evals:
    at_least |= {f'evals.{name}.every': -1, f'evals.{name}.batch_size': 0}
  for key, minimum in at_least.items():
    if key not in flat:
      section = key.rpartition('.')[0]
      raise ValueError(
        f'{key} is missing: a config that replaces the section {section!r}'
        f' needs all of its keys; config.{section}.update(...) changes single'
        ' ones.'
      )
    if flat[key] is not None and flat[key] < minimum:
      raise ValueError(f'{key}={flat[key]} must be at least {minimum}.')
  if complete and not config.data.dataset:
    raise ValueError(
      'data.dataset is not set: this config leaves the location of its data'
      ' to you. Pass --config.data.dataset=SPEC, for example'
      ' tfds:NAME or folder:/path/to/images.'
    )
  if bool(config.total_steps) == bool(config.epochs):
    raise ValueError(
      f'total_steps={config.total_steps} and epochs={config.epochs}: set'
      ' exactly one of the two, and the other to 0.'
    )
  if complete and config.init.checkpoint is None:
    raise ValueError(
      'init.checkpoint is not set: this config starts from trained weights.'
      ' Pass --config.init.checkpoint=WORKDIR of the run they come from (or'
      " '' to train from scratch)."
    )
  _check_best(config)
  size = config.image_size
  if len(size) != 2 or any(not isinstance(s, int) or s < 1 for s in size):
    raise ValueError(
      f'image_size={size} must be (height, width) in pixels, such as'
      ' (224, 224).'
    )
  for key in ('epochs', 'mixup_alpha'):
    if config[key] is not None and not math.isfinite(config[key]):
      raise ValueError(f'{key}={config[key]} must be finite.')
  if config.seed >= 2**32:
    raise ValueError(f'seed={config.seed} must be below 2**32.')
  if not 0 <= config.polyak.decay < 1:
    raise ValueError(f'polyak.decay={config.polyak.decay} must lie in [0, 1).')


def _check_best(config: ml_collections.ConfigDict) -> None:
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


def resolve(
  config: ml_collections.ConfigDict,
  *,
  num_examples: int,
  num_classes: int,
  whole: int = 0,
  platform: str | None = None,
) -> ml_collections.ConfigDict:
  """Fills in what follows from the data and the platform.

  Args:
    config: as given; not changed.
    num_examples: of the training split.
    num_classes: of the data set.
    whole: examples that the training split takes a part of, as
      `Selection.whole` has it; 0 if that is not known.
    platform: that the run is for, 'tpu', 'gpu' or 'cpu'; None is JAX's here.

  Returns:
    A copy with num_classes, data.num_examples, data.examples_per_epoch (if
    -1), data.batch_size (if 0), model.head_bias, total_steps, what the schedule
    leaves open, evaluations that are every tenth of the run, and what
    `platforms` knows set.

  Raises:
    ValueError: the config states another size or class count, or counts
      epochs of what is not known.
  """
  config = config.copy_and_resolve_references()
  for key, section, found in (
    ('num_classes', config, num_classes),
    ('num_examples', config.data, num_examples),
  ):
    if section[key] and section[key] != found:
      raise ValueError(
        f'{key}={section[key]} in the config, but {config.data.dataset!r}'
        f' has {found} (split {config.data.train_split!r}). Correct the'
        ' config, or set it to 0 to take it from the data.'
      )
    section[key] = found
  if config.model.head_bias is None:
    config.model.head_bias = _head_bias(config.loss.name, num_classes)
  if config.data.examples_per_epoch == -1:
    if not whole and not config.total_steps:
      raise ValueError(
        'data.examples_per_epoch=-1 needs the size of what data.train_split='
        f'{config.data.train_split!r} is taken from, which is not known here:'
        ' set it to a number of examples, or total_steps instead of epochs.'
      )
    config.data.examples_per_epoch = whole
  if not config.data.batch_size:
    # That of the whole, for a part of it.
    batch = _batch_size(config.data.examples_per_epoch or num_examples)
    # Of a plan, whose devices are not these, the mesh is checked anyway.
    devices = 1 if platform else jax.device_count()
    config.data.batch_size = -(-batch // devices) * devices
  if not config.total_steps:
    an_epoch = config.data.examples_per_epoch or num_examples
    steps = int(config.epochs * an_epoch / config.data.batch_size)
    if steps < 1:
      raise ValueError(
        f'epochs={config.epochs} of {an_epoch} examples at'
        f' data.batch_size={config.data.batch_size} is less than one step: pass'
        ' --config.data.batch_size=0, which chooses one by the number of'
        ' examples, or a smaller one.'
      )
    config.total_steps = steps
  if config.schedule.warmup_steps == -1:
    config.schedule.warmup_steps = min(10_000, config.total_steps // 10)
  if config.schedule.peak == -1:
    # ImageNet's row of Table 3, for other batches.
    config.schedule.peak = 3e-3 * math.sqrt(config.data.batch_size / 4096)
  for section in config.evals.values():
    if section.every == -1:
      section.every = max(1, config.total_steps // 10)
  platforms.fill_in(config, platform)
  return config


def _batch_size(num_examples: int) -> int:
  """The power of two up to a 256th of the examples, 16 to 4096."""
  return 2 ** min(12, max(4, (num_examples // 256).bit_length() - 1))


def _head_bias(loss: str, num_classes: int) -> float:
  """Where the head's bias starts: at the log-odds of one class of them all.

  A softmax of equal scores has that already.
  """
  return -math.log(max(1, num_classes - 1)) if loss == 'sigmoid' else 0.0


# The config of a work directory ----------------------------------------------


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Nested sections to `{'data.batch_size': 4096, ...}`."""
  flat = {}
  for key, value in config.items():
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def to_json(config: ml_collections.ConfigDict) -> str:
  """All of a config as text."""
  return json.dumps(config.to_dict(), indent=2)


def save(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> None:
  """Writes the resolved config as `config.json`."""
  path = epath.Path(workdir) / FILE
  temporary = path.with_name(FILE + '.tmp')
  temporary.write_text(to_json(config) + '\n')
  temporary.replace(path)


def load(workdir: epath.PathLike) -> dict[str, Any] | None:
  """The `config.json` of a work directory, None if it has none.

  Raises:
    ValueError: it is damaged.
  """
  path = epath.Path(workdir) / FILE
  if not path.exists():
    return None
  content = small_files.read_object(path, _REMEDY)
  sections = {
    key: content[key]
    for key, value in default().items()
    if isinstance(value, ml_collections.ConfigDict) and key in content
  }
  if isinstance(sections.get('evals'), dict):
    sections |= {f'evals.{k}': v for k, v in sections['evals'].items()}
  for key, value in sections.items():
    if not isinstance(value, dict):
      shown = repr(value)[:40]
      raise ValueError(
        f'{path} is damaged ({key} is {shown}, no section): {_REMEDY}.'
      )
  return content


def check_same_run(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> None:
  """Refuses a work directory that another config wrote.

  Raises:
    ValueError: lists the keys that differ, with both values. Keys that don't
      change what is computed may differ (`FREE_KEYS`), and so may the path of
      a data set, though not its size.
  """
  saved = load(workdir)
  if saved is None:
    return
  old = flatten(saved)
  new = flatten(json.loads(json.dumps(config.to_dict())))
  # What a run from before a key was added did is what its default does.
  defaults = flatten(json.loads(json.dumps(default().to_dict())))
  # But for photographs: it turned none, and decoded accurately.
  if str(old.get('data.dataset')).partition(':')[0] not in _WITHOUT_JPEGS:
    old.setdefault('data.jpeg_dct', 'accurate')
  for flat, missing in ((old, False), (new, None)):
    if flat.get('data.exif_orientation', missing) is None:
      flat['data.exif_orientation'] = is_located(flat.get('data.dataset'))
    else:
      flat.setdefault('data.exif_orientation', missing)
  differing = [
    f'  {key}: {old.get(key, "(absent)")!r} in {FILE},'
    f' {new.get(key, "(absent)")!r} now'
    for key in sorted(old.keys() | new.keys())
    if old.get(key, defaults.get(key)) != new.get(key)
    and not key.startswith(FREE_KEYS)
    and not (key == 'data.dataset' and _same_kind(old[key], new[key]))
  ]
  if differing:
    raise ValueError(
      f'{workdir} holds a run with another config:\n'
      + '\n'.join(differing)
      + '\nUse another --workdir, or pass --allow_config_change to go on'
      ' with the new values.'
    )


def _same_kind(old: str, new: str) -> bool:
  """Whether two data specs are one data set that was moved."""
  kinds = {old.partition(':')[0], new.partition(':')[0]}
  return len(kinds) == 1 and kinds <= set(LOCATED_DATASETS)
