"""Evaluates the features of any weights: nearest neighbours, a linear probe.

    python -m vit_jax.main --eval_only \
        --config=configs/features.py:tfds:cifar10 \
        --config.init.checkpoint=augreg/B_16 --workdir=runs/b16_features

The weights may be a run, a released file, or a Hugging Face folder; their head
does not matter, nor do the classes that it knows. The argument is a data spec
with two splits:

    DATASET[,train=SPLIT][,eval=SPLIT][,resolution=224]

The results are `knn/10nn/accuracy`, `knn/20nn/accuracy` and so on, by the
cosine and the weights exp(cosine / 0.07) of the neighbours, as in "DINO"
(arXiv:2104.14294); and `linear_probe/accuracy`, by a logistic regression. Two
keys of each evaluation are worth a look: `layer`, such as block_5, and the
strengths `l2` of the linear probe, which `selection_split` chooses among.

Images are resized to the resolution; for another preprocessing, set
--config.evals.knn.preprocess and --config.evals.linear_probe.preprocess. All
features of the two splits are held in memory: 4 GB for ImageNet and ViT-B/16,
and 8 GB more while neighbours are searched.
"""

from vit_jax import config as config_lib

USAGE = (
  'Usage: configs/features.py:DATASET[,train=SPLIT][,eval=SPLIT]'
  '[,resolution=224], with DATASET a data spec such as tfds:cifar10.'
)


def get_config(argument=None):
  """Returns the config of `DATASET[,OPTION=VALUE ...]`, see `USAGE`."""
  args = config_lib.parse_argument(argument, USAGE)
  config = config_lib.default()
  config.data.dataset = args['dataset']
  config.data.train_split = args.get('train', 'train')
  config.data.batch_size = 256
  config.image_size = (args.get('resolution', 224),) * 2
  config.model.name = config_lib.AUTO
  config.total_steps = 1  # --eval_only trains nothing.
  train, split = config.data.train_split, args.get('eval', 'test')
  config.evals.knn = config_lib.evaluation(
    split, 'knn', train_split=train, k=(1, 10, 20, 100)
  )
  config.evals.linear_probe = config_lib.evaluation(
    split, 'linear_probe', train_split=train
  )
  return config
