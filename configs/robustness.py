"""Evaluates a model of ImageNet's classes on ImageNet's other test sets.

These are the columns "ReaL" of Tables 2, 5 and 6, §D.9 (ObjectNet), and the
sets usually reported besides. The config trains nothing: the weights are those
of a fine-tuned run or of a released file.

    python -m vit_jax.main --eval_only \
        --config=configs/robustness.py:ViT-B/16,validation+real+v2 \
        --config.init.checkpoint=runs/b16_imagenet --workdir=runs/b16_robust

The sets are joined by `+`; `all` is all except ObjectNet:

  validation  ImageNet's own.
  real        ImageNet-ReaL (Beyer et al., 2020): any of an image's labels is
              right, images without labels do not count.
  v2          ImageNet-v2, matched frequency.
  a, r        ImageNet-A and -R: only their 200 classes may be predicted.
  objectnet   ObjectNet's images of the classes that it shares with ImageNet.
              `objectnet=PATH` names a copy: PATH/mappings lists these classes,
              PATH/images/CLASS holds the original images, of which 2 px are
              trimmed on each side. Any of ImageNet's 1,000 classes may be
              predicted. The paper does not say whether it restricted them;
              --config.evals.objectnet.restrict=True does. The paper's ViT-H/14
              has 61.7% (82.1% among the first five).

The weights must be fine-tuned on ImageNet, with 1,000 classes. The names of the
classes are read from tfds:imagenet2012, which is therefore always needed.

All sets except ObjectNet are TFDS's, prepared as ArrayRecord. For another copy,
such as a folder whose class folders are WordNet ids, give its data spec:
--config.evals.a.dataset=folder:/data/imagenet-a. Each set takes minutes on a
chip.
"""

from vit_jax import config as config_lib
from vit_jax.configs import finetune

USAGE = (
  'Usage: configs/robustness.py:MODEL,SET[+SET...][,resolution=384]'
  '[,objectnet=PATH], with SET one of validation, real, v2, a, r, objectnet,'
  ' or all (except objectnet).'
)

SETS = {
  'validation': dict(dataset='', split='validation'),
  'real': finetune.REAL,
  'v2': dict(dataset='tfds:imagenet_v2/matched-frequency', split='test'),
  'a': dict(
    dataset='tfds:imagenet_a', split='test', classes='names', restrict=True
  ),
  'r': dict(
    dataset='tfds:imagenet_r', split='test', classes='names', restrict=True
  ),
}


def get_config(argument=None):
  """Returns the config of `MODEL,SETS[,OPTION=VALUE ...]`, see `USAGE`."""
  args = config_lib.parse_argument(argument, USAGE)
  sets = args['set'].split('+') if args['set'] != 'all' else list(SETS)
  unknown = sorted(set(sets) - {*SETS, 'objectnet'})
  if unknown:
    raise ValueError(f'{unknown} are not sets to evaluate. {USAGE}')
  if ('objectnet' in sets) != ('objectnet' in args):
    raise ValueError(
      'the set objectnet and the option objectnet=PATH belong together: give'
      f' both or neither. {USAGE}'
    )
  resolution = args.get('resolution', 384)
  config = finetune.get_config(
    f'{args["model"]},imagenet2012,resolution={resolution}'
  )
  preprocess = config.evals.test.preprocess
  config.evals = {}
  for name in sets:
    section = config_lib.evaluation('', preprocess=preprocess)
    if name == 'objectnet':
      section.update(_objectnet(args['objectnet'], resolution))
    else:
      section.update(SETS[name])
    config.evals[name] = section
  return config


def _objectnet(path, resolution):
  # As in BiT, whose setup the paper follows: 512 px before a crop of 480.
  larger = round(resolution * 512 / 480)
  return dict(
    dataset=f'folder:{path}',
    split='images',
    classes=f'{path}/mappings',
    preprocess=f'trim(2)|resize_small({larger})|central_crop',
  )
