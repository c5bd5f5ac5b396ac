"""The runs behind the paper's tables and figures, as one sweep.

    python -m vit_jax.reproduce ITEM... --workdir=DIR

starts it and prints the items; this file says which config each run is of, at
two scales. `configs/sweeps/reproduce.py:table5+table6,scale=mini` is the sweep
alone. `--set=data.data_dir=DIR` and the like are for all of its runs.

`scale=paper`: configs/pretrain.py, and for fine-tuning the protocol of
configs/sweeps/finetune.py, rates chosen on held-out data, three seeds.
`jft=SPEC` and `imagenet21k=SPEC` say where what is not public lies.
`scale=mini`: configs/mini.py, without a choice of rates, two seeds.
"""

from collections.abc import Mapping

from configs import mini
from configs.sweeps import finetune
from vit_jax import config as config_lib
from vit_jax.paper import items, runs, values
from vit_jax.paper.runs import Node, Pretraining, Transfer
from vit_jax.sweep import Study, Sweep, make_run

USAGE = (
  'Usage: configs/sweeps/reproduce.py:ITEM[+ITEM...][,scale=paper|mini]'
  '[,jft=SPEC][,imagenet21k=SPEC], with'
  f' ITEM one of {", ".join(items.ITEMS)}, or all.'
)
# The paper's data sets, as configs name them.
TASKS = {
  values.IMAGENET: 'imagenet2012',
  values.CIFAR10: 'cifar10',
  values.CIFAR100: 'cifar100',
  values.PETS: 'pets',
  values.FLOWERS: 'flowers',
}
MINI_TASKS = TASKS | {values.IMAGENET: 'imagenet'}
MINI_SEEDS = 2


def get_sweep(argument=None) -> Sweep:
  """Returns the sweep of `ITEM[+ITEM...][,scale=SCALE]`."""
  args = config_lib.parse_argument(
    argument,
    positional=('items',),
    options={'scale': str, 'jft': str, 'imagenet21k': str},
    usage=USAGE,
  )
  scale = args.get('scale', 'paper')
  if scale not in SCALES:
    raise ValueError(
      f'scale={scale!r} is unknown; choose one of {list(SCALES)}. {USAGE}'
    )
  chosen = items.find(args['items'].split('+'))
  nodes = runs.with_needs(node for item in chosen for node in item.nodes)
  specs = {
    data: args[option]
    for data, option in (
      (values.JFT, 'jft'),
      (values.IMAGENET21K, 'imagenet21k'),
    )
    if option in args
  }
  if specs and scale == 'mini':
    raise ValueError(
      f'scale=mini has data of its own, so {list(specs)} are not read. {USAGE}'
    )
  return Sweep([SCALES[scale](node, specs) for node in nodes])


def _pretraining(node: Pretraining, config: str, spec: str = '') -> Study:
  """A study of one run."""
  words = []
  if node.epochs is not None:
    words.append(f'epochs={node.epochs:g}')
  if node.optimizer != 'adam':
    words.append(f'optimizer={node.optimizer}')
  run = make_run(
    _folder(node),
    ','.join([config, *words]),
    {
      **dict(node.options),
      **({'data.dataset': spec} if spec else {}),
      'seed': node.seed,
    },
    run='pretraining',
  )
  return Study(node.name, finals=[run])


def _folder(node: Node) -> str:
  """A node's name without its spaces: `ViT-L/16,JFT-300M,14-epochs`."""
  return node.name.replace(', ', ',').replace(' ', '-')


def _weights(node: Transfer) -> str:
  """The name of the run that a transfer starts from."""
  [run] = _pretraining(node.pretraining, '').finals_of(None)
  return f'run:{run.name}'


def at_paper_scale(node: Node, specs: Mapping[str, str]) -> Study:
  """The runs of a node with the paper's own models and data.

  Args:
    node: what is run.
    specs: pre-training set -> data spec, for those that are not public.
  """
  if isinstance(node, Pretraining):
    data = runs.DATASETS[node.data]
    return _pretraining(
      node,
      f'configs/pretrain.py:{node.model},{data},few_shot=imagenet2012',
      specs.get(node.data, ''),
    )
  return finetune.study(
    node.pretraining.model,
    TASKS[node.task],
    name=node.name,
    folder=_folder(node),
    options={'resolution': node.resolution},
    overrides={'init.checkpoint': _weights(node)},
  )


def in_miniature(node: Node, specs: Mapping[str, str]) -> Study:
  """The runs of a node as configs/mini.py has them."""
  del specs  # It has data of its own.
  if isinstance(node, Pretraining):
    data = runs.DATASETS[node.data]
    return _pretraining(node, f'configs/mini.py:{node.model},{data}')
  # As much larger as in the paper, and a whole number of patches.
  size = mini.IMAGE_SIZE if node.resolution == 384 else mini.LARGER
  finals = [
    make_run(
      _folder(node),
      f'configs/mini.py:{node.pretraining.model},{MINI_TASKS[node.task]}',
      {
        'image_size': (size, size),
        'init.checkpoint': _weights(node),
        'seed': seed,
      },
      seed=seed,
    )
    for seed in range(MINI_SEEDS)
  ]
  return Study(node.name, finals=finals)


SCALES = {'paper': at_paper_scale, 'mini': in_miniature}
