"""Linear probe, then fine-tuning: keeps what trained features know.

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/lpft.py:B/16,data=folder:/data/pets \\
        --config.stages.probe.init.checkpoint=WEIGHTS

arXiv:2202.10054: to fine-tune all weights at once behind a new, random head
distorts the features. With a head that was trained first, ten data sets gained
about one point on their own kind of images, and ten points on others. Both
stages are those of configs/finetune.py, with `tune=head` and then with all
weights, in DIR/probe and DIR/finetune. `auto` takes the model of WEIGHTS. By
the plan, both stages of B/16 on ImageNet take 0.22 device days on v4-128 and
0.03 on h100x8.

Data of your own: it suits small sets, and those whose test images will differ
from the training images.

Differs from the paper: it fits the head by logistic regression on features of
images that are not augmented, and chooses both rates on held-out images.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.configs import finetune

USAGE = (
  'Usage: configs/recipes/lpft.py:MODEL[,data=imagenet2012|SPEC]'
  '[,resolution=224][,epochs=20.0][,eval=SPLIT]'
)


def get_config(argument=None):
  """Returns the stages `probe` and `finetune` of an argument, see `USAGE`."""
  args = config_lib.parse_argument(argument, USAGE)
  args = {'data': 'imagenet2012', 'resolution': 224} | args
  names = [name for name in ('resolution', 'epochs', 'eval') if name in args]
  words = [args['model'], args['data'], *(f'{n}={args[n]}' for n in names)]
  probe = finetune.get_config(','.join([*words, 'tune=head']))
  later = finetune.get_config(','.join(words))
  later.init.checkpoint, later.init.new_head = 'stage:probe', False
  stages = {'probe': probe, 'finetune': later}
  return ml_collections.ConfigDict({'stages': stages, 'order': tuple(stages)})
