"""Regularisation for small pre-training sets (arXiv:2010.11929, 4.3 and B.1).

    python -m vit_jax.sweep --workdir=DIR \\
        --sweep=configs/sweeps/regularisation.py:MODEL,DATASET[,epochs=N]

On the smaller sets, the paper tunes weight decay, dropout and label smoothing.
This sweep holds out a part of the training set, and pre-trains each combination
of `AXES` on the rest with configs/pretrain.py. The combination that is best on
the held-out part is trained on the entire set, `seeds=1` times.

DATASET is `imagenet2012`, or a data spec with the splits `train` and `test`.
`held_out=1` is the percentage of `train` to hold out: by default 1 for
ImageNet, as in fine-tuning (B.1.1), else 10. The cost is 13 pre-training runs;
ViT-B/16 on ImageNet has 300 epochs in each (`python -m vit_jax.plan` tells the
cost), so try fewer epochs first.
"""

from vit_jax import config as config_lib
from vit_jax.configs import pretrain
from vit_jax.sweep import Run, Study, Sweep, grid, make_run

USAGE = (
  'Usage: configs/sweeps/regularisation.py:MODEL,DATASET[,epochs=300.0]'
  '[,held_out=10][,seeds=1]'
)

# The paper prints only the values that it chose (Table 3), not the candidates.
# The axes include the paper's weight decays (0.03 to 0.3) and dropout rates (0
# and 0.1), and the label smoothing of its authors' public recipe (1e-4).
AXES = {
  'weight_decay': (0.03, 0.1, 0.3),
  'dropout': (0.0, 0.1),
  'smoothing': (0.0, 1e-4),
}
KEYS = {
  'weight_decay': 'optimizer.weight_decay',
  'dropout': 'model.dropout_rate',
  'smoothing': 'loss.label_smoothing',
}


def get_sweep(argument=None) -> Sweep:
  """Returns the sweep of `MODEL,DATASET[,OPTION=VALUE ...]`, see `USAGE`."""
  args = config_lib.parse_argument(argument, USAGE)
  dataset = args['dataset']
  if dataset in ('jft300m', 'imagenet21k'):
    raise ValueError(f'{dataset} is not a small data set. {USAGE}')
  imagenet = dataset == 'imagenet2012'
  kept = 100 - args.get('held_out', 1 if imagenet else 10)
  epochs = args.get('epochs', pretrain.IMAGENET.epochs)

  # By default, the batch size of the user's own data follows from the number of
  # images, and the candidates have fewer images than the final runs. A fixed
  # batch size is the same for both.
  batch = {} if imagenet else {'data.batch_size': 256}

  def config(split: str) -> str:
    return (
      f'configs/pretrain.py:epochs={epochs:g},eval={split},{args["model"]},'
      f'{dataset}'
    )

  def finals(winner: Run) -> list[Run]:
    whole = {
      'data.train_split': 'train',
      'data.num_examples': 0,
      **batch,
    }
    return [
      make_run(
        dataset,
        config('validation' if imagenet else 'test'),
        {**winner.overrides, **whole, 'seed': seed},
        **winner.labels,
        seed=seed,
      )
      for seed in range(args.get('seeds', 1))
    ]

  # Files in class folders are sorted by class, so a slice needs a shuffle.
  train = 'shuffled(train)' if config_lib.is_located(dataset) else 'train'
  part = {
    'data.train_split': f'{train}[:{kept}%]',
    # The config has the size of the whole set; 0 reads the size from the data.
    'data.num_examples': 0,
    **batch,
  }
  candidates = [
    make_run(
      dataset,
      config(f'{train}[{kept}%:]'),
      {**{KEYS[axis]: value for axis, value in point.items()}, **part},
      **point,
    )
    for point in grid(**AXES)
  ]
  return Sweep([Study(dataset, candidates, finals)])
