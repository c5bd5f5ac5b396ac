"""What all recipes share: the data, and settings for data of one's own.

With `data=SPEC`, batch, warm-up and, in training from scratch, the rate follow
from the number of examples, as in configs/pretrain.py. Epochs stay as they are.
`copy=SPEC` is the place of a copy of ImageNet or ImageNet-21k.
"""

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.configs import pretrain

OPTIONS = (
  '[,data=imagenet2012|SPEC][,copy=SPEC][,epochs=300.0][,image_size=224]'
  '[,train=SPLIT][,eval=SPLIT][,few_shot=imagenet2012|average|SPEC]'
)
# big_vision's preprocessing of evaluated images; `larger` is 256 for 224 px.
CENTRE = "resize_small({larger}, method='area')|central_crop"


def parse(argument, name, options='', data='imagenet2012', train=''):
  """Returns the options of a recipe's argument, see `parse_argument`.

  `data` is the default, and `train` the part of ImageNet to train on.
  """
  usage = f'Usage: configs/recipes/{name}.py:MODEL{options}{OPTIONS}'
  args = config_lib.parse_argument(argument, usage)
  args = {'data': data} | args | {'model': models.paper_name(args['model'])}
  if train and args['data'] == 'imagenet2012':
    args = {'train': train} | args
  return args


def build(args, *, init='', data='', epochs, batch_size, image_size=224, **row):
  """Returns the config of a run.

  Args:
    args: see `parse`; the user's epochs and image size go before the next ones.
    init: the weights to start from, see `init.checkpoint`.
    data: replaces that of `args`.
    epochs: of the training data.
    batch_size: on ImageNet.
    image_size: height and width in pixels.
    **row: `model` has options of the model, `test` is the preprocessing of
      evaluated images (`CENTRE`), `keys` has other keys, such as
      `{'data.repeats': 3}`.
  """
  data = data or args['data']
  kept = {'copy': 'data'} | {k: k for k in ('train', 'eval', 'few_shot')}
  words = [f'{kept[key]}={args[key]}' for key in kept if key in args]
  config = pretrain.get_config(','.join([args['model'], data, *words]))
  unset = dict.fromkeys(('dropout_rate', 'representation_size', 'head_bias'))
  config.model.update(unset | row['model'])
  config.dropout_rng = 'rbg'  # Stochastic depth draws its examples faster.
  config.epochs = float(args.get('epochs', epochs))
  size = args.get('image_size', image_size)
  config.image_size = size, size
  config.data.batch_size, config.init.checkpoint = batch_size, init
  for key, value in row['keys'].items():
    parent, _, name = key.rpartition('.')
    (config[parent] if parent else config)[name] = value
  for name, section in config.evals.items():
    if section.kind == 'classification':
      test = row.get('test', CENTRE)
      section.preprocess = test.format(larger=size // 7 * 8)
      if config.loss.name == config_lib.MAE:
        same = {key: section[key] for key in ('preprocess', 'every')}
        config.evals[name] = config_lib.evaluation(section.split, 'mae', **same)
  if data not in pretrain.KNOWN:
    config.data.batch_size, config.model.head_bias = 0, None
    config.schedule.update(warmup_epochs=0.0, warmup_steps=-1)
    if config.init.checkpoint == '':
      config.schedule.update(peak=-1.0, peak_batch=0)
    elif config.optimizer.name == 'lars':
      # Its rate moves weights only with batches of thousands.
      adam = config_lib.optimizer('adamw', weight_decay=0.0, clip_norm=1.0)
      config.optimizer = adam
      config.schedule.update(peak=1e-3, peak_batch=0)
  return config
