"""Every key of a run: its default value, its meaning and its limits.

A config file's `get_config(argument)` starts from `default()` and changes the
keys of its experiment. Every run therefore has the same keys, and each key is
explained once, in `KEYS`, or in `sections` if the experiment chooses its
section. The command line can override values:

    --config=configs/finetune.py:ViT-B/16,cifar10 --config.data.batch_size=256
"""

from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections import config_dict

from vit_jax.config.sections import (
  CLEAN,
  EVALUATIONS,
  SECTIONS,
  Key,
  adam,
  schedule,
  softmax,
)

# As an evaluation's split and name: `inputs.settle` chooses them when the data
# set is open. As a model's name: `warm_start.with_model` takes it from the
# weights that the run starts from.
AUTO = 'auto'
AUTO_CLEAN = AUTO + CLEAN  # The same without near-duplicates.
# Kinds of data specs that name a location after the colon. The user may move
# the data.
LOCATED_DATASETS = (
  *('folder', 'classes', 'tar', 'wds', 'parquet', 'arrayrecord'),
)

KEYS = {
  'seed': Key(
    0,
    'The seed of initial parameters, shuffling, augmentation and dropout.',
    least=0,
  ),
  'total_steps': Key(
    int,
    "The run's length. A config sets exactly one of total_steps and epochs; the"
    ' other is unset or 0.',
    least=0,
  ),
  'epochs': Key(
    float,
    "The run's length; the size of the data turns it into steps.",
    least=0,
  ),
  'image_size': Key((224, 224), 'Height and width that the model sees.'),
  'channels': Key(3, 'Colours of an image: 3, or 1 for grey.', least=1),
  'num_classes': Key(
    int,
    'Unset or 0: taken from the data set. A set value must agree with it.',
    least=0,
  ),
  # ---- data ------------------------------------------------------------------
  'data.dataset': Key(str, 'A data spec, such as `folder:/data/pets`.'),
  'data.data_dir': Key(
    '',
    "The folder of `tfds:` data sets; '' is TFDS's default. For `shapes:`, a"
    " local folder for drawn scenes, which runs share; '' draws them every"
    ' time.',
    free=True,
  ),
  'data.image_key': Key(
    'image', 'The feature or column of the image, if the data name them.'
  ),
  'data.label_key': Key(
    'label',
    'The feature or column of the label. For `tfds:` and `arrayrecord:` also'
    ' `PACKAGE.MODULE:FUNCTION`, which computes it; see'
    ' `data/sources/tfds.py`.',
  ),
  'data.num_examples': Key(
    int,
    'The size of `train_split`; a set value must agree with the data.',
    least=0,
  ),
  'data.examples_per_epoch': Key(
    int,
    "The size of an epoch if it isn't that of `train_split` (JFT-300M's nominal"
    ' size). -1: the size of the data from which a shuffled `train_split` is'
    ' taken, so that a run on a subset has as many steps as one on all data.',
    least=-1,
  ),
  'data.max_labels': Key(
    1, 'The most labels per image; above 1: multi-label.', least=1
  ),
  'data.train_split': Key(
    'train',
    'A split of the data set, also in parts: `train[:98%]`,'
    ' `train+validation`.',
  ),
  'data.preprocess': Key(
    'inception_crop|flip',
    'What happens to each training image, in order; see `data/ops`.',
  ),
  'data.batch_size': Key(
    4096,
    'Images per step, on all devices together. 0: the largest power of two up'
    ' to a 256th of the examples, 16 to 4096; with `init.checkpoint`, up to an'
    ' eighth of the examples, 16 to 512.',
    least=0,
  ),
  'data.unreadable': Key(
    'error',
    "What to do at an unreadable image: 'error' ends the run; 'skip-and-count'"
    ' takes another image, or leaves it out of an evaluation.',
    free=True,
  ),
  'data.max_pixels': Key(
    2**27,
    'A stored image with more pixels is unreadable; 2**27 are 0.4 GB decoded.',
    least=1,
    free=True,
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
  ),
  'data.scaled_decoding': Key(
    False,
    'Whether training decodes a JPEG to a half, quarter or eighth of its size'
    ' if the first operation shrinks it at least as much. That is faster and'
    ' averages pixels. Evaluations decode whole images.',
  ),
  'data.threads': Key(
    int,
    'Threads that read; 0 reads in the main thread. A worker process has as'
    ' many. Unset: the cores, at most 16; in a worker, one.',
    least=0,
    free=True,
  ),
  'data.workers': Key(
    int,
    'Processes that read; 0: only threads. Unset: one per core, which start'
    ' when the loop waits for images.',
    least=0,
    free=True,
  ),
  'data.prefetch': Key(
    int,
    'Batches that a process prefetches; unset: two, or more if threads need'
    ' them.',
    least=1,
    free=True,
  ),
  'data.read_ahead': Key(
    int,
    'Records that are read at the same time, before they are decoded; 0: each'
    ' is read when it is decoded. Unset: 500 if the data lie in a bucket, else'
    ' 0.',
    least=0,
    free=True,
  ),
  'data.cache': Key(
    '',
    'Where decoded images are kept for the next epochs and evaluations:'
    " 'memory' or a local folder; '' decodes them each time. Of an image is"
    ' kept what the first operations make before one draws random numbers,'
    ' where it is smallest.',
    free=True,
  ),
  'data.cache_gib': Key(
    4.0, 'The most that each process keeps, in GiB.', free=True
  ),
  # ---- model -----------------------------------------------------------------
  'model.name': Key(
    'ViT-B/16',
    "One of `models.names()`; 'auto' is the model of init.checkpoint. The next"
    " keys down to head_bias override the named model's values if they are"
    ' set; setting one that the model does not have is an error.',
  ),
  'model.width': Key(int, 'Width of the tokens.'),
  'model.depth': Key(int, 'Number of blocks.'),
  'model.heads': Key(int, 'Heads of attention.'),
  'model.mlp_dim': Key(int, "Width of the MLPs' hidden layer."),
  'model.patch_size': Key(tuple, '(height, width), or one side.'),
  'model.resnet_blocks': Key(
    tuple, "Units in each stage of a hybrid's ResNet, such as (3, 4, 9)."
  ),
  'model.resnet_width': Key(float, "Multiplies a hybrid's channels."),
  'model.representation_size': Key(
    int,
    "Width of the head's hidden tanh layer: -1 is the model's width, 0 no"
    ' layer.',
  ),
  'model.pooling': Key(str, "'token', 'gap' or 'map'."),
  'model.position_embedding': Key(
    str, "'1d', '2d', 'sincos2d', 'none', 'relative' or 'relative_per_head'."
  ),
  'model.position_site': Key(
    str, "'stem', 'every_layer' or 'every_layer_shared'."
  ),
  'model.position_stddev': Key(
    float,
    'Standard deviation of initial position embeddings; the models have 0.02.',
  ),
  'model.attention': Key(str, "'full' or 'axial'."),
  'model.attention_implementation': Key(
    str,
    "'plain', 'lanes' (TPU) or 'cudnn' (GPU); unset: the best one measured on"
    ' the platform.',
    free=True,
  ),
  'model.gelu': Key(str, "'tanh' or 'exact'."),
  'model.norm_epsilon': Key(float, "Added to LayerNorm's variance."),
  'model.norm_position': Key(
    str,
    "Where blocks have their LayerNorms: 'pre' (the paper's) before attention"
    " and MLP, 'post' (arXiv:1706.03762) after each residual sum.",
  ),
  'model.parallel': Key(
    bool,
    'Attention and MLP read the same LayerNorm. This and the next three keys'
    ' are for large models, from arXiv:2302.05442.',
  ),
  'model.qk_norm': Key(bool, 'Whether queries and keys are normalised.'),
  'model.qkv_bias': Key(bool, 'Whether queries, keys and values have a bias.'),
  'model.norm_bias': Key(bool, 'Whether LayerNorms have a bias.'),
  'model.dropout_rate': Key(float, 'The share of units set to 0.'),
  'model.stochastic_depth': Key(
    float,
    'The share of examples that leave a branch of the last block out in'
    ' training; less in the blocks before it, down to 0 in the first. Unset:'
    ' 0.',
  ),
  'model.scan': Key(bool, 'Compiles one block, and loops over it.'),
  'model.blocks': Key(tuple, 'Units in each stage of a ResNet.'),
  'model.width_factor': Key(float, "Multiplies a ResNet's channels."),
  'model.head_bias': Key(
    float,
    "Initial value of the head's bias. Unset: 0 for softmax; for sigmoid the"
    ' log-odds of one class among all.',
  ),
  'model.dtype': Key(
    AUTO,
    "The compute dtype; 'auto' is float32 on CPU, bfloat16 on TPU and GPU.",
  ),
  'model.quantization': Key(
    str,
    "Experimental: 'int8' multiplies 8-bit integers in the blocks' dense"
    " layers, 'int8_all' in their gradients, too. Needs the extra `quantized`.",
  ),
  'model.remat': Key(
    'none',
    "What the backward pass recomputes: 'none', 'full' blocks, or with 'dots'"
    ' all but matmuls and convolutions.',
  ),
  # ---- training --------------------------------------------------------------
  'mixup_alpha': Key(
    0.0,
    'Above 0: pairs of images, and their labels, are blended. Each step draws'
    " one proportion from Beta(alpha, alpha). BiT's fine-tuning uses 0.1,"
    " AugReg's pre-training 0.2 to 0.8.",
    least=0,
  ),
  'cutmix_alpha': Key(
    0.0,
    'Above 0: a box of each image is replaced with that of another (CutMix),'
    " and the labels are blended. The box's size is drawn by Beta(alpha,"
    ' alpha).',
    least=0,
  ),
  'cutmix_share': Key(
    0.5,
    'If both are above 0, the share of steps with CutMix; the others have'
    ' mixup.',
    least=0,
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
    least=0,
  ),
  'lora.rank': Key(
    0,
    'Of low-rank additions to kernels, which are then trained in their place,'
    ' with the head or what `tuning.train` names; 0: none.',
    least=0,
  ),
  'lora.alpha': Key(16.0, 'The additions are multiplied by alpha / rank.'),
  'lora.targets': Key(
    ('query', 'value'),
    "Kernels of Transformers: 'query', 'key', 'value', 'out' and 'mlp'.",
  ),
  'accumulation_steps': Key(1, 'Micro-batches per step.', least=1),
  'dropout_rng': Key(
    'threefry',
    "How masks of dropout and stochastic depth are drawn: 'threefry', the same"
    " on any devices, or 'rbg', which is faster, and depends on the devices.",
  ),
  'polyak.decay': Key(
    0.0,
    'Of a moving average of the weights, which evaluations use; 0: none.',
  ),
  'polyak.start_step': Key(
    0, 'Before this step, the average equals the weights.', least=0
  ),
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
  # ---- the run ---------------------------------------------------------------
  'checkpoint.every': Key(1000, 'Steps between saves.', least=1, free=True),
  'checkpoint.every_minutes': Key(
    0.0,
    'Minutes since the last save after which the next logged step is saved,'
    ' too; 0: never.',
    least=0,
    free=True,
  ),
  'checkpoint.keep': Key(
    2, 'How many of the newest checkpoints to keep.', least=1, free=True
  ),
  'checkpoint.keep_every': Key(
    0, 'Also keeps multiples of this many steps; 0: none.', least=0, free=True
  ),
  'checkpoint.best': Key(
    '',
    "Also keeps the best step by a metric, such as 'test/accuracy' or"
    " 'test/loss' ('': none). It is saved when it is measured, also as"
    ' WORKDIR/best.',
    free=True,
  ),
  'checkpoint.timeout': Key(
    1800.0,
    'Seconds that the loop waits for a save, and for a bucket to answer.',
    least=1,
    free=True,
  ),
  'guard.nonfinite': Key(
    'stop',
    "What to do if a loss or gradient is not finite: 'stop' the run, or 'skip'"
    ' the step and count it.',
    free=True,
  ),
  'guard.max_skipped': Key(
    10, 'The most steps in a row that are skipped.', least=0, free=True
  ),
  'guard.report_after': Key(
    600.0,
    'Seconds without a step, an evaluated batch or a save, after which all'
    " threads' stacks are logged; 0: never.",
    least=0,
    free=True,
  ),
  'guard.exit_after': Key(
    3600.0,
    'Such seconds after which the process ends; 0: never.',
    least=0,
    free=True,
  ),
  'log.every': Key(
    50, 'Steps between two rows of metrics.', least=1, free=True
  ),
  'log.tensorboard': Key(
    True, "Whether to write TensorBoard's files too.", free=True
  ),
  'log.trackers': Key(
    '',
    "Where to send metrics, too: 'wandb', 'mlflow', or 'wandb,mlflow'; '':"
    ' none. docs/watch.md says how to set them up.',
    free=True,
  ),
  'log.upload_every': Key(
    30.0,
    "The least seconds between uploads of metrics to an object store's work"
    ' directory.',
    least=0,
    free=True,
  ),
  'profile.start_step': Key(
    10, 'The first step of a profiler trace.', least=0, free=True
  ),
  'profile.steps': Key(0, 'Its steps; 0: none.', least=0, free=True),
  'mesh.data': Key(
    -1,
    'Devices along an axis that splits the batch; -1 takes what the others'
    ' leave. If `data` and `fsdp` are both -1, `fsdp` is the largest power of'
    ' two up to 32 that fits.',
    free=True,
  ),
  'mesh.fsdp': Key(
    1, 'Devices that split the batch, and what `shard` says.', free=True
  ),
  'mesh.tensor': Key(1, 'Devices that split heads and MLPs.', free=True),
  'mesh.shard': Key(
    'all',
    "What `fsdp` splits besides the batch: 'none', 'optimizer' or 'all'.",
    free=True,
  ),
  'mesh.gather': Key(
    'step',
    "Split parameters are gathered once a 'step' or in every 'micro_batch'.",
    free=True,
  ),
  'mesh.partition': Key(
    AUTO,
    "'manual': each device works on its own rows, and gradients are summed once"
    " a step. 'compiler': the compiler splits everything, as `tensor` needs."
    " 'auto': manual if possible.",
    free=True,
  ),
  'mesh.reduce_dtype': Key(
    AUTO,
    "The dtype of manual sums of kernels' gradients: 'float32', 'bfloat16' or"
    " 'auto', which depends on the platform and the number of devices.",
    free=True,
  ),
  'mesh.slices': Key(
    0,
    'Groups of devices with a slow network between them; 0: TPU slices.',
    free=True,
  ),
}


