"""The fine-tuning protocol of the paper's Table 4 (arXiv:2010.11929, B.1.1).

    python -m vit_jax.sweep --workdir=DIR \\
        --sweep=configs/sweeps/finetune.py:MODEL,DATASET[+DATASET...] \\
        --set=init.checkpoint=PRETRAINED_WORKDIR

For each data set: the table's learning rates on the training set without its
held-out part, the best of them by that part retrained on the entire training
set with three seeds, mean and standard deviation on the test set: 7 runs.

MODEL, DATASET and `resolution=R` are those of configs/finetune.py. Rates of
data sets that are not in the table: 0.001, 0.003, 0.01, 0.03. `seeds=3`.
"""

from collections.abc import Mapping, Sequence

from configs import finetune
from vit_jax import config as config_lib
from vit_jax.sweep import Run, Study, Sweep, make_run
from vit_jax.sweep.spec import Value

USAGE = (
  'Usage: configs/sweeps/finetune.py:MODEL,DATASET[+DATASET...]'
  '[,resolution=384][,seeds=3]'
)
DEFAULT_RATES = (0.001, 0.003, 0.01, 0.03)


def get_sweep(argument=None) -> Sweep:
  """Returns the sweep of `MODEL,DATASET[+DATASET...][,OPTION=VALUE ...]`."""
  args = config_lib.parse_argument(
    argument,
    positional=('model', 'datasets'),
    options={'resolution': int, 'seeds': int},
    usage=USAGE,
  )
  return Sweep(
    [
      study(
        args['model'],
        dataset,
        resolution=args.get('resolution', 384),
        seeds=args.get('seeds', 3),
      )
      for dataset in args['datasets'].split('+')
    ]
  )


def study(
  model: str,
  dataset: str,
  *,
  resolution: int,
  seeds: int = 3,
  rates: Sequence[float] = (),
  overrides: Mapping[str, Value] | None = None,
) -> Study:
  """The protocol for one data set.

  Args:
    model: its name.
    dataset: a name or spec that configs/finetune.py takes.
    resolution: in pixels.
    seeds: how many runs are reported.
    rates: learning rates; none: those of Table 4.
    overrides: config key -> value, for all runs.
  """
  row = finetune.TABLE_4.get(dataset)
  rates = rates or (row.learning_rates if row else DEFAULT_RATES)
  # Options come before a path, which may have commas in it.
  config = (
    f'configs/finetune.py:resolution={resolution},train={{}},{model},{dataset}'
  )

  def finals(winner: Run) -> list[Run]:
    return [
      make_run(
        dataset,
        config.format('all'),
        {**winner.overrides, 'seed': seed},
        **winner.labels,
        seed=seed,
      )
      for seed in range(seeds)
    ]

  candidates = [
    make_run(
      dataset,
      config.format('selection'),
      {**(overrides or {}), 'schedule.peak': rate},
      rate=rate,
    )
    for rate in rates
  ]
  return Study(dataset, candidates, finals)
