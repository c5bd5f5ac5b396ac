"""Self-supervised pre-training by masked patch prediction (§4.6, B.1.2).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/masked_patch.py:MODEL,DATASET[,OPTION=VALUE]

MODEL is a ViT's name; the paper's is `ViT-B/16`. DATASET is `jft300m` (the
paper's, not public: give its location by --config.data.dataset=SPEC),
`imagenet2012`, or any data spec, with `eval=SPLIT` for the split to evaluate
on. Labels are not used. Options:

    target=mean_colour|downsized|pixels   what to predict of a patch
    fraction=0.5                          the fraction of patches to corrupt
    steps=1000000
    few_shot=imagenet2012|SPEC            measures few-shot accuracy on the way

Adam, base learning rate 2e-4, 10,000 steps of warm-up, cosine decay, batch
4096, 224 px. To fine-tune, use configs/finetune.py with
--config.init.checkpoint=DIR, which drops the mask embedding and the head that
predicts patches.

Cost and result, from the paper: 1M steps are 14 epochs of JFT; ViT-B/16 then
reaches 79.9% on ImageNet after fine-tuning, 2% above training from scratch and
4% below supervised pre-training. 100,000 steps, or ImageNet's own images, gain
about as much. The paper prints no core-days. A step costs as much as in
supervised pre-training, so 14 epochs of JFT cost about twice ViT-B/16's 7.
"""

from vit_jax import config as config_lib
from vit_jax.configs import pretrain

USAGE = (
  'Usage: configs/masked_patch.py:MODEL,DATASET[,target=mean_colour|downsized|'
  'pixels][,fraction=0.5][,steps=1000000][,eval=SPLIT]'
  '[,few_shot=imagenet2012|SPEC], with DATASET one of imagenet2012, jft300m, or'
  ' a data spec such as folder:/path.'
)


def get_config(argument=None):
  """Returns the config of `MODEL,DATASET[,OPTION=VALUE ...]`, see `USAGE`."""
  args = config_lib.parse_argument(argument, USAGE)
  # The data, the evaluation and the mesh are as in supervised pre-training.
  options = [
    f'{key}={args[key]}' for key in ('eval', 'few_shot') if key in args
  ]
  config = pretrain.get_config(
    ','.join([args['model'], *options, args['dataset']])
  )
  config.epochs = 0.0
  config.total_steps = args.get('steps', 1_000_000)
  config.loss = config_lib.masked_patch(
    args.get('target', 'mean_colour'), fraction=args.get('fraction', 0.5)
  )
  # The paper gives no weight decay or dropout for this run.
  config.optimizer = config_lib.optimizer('adamw', weight_decay=0.0)
  config.schedule = config_lib.schedule(
    'cosine', peak=2e-4, warmup_steps=config.schedule.warmup_steps
  )
  config.dropout_rng = 'threefry'
  for key in ('dropout_rate', 'representation_size'):
    config.model[key] = None
  for name, section in config.evals.items():
    if section.kind == 'classification':
      config.evals[name] = config_lib.evaluation(
        section.split,
        'masked_patch',
        preprocess=section.preprocess,
        every=section.every,
      )
  return config
