"""The paper's runs on your photographs: a day on one GPU, for all items.

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/midi.py:MODEL,DATASET,of=SPEC[,OPTION=VALUE ...]
    python -m vit_jax.main --workdir=DIR \\
        --config=configs/midi.py:MODEL,TASK,of=SPEC[,OPTION=VALUE ...] \\
        --config.init.checkpoint=PRETRAINED_WORKDIR

It lies between configs/mini.py and the paper, and has the arguments of the
former. `of=SPEC` is needed: your images, with the splits `train` and `test`,
such as `folder:/data/cifar10`. They are shown at 64 px; smaller ones are
enlarged, so that ResNets, which shrink them 32 times, keep a map.

ViTs have a sixth to a fifth of the width and half of the layers: 0.7 to 13
million parameters. Patches of 16 px stand for 32 at 224 px, and of 8 px for 16
and 14, so that ViT-B/16 has 64 patches. ResNets have a quarter of the width and
half of the layers: 1 to 20 million parameters. So the models' compute has about
the proportions of Table 6. Position embeddings begin as small as in the paper.

DATASET, to pre-train on, is a part of 90% of your training images: 2% for
`imagenet2012`, 20% for `imagenet21k`, and all for `jft300m`. 7 epochs of
JFT-300M are 3,200 steps of 128 images, with random crops and flips.

TASK is one of those of configs/mini.py, at 64 px, for 320 steps.
"""

from vit_jax.configs import mini
from vit_jax.configs.mini import Dataset, Scale

USAGE = mini.USAGE.replace('configs/mini.py', 'configs/midi.py').replace(
  '[,of=SPEC]', ',of=SPEC'
)

MIDI = Scale(
  usage=USAGE,
  image_size=64,
  larger=80,
  batch_size=128,
  peak=1e-3,
  weight_decay=0.1,
  position_stddev=0.02,
  relative_stddev=None,
  sizes={
    'b': dict(width=96, depth=6, heads=3, mlp_dim=384),
    'B': dict(width=128, depth=6, heads=4, mlp_dim=512),
    'L': dict(width=192, depth=12, heads=6, mlp_dim=768),
    'H': dict(width=256, depth=16, heads=8, mlp_dim=1024),
  },
  depths={4: 1, 8: 2, 16: 4, 32: 8, 64: 16},
  patches={'32': 16, '16': 8, '14': 8},
  hybrid_blocks={'32': (2, 2, 3), '16': (2, 5)},
  resnet_width=0.25,
  resnet_depth=2,
  # `scenes` are only proportions here: of 90% of the training images.
  datasets={
    'imagenet2012': Dataset(20, 300, 584),
    'imagenet21k': Dataset(200, 90, 1704),
    'jft300m': Dataset(1_000, 7, 3_200),
  },
  augment='inception_crop(min_area=0.25)|flip',
  tuning_steps=320,
)
# The scales that are smaller than the paper's.
SMALLER = {'mini': mini.MINI, 'midi': MIDI}


def get_config(argument=None):
  """Returns the config of `MODEL,DATASET or TASK,of=SPEC[,OPTION=VALUE]`."""
  if 'of=' not in (argument or ''):
    raise ValueError(
      'of=SPEC is needed: your images, such as of=folder:/data/cifar10.'
      f' {USAGE}'
    )
  return mini.make(argument, MIDI)
