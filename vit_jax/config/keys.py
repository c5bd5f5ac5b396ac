"""Every key of a run, with its default value and its meaning.

A config file's `get_config(argument)` starts from `default()` and changes the
keys of its experiment. Every run therefore has the same keys, and each key is
explained once, here. The command line can override values:

    --config=configs/finetune.py:ViT-B/16,cifar10 --config.data.batch_size=256
"""

import ml_collections
from ml_collections import config_dict

from vit_jax.config.sections import CLEAN, adam, schedule, softmax

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


def default() -> ml_collections.ConfigDict:
  """Returns a config of all keys at their defaults; comments explain them."""
  placeholder = config_dict.placeholder
  config = ml_collections.ConfigDict()

  # The seed of initial parameters, shuffling, augmentation and dropout.
  config.seed = 0
  # The run's length. A config sets exactly one of the two; the other is unset
  # or 0. The size of the data turns epochs into steps.
  config.total_steps = placeholder(int)
  config.epochs = placeholder(float)
  config.image_size = (224, 224)  # Height and width that the model sees.
  config.channels = 3  # Colours of an image: 3, or 1 for grey.
  # Unset or 0: taken from the data set. A set value must agree with it.
  config.num_classes = placeholder(int)

  config.data = data = ml_collections.ConfigDict()
  data.dataset = placeholder(str)  # A data spec, such as `folder:/data/pets`.
  # The folder of `tfds:` data sets; '' is TFDS's default. For `shapes:`, a
  # local folder for drawn scenes, which runs share; '' draws them every time.
  data.data_dir = ''
  # Names of the two features or columns, where the data have names for them.
  # For `tfds:` and `arrayrecord:`, the label may also be
  # `PACKAGE.MODULE:FUNCTION`, which computes it; see `data/label_function.py`.
  data.image_key = 'image'
  data.label_key = 'label'
  # The size of `train_split`; a set value must agree with the data.
  data.num_examples = placeholder(int)
  # The size of an epoch if it isn't that of `train_split` (JFT-300M's nominal
  # size). -1: the size of the data from which a shuffled `train_split` is
  # taken, so that a run on a subset has as many steps as one on all data.
  data.examples_per_epoch = placeholder(int)
  data.max_labels = 1  # The most labels per image; above 1: multi-label.
  # A split of the data set, also in parts: `train[:98%]`, `train+validation`.
  data.train_split = 'train'
  # What happens to each training image, in order; see `data/ops.py`.
  data.preprocess = 'inception_crop|flip'
  # Images per step, on all devices together. 0: the largest power of two up to
  # a 256th of the examples, 16 to 4096; with `init.checkpoint`, up to an eighth
  # of the examples, 16 to 512.
  data.batch_size = 4096
  # What to do at an unreadable image: 'error' ends the run; 'skip-and-count'
  # takes another image, or leaves it out of an evaluation.
  data.unreadable = 'error'
  # A stored image with more pixels is unreadable; 2**27 are 0.4 GB decoded.
  # Threads of a process decode at most 2**29 pixels of large images at once.
  data.max_pixels = 2**27
  # What to do if there is only one class folder, or if a class has no image in
  # the used part of a split: 'error' or 'accept'.
  data.uneven_classes = 'error'
  # Whether to rotate photographs as their EXIF data say. Unset: those in the
  # user's own files, prepared ones included; the images of `tfds:` and `hf:`
  # stay, as in the released code.
  data.exif_orientation = placeholder(bool)
  # How to decode JPEGs: 'fast' is TensorFlow's default, as in the released
  # code; 'accurate' differs from it by a grey level on average.
  data.jpeg_dct = 'fast'
  # Whether training decodes a JPEG to a half, quarter or eighth of its size if
  # the first operation shrinks it at least as much. That is faster and averages
  # pixels. Evaluations decode whole images.
  data.scaled_decoding = False
  # Threads that read; 0 reads in the main thread. A worker process has as many.
  # Unset: the cores, at most 16; in a worker, one.
  data.threads = placeholder(int)
  # Processes that read; 0: only threads. Unset: one per core, which start when
  # the loop waits for images.
  data.workers = placeholder(int)
  # Batches that a process prefetches; unset: two, or more if threads need them.
  data.prefetch = placeholder(int)
  # Records that are read at the same time, before they are decoded; 0: each is
  # read when it is decoded. Unset: 500 if the data lie in a bucket, else 0.
  data.read_ahead = placeholder(int)
  # Where decoded images are kept for the next epochs and evaluations: 'memory'
  # or a local folder; '' decodes them each time. Of an image is kept what the
  # first operations make before one draws random numbers, where it is smallest.
  data.cache = ''
  data.cache_gib = 4.0  # The most that each process keeps, in GiB.

  # Name -> `evaluation(...)`, `few_shot(...)`, `knn(...)`, `linear_probe(...)`,
  # `masked_patch_evaluation(...)`.
  # Each evaluation writes NAME/accuracy and so on.
  config.evals = ml_collections.ConfigDict()

  config.model = model = ml_collections.ConfigDict()
  # One of `models.names()`; 'auto' is the model of init.checkpoint.
  model.name = 'ViT-B/16'
  # If set, these and the keys down to `head_bias` override the named model's
  # values; setting a key that the model does not have is an error.
  # `models/vit.py` explains them. ResNets have `blocks` and `width_factor`,
  # AxialResNets also `heads`.
  model.width = placeholder(int)
  model.depth = placeholder(int)
  model.heads = placeholder(int)
  model.mlp_dim = placeholder(int)
  model.patch_size = placeholder(tuple)  # (height, width), or one side.
  model.resnet_blocks = placeholder(tuple)  # A hybrid's, such as (3, 4, 9).
  model.resnet_width = placeholder(float)  # Multiplies a hybrid's channels.
  # Width of the head's hidden tanh layer: -1 is the model's width, 0 no layer.
  model.representation_size = placeholder(int)
  model.pooling = placeholder(str)  # 'token', 'gap' or 'map'.
  # '1d', '2d', 'sincos2d', 'none', 'relative' or 'relative_per_head'.
  model.position_embedding = placeholder(str)
  # 'stem', 'every_layer' or 'every_layer_shared'.
  model.position_site = placeholder(str)
  # Standard deviation of initial position embeddings; the models have 0.02.
  model.position_stddev = placeholder(float)
  model.attention = placeholder(str)  # 'full' or 'axial'.
  # 'plain', 'lanes' (TPU), 'splash' (long sequences; TPU from v4 on), 'cudnn'
  # (GPU); unset: the best one measured on the platform.
  model.attention_implementation = placeholder(str)
  model.gelu = placeholder(str)  # 'tanh' or 'exact'.
  model.norm_epsilon = placeholder(float)  # Added to LayerNorm's variance.
  # Where blocks have their LayerNorms: 'pre' (the paper's) before attention and
  # MLP, 'post' (arXiv:1706.03762) after each residual sum.
  model.norm_position = placeholder(str)
  # For large models, from arXiv:2302.05442: attention and MLP read the same
  # LayerNorm; queries and keys are normalised; biases that can be left out.
  model.parallel = placeholder(bool)
  model.qk_norm = placeholder(bool)
  model.qkv_bias = placeholder(bool)
  model.norm_bias = placeholder(bool)
  model.dropout_rate = placeholder(float)  # The share of units set to 0.
  # The share of examples that leave a branch of the last block out in training;
  # less in the blocks before it, down to 0 in the first. Unset: 0.
  model.stochastic_depth = placeholder(float)
  model.scan = placeholder(bool)  # Compiles one block, and loops over it.
  model.blocks = placeholder(tuple)  # Units in each stage of a ResNet.
  model.width_factor = placeholder(float)  # Multiplies a ResNet's channels.
  # Initial value of the head's bias. Unset: 0 for softmax; for sigmoid the
  # log-odds of one class among all.
  model.head_bias = placeholder(float)
  # The compute dtype; 'auto' is float32 on CPU, bfloat16 on TPU and GPU.
  model.dtype = 'auto'
  # Experimental: 'int8' multiplies 8-bit integers in the blocks' dense layers,
  # 'int8_all' in their gradients, too. Needs the extra `quantized`.
  model.quantization = placeholder(str)
  # What the backward pass recomputes: 'none', 'full' blocks, or with 'dots' all
  # but matmuls and convolutions.
  model.remat = 'none'

  # A classification loss, or `masked_patch(...)`.
  config.loss = softmax()
  # Above 0: pairs of images, and their labels, are blended. Each step draws one
  # proportion from Beta(alpha, alpha). BiT's fine-tuning uses 0.1, AugReg's
  # pre-training 0.2 to 0.8.
  config.mixup_alpha = 0.0
  # Above 0: a box of each image is replaced with that of another (CutMix), and
  # the labels are blended. The box's size is drawn by Beta(alpha, alpha).
  config.cutmix_alpha = 0.0
  # If both are above 0, the share of steps with CutMix; the others have mixup.
  config.cutmix_share = 0.5
  config.optimizer = adam()
  config.schedule = schedule('cosine', peak=1e-3, warmup_steps=0)
  # Which parameters train: all, all but those that `freeze` names, or only
  # those that `train` names. The two are regular expressions of names, as in
  # parameters.txt; 'head' also means all names that begin with 'head/'.
  config.tuning = tuning = ml_collections.ConfigDict()
  tuning.freeze = ''
  tuning.train = ''
  # Below 1: each layer's learning rate is this times that of the layer behind
  # it. Typical are 0.65 to 0.75.
  tuning.layer_decay = 1.0
  # Low-rank additions to kernels, which are then trained in their place, with
  # the head or what `tuning.train` names; rank=0: none. The additions are
  # multiplied by alpha / rank. The targets are kernels of Transformers:
  # 'query', 'key', 'value', 'out' and 'mlp'.
  config.lora = ml_collections.ConfigDict(
    dict(rank=0, alpha=16.0, targets=('query', 'value'))
  )
  config.accumulation_steps = 1  # Micro-batches per step.
  # How masks of dropout and stochastic depth are drawn: 'threefry', the same on
  # any devices, or 'rbg', which is faster, and depends on the devices.
  config.dropout_rng = 'threefry'
  # A moving average of the weights, which evaluations use; decay=0: none.
  # Before `start_step` it equals the weights.
  config.polyak = ml_collections.ConfigDict(dict(decay=0.0, start_step=0))

  config.init = init = ml_collections.ConfigDict()
  # Weights to start from: a run's WORKDIR or WORKDIR/checkpoints/STEP; a `.npz`
  # file; a Hugging Face folder, also as `hf://OWNER/NAME`; the name of a
  # released file, such as `augreg/B_16`; or, in a config with stages,
  # `stage:NAME`. '': none.
  init.checkpoint = ''
  # Whether to replace their head; False needs equal classes. A hidden layer
  # before the head is kept if the model has one of the same size.
  init.new_head = True
  # How many times larger than its `.npz` file the arrays may be.
  init.max_inflation = 16.0

  config.checkpoint = checkpoint = ml_collections.ConfigDict()
  checkpoint.every = 1000  # Steps between saves.
  # Minutes since the last save after which the next logged step is saved, too;
  # 0: never.
  checkpoint.every_minutes = 0.0
  checkpoint.keep = 2  # How many of the newest checkpoints to keep.
  checkpoint.keep_every = 0  # Also keeps multiples of this many steps; 0: none.
  # Also keeps the best step by a metric, such as 'test/accuracy' or 'test/loss'
  # ('': none). It is saved when it is measured, also as WORKDIR/best.
  checkpoint.best = ''
  # Seconds that the loop waits for a save, and for a bucket to answer.
  checkpoint.timeout = 1800.0

  config.guard = guard = ml_collections.ConfigDict()
  # What to do if a loss or gradient is not finite: 'stop' the run, or 'skip'
  # the step and count it, at most `max_skipped` steps in a row.
  guard.nonfinite = 'stop'
  guard.max_skipped = 10
  # Seconds without a step, an evaluated batch or a save, after which all
  # threads' stacks are logged, and after which the process ends; 0: never.
  guard.report_after = 600.0
  guard.exit_after = 3600.0

  config.log = log = ml_collections.ConfigDict()
  log.every = 50  # Steps between two rows of metrics.
  log.tensorboard = True  # Whether to write TensorBoard's files too.
  # Where to send metrics, too: 'wandb', 'mlflow', or 'wandb,mlflow'; '': none.
  # docs/watch.md says how to set them up.
  log.trackers = ''
  # The least seconds between uploads of metrics to an object store's work
  # directory.
  log.upload_every = 30.0

  # A profiler trace of `steps` steps from `start_step` on; steps=0: none.
  config.profile = ml_collections.ConfigDict(dict(start_step=10, steps=0))

  config.mesh = mesh = ml_collections.ConfigDict()
  # Devices along each axis; -1 takes what the others leave. If `data` and
  # `fsdp` are both -1, `fsdp` is the largest power of two up to 32 that fits.
  # `data` and `fsdp` split the batch, `tensor` the heads and MLPs.
  mesh.data = -1
  mesh.fsdp = 1
  mesh.tensor = 1
  # What `fsdp` splits besides the batch: 'none', 'optimizer' or 'all'.
  mesh.shard = 'all'
  # Split parameters are gathered once a 'step' or in every 'micro_batch'.
  mesh.gather = 'step'
  # 'manual': each device works on its own rows, and gradients are summed once a
  # step. 'compiler': the compiler splits everything, as `tensor` needs. 'auto':
  # manual if possible.
  mesh.partition = 'auto'
  # The dtype of manual sums of kernels' gradients: 'float32', 'bfloat16' or
  # 'auto', which depends on the platform and the number of devices.
  mesh.reduce_dtype = 'auto'
  # Groups of devices with a slow network between them; 0: TPU slices.
  mesh.slices = 0
  # Locks the keys, so that a misspelt key in a config file is an error.
  config.lock()
  config.evals.unlock()
  return config


def is_located(dataset: str | None) -> bool:
  """Whether a data spec names files of the user's by their place."""
  kind, _, argument = (dataset or '').partition(':')
  if kind == 'mix':
    return all(map(is_located, argument.split('+')))
  return kind in LOCATED_DATASETS