def default() -> ml_collections.ConfigDict:
  """Returns a config of all keys at their defaults."""
  config = ml_collections.ConfigDict()
  for name, key in KEYS.items():
    section, _, own = name.rpartition('.')
    if section and section not in config:
      config[section] = ml_collections.ConfigDict()
    holder = config[section] if section else config
    is_unset = isinstance(key.default, type)
    holder[own] = (
      config_dict.placeholder(key.default) if is_unset else key.default
    )
  config.loss = softmax()
  config.optimizer = adam()
  config.schedule = schedule('cosine', peak=1e-3, warmup_steps=0)
  config.evals = ml_collections.ConfigDict()  # Name -> `evaluation(...)`.
  # Locks the keys, so that a misspelt key in a config file is an error.
  config.lock()
  config.evals.unlock()
  return config


def find(name: str, section: Mapping[str, Any] | None = None) -> Key | None:
  """Returns what the tables say of a key; None if neither has it.

  Args:
    name: such as `data.batch_size` or `evals.test.split`.
    section: the section that holds the key.
  """
  if name in KEYS or section is None:
    return KEYS.get(name)
  of_kind = EVALUATIONS.get(section.get('kind'), {})
  keys = of_kind or SECTIONS.get(section.get('name'), {})
  return keys.get(name.rpartition('.')[2])


def is_located(dataset: str | None) -> bool:
  """Whether a data spec names files of the user's by their place."""
  kind, _, argument = (dataset or '').partition(':')
  if kind == 'mix':
    return all(map(is_located, argument.split('+')))
  return kind in LOCATED_DATASETS
