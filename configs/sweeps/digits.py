"""The fine-tuning protocol on scanned digits, in minutes on a laptop.

    python -m vit_jax.sweep --sweep=configs/sweeps/digits.py --workdir=DIR

The two tasks are the digits 0 to 4 and 5 to 9. For each task, four learning
rates are trained on 90% of the training images and compared on the other 10%.
Then the best one is trained on all training images with three seeds, and
reported on the test images: 14 runs of a small ViT, from scratch.
`digits.py:01234+56789+02468` names other tasks.

Test accuracy is 96.1 ± 2.9% and 97.2 ± 1.0%, in two to four minutes on two CPU
cores with --parallel=2. Float sums depend on a run's number of cores. With only
72 images to choose on, the choice may therefore depend on it, too: compare only
sweeps with the same --parallel.

To start from other weights, pass --set=init.checkpoint=WORKDIR, for example of
configs/quickstart.py:pretrain (with its sizes, --set=model.width=96 ...).
"""

from vit_jax.configs.sweeps import finetune
from vit_jax.sweep import Sweep

TASKS = '01234+56789'
RATES = (0.03, 0.1, 0.3, 1.0)

SMALL = {
  'channels': 1,
  'checkpoint.every': 100,
  'data.batch_size': 64,
  # Shifts an image by at most one scanned pixel to each side.
  'data.preprocess': 'resize|pad(2)|random_crop',
  'init.checkpoint': '',
  'log.tensorboard': False,
  'model.depth': 4,
  'model.heads': 3,
  'model.mlp_dim': 192,
  'model.width': 48,
  'schedule.warmup_steps': 50,
  'epochs': 0.0,  # The length is in steps.
  'total_steps': 300,
}


def get_sweep(argument=None) -> Sweep:
  """Returns the sweep over tasks such as `01234+56789`."""
  return Sweep(
    [
      finetune.study(
        'ViT-Ti/4',
        f'digits:{task}',
        options={'resolution': 16},
        rates=RATES,
        overrides=SMALL,
      )
      for task in (argument or TASKS).split('+')
    ]
  )
