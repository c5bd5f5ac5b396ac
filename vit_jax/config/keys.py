"""Every key of a run, its default value and what it means.

A config file's `get_config(argument)` starts from `default()` and changes what
its experiment needs, so that every run has the same keys and each key is
explained here once. Values may then be overridden on the command line:

    --config=configs/finetune.py:ViT-B/16,cifar10 --config.data.batch_size=256
"""

import ml_collections
from ml_collections import config_dict

from vit_jax.config.sections import adam, schedule, softmax

# An evaluation's split, and its name, that are chosen once the data set is
# open: see `inputs.settle`. A model's name that is taken from the weights that
# a run starts from: see `warm_start.with_model`.
AUTO = 'auto'
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


def is_located(dataset: str | None) -> bool:
  """Whether a data spec is a folder of one's own."""
  return (dataset or '').partition(':')[0] in LOCATED_DATASETS
