"""The fine-tuning protocol of the paper's Table 4 (arXiv:2010.11929, B.1.1).

    python -m vit_jax.sweep --workdir=DIR \\
        --sweep=configs/sweeps/finetune.py:MODEL,DATASET[+DATASET...] \\
        --set=init.checkpoint=PRETRAINED_WORKDIR

For each data set, the table's learning rates are trained on the training set
without its held-out part, and compared on that part. The best one is trained on
the entire training set with three seeds. The sweep reports mean and standard
deviation on the test set: 7 runs. For BiT's ResNets, BiT's own setup is one
more candidate, as in the paper: 8 runs.

MODEL, DATASET, `resolution=R` and `preprocess=P` are those of
configs/finetune.py. Data sets that are not in the table need a split called
test, and have the rates 0.001, 0.003, 0.01 and 0.03. `seeds=3` is the default.
`real=true` also tests the reported runs of imagenet2012 on ImageNet-ReaL, which
affects no choice.
"""

from collections.abc import Mapping, Sequence

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.configs import finetune
from vit_jax.sweep import Run, Study, Sweep, make_run
from vit_jax.sweep.spec import Value

USAGE = (
  'Usage: configs/sweeps/finetune.py:MODEL,DATASET[+DATASET...]'
  '[,resolution=384][,preprocess=inception|crop|crop_small][,seeds=3]'
  '[,real=false|true], which needs imagenet2012 among the data sets.'
)
DEFAULT_RATES = (0.001, 0.003, 0.01, 0.03)


def get_sweep(argument=None) -> Sweep:
  """Returns the sweep of `MODEL,DATASET[+DATASET...][,OPTION=VALUE ...]`."""
  args = config_lib.parse_argument(argument, USAGE)
  options = {
    key: args[key] for key in ('resolution', 'preprocess') if key in args
  }
  if args['model'] == config_lib.AUTO:
    raise ValueError(
      'A sweep needs the name of its model, as its candidates depend on it:'
      f' auto is for single runs. {USAGE}'
    )
  datasets = args['dataset'].split('+')
  real = args.get('real', 'false')
  if real != 'false' and 'imagenet2012' not in datasets:
    raise ValueError(
      f'real={real} is about imagenet2012, which is not among the data sets'
      f' {datasets}; leave it out. {USAGE}'
    )
  # Only imagenet2012 has a second test.
  own_options = {'imagenet2012': {'real': real} if real != 'false' else {}}
  return Sweep(
    [
      study(
        args['model'],
        dataset,
        options=options | own_options.get(dataset, {}),
        seeds=args.get('seeds', 3),
      )
      for dataset in datasets
    ]
  )


def study(
  model: str,
  dataset: str,
  *,
  name: str = '',
  folder: str = '',
  options: Mapping[str, Value] | None = None,
  seeds: int = 3,
  rates: Sequence[float] = (),
  overrides: Mapping[str, Value] | None = None,
) -> Study:
  """Returns the protocol for one data set.

  Args:
    model: the model's name.
    dataset: a name or spec that configs/finetune.py takes.
    name: the study's name; '' is the data set's.
    folder: the folder of its runs; '' is the study's name.
    options: options of configs/finetune.py; `real` and `clean`, which are about
      test images, are only for reported runs.
    seeds: how many runs to report.
    rates: learning rates; () is Table 4's, or `DEFAULT_RATES`.
    overrides: config key -> value, for all runs; reported runs count their
      seeds from its `seed`.
  """
  name = name or dataset
  folder = folder or name
  row = finetune.TABLE_4.get(dataset)
  rates = rates or (row.learning_rates if row else DEFAULT_RATES)

  def config(part: str, setup: str) -> str:
    words = {**(options or {}), 'train': part}
    if not row and part == 'all':
      # Reports on test, as the rate was chosen on a part of train.
      words['eval'] = 'test'
    if part == 'selection':
      words = {k: v for k, v in words.items() if k not in ('real', 'clean')}
    if setup != 'table4':
      words['setup'] = setup
    text = ','.join(f'{key}={value}' for key, value in words.items())
    return f'configs/finetune.py:{text},{model},{dataset}'

  def finals(winner: Run) -> list[Run]:
    first = winner.overrides.get('seed', 0)
    return [
      make_run(
        folder,
        config('all', winner.labels.get('setup', 'table4')),
        {**winner.overrides, 'seed': first + seed},
        **winner.labels,
        seed=seed,
      )
      for seed in range(seeds)
    ]

  candidates = [
    make_run(
      folder,
      config('selection', 'table4'),
      {**(overrides or {}), 'schedule.peak': rate},
      rate=rate,
    )
    for rate in rates
  ]
  if models.paper_name(model).startswith('BiT-'):
    # It has its own rate, so its label is the setup.
    candidates.append(
      make_run(folder, config('selection', 'bit'), overrides or {}, setup='bit')
    )
  return Study(name, candidates, finals)
