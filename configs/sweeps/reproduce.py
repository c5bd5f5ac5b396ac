"""The runs behind the paper's tables and figures, as one sweep.

    python -m vit_jax.reproduce ITEM... --workdir=DIR

starts the sweep and prints the items. This file defines the config of each run,
at three scales. `configs/sweeps/reproduce.py:table5+table6,scale=mini` is the
sweep alone. Overrides such as `--set=data.data_dir=DIR` are for all its runs.

`scale=paper`: configs/pretrain.py, and for fine-tuning the protocol of
configs/sweeps/finetune.py, with rates chosen on held-out data and three seeds.
`jft=SPEC` and `imagenet21k=SPEC` give the locations of the data that are not
public; `SPEC@TRAIN@HELD_OUT` also gives their splits.
`scale=mini`: configs/mini.py with fixed rates, and one fine-tuning run per
pre-training run and task, as claims compare pre-training runs of several seeds.
`data=SPEC` replaces its scenes by your own data.
`scale=midi`: configs/midi.py on your photographs, `data=SPEC`.
`seeds=N` makes N pre-trainings of each mean that a claim tests; all seeds of a
miniature count from `first_seed=N`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from vit_jax import config as config_lib
from vit_jax.configs import midi, mini
from vit_jax.configs.sweeps import finetune
from vit_jax.paper import items, numbers, runs
from vit_jax.paper.items.tables import table4
from vit_jax.paper.runs import Node, Pretraining, Transfer, Vtab
from vit_jax.sweep import Study, Sweep, make_run
from vit_jax.sweep.spec import Value
from vit_jax.vtab import tasks

USAGE = (
  'Usage: configs/sweeps/reproduce.py:ITEM[+ITEM...][,scale=paper|mini|midi]'
  '[,jft=SPEC][,imagenet21k=SPEC][,data=SPEC]'
  '[,seeds=3][,first_seed=0], with'
  f' ITEM one of {", ".join(items.ITEMS)}, or all.'
)
TASKS = table4.TASKS
MINI_TASKS = TASKS | {numbers.IMAGENET: 'imagenet'}
# VTAB's tasks as Table 9 prints them -> their names in configs/vtab.py.
VTAB = {task.title: task.name for task in tasks.TASKS.values()}
VTAB_SEEDS = 3
# The default of configs/sweeps/finetune.py.
_TUNING_SEEDS = 3


def get_sweep(argument=None) -> Sweep:
  """Returns the sweep of `ITEM[+ITEM...][,scale=SCALE]`."""
  args = config_lib.parse_argument(argument, USAGE)
  scale = args.get('scale', 'paper')
  others = {'jft', 'imagenet21k'}
  if scale == 'paper':
    others = {'data', 'first_seed'}
  for option in args.keys() & others:
    raise ValueError(
      f'{option}={args[option]} does not go with scale={scale}: leave it out.'
      f' {USAGE}'
    )
  data = args.get('data', '')
  if scale == 'midi' and not data:
    raise ValueError(
      'scale=midi trains on your photographs: add data=SPEC (--data=SPEC of'
      f' vit_jax.reproduce), such as folder:/data/cifar10. {USAGE}'
    )
  seeds = args.get('seeds', 1 if scale == 'paper' else 3)
  nodes = runs.with_needs(
    node
    for item in items.find(args['item'].split('+'))
    for node in item.nodes(scale, seeds)
  )
  if scale == 'paper':
    specs = {
      numbers.JFT: args.get('jft', ''),
      numbers.IMAGENET21K: args.get('imagenet21k', ''),
    }
    studies = [at_paper_scale(node, specs) for node in nodes]
  else:
    studies = [in_miniature(node, data, scale) for node in nodes]
  studies = [study for study in studies if study]
  if 'first_seed' in args:
    studies = [_counted(study, args['first_seed']) for study in studies]
  return Sweep(studies)


def _counted(study: Study, first: int) -> Study:
  """Returns a miniature's study with seeds that count from `first`."""
  finals = [
    dataclasses.replace(
      run, overrides={**run.overrides, 'seed': run.overrides['seed'] + first}
    )
    for run in study.finals
  ]
  return dataclasses.replace(study, finals=finals)


def _folder(node: Node) -> str:
  """Returns a node's name without spaces: `ViT-L/16,JFT-300M,14-epochs`."""
  return node.name.replace(', ', ',').replace(' ', '-')


def _pretraining(
  node: Pretraining, config: str, overrides: Mapping[str, Value]
) -> Study:
  """Returns a study of one pre-training run."""
  overrides = {**overrides, 'seed': node.seed}
  run = make_run(_folder(node), config, overrides, run='pretraining')
  return Study(node.name, finals=[run])


def _weights(node: Transfer | Vtab) -> str:
  """Returns the reference to the run that a transfer starts from."""
  [run] = _pretraining(node.pretraining, '', {}).finals
  return f'run:{run.name}'


def _tuned(
  node: Transfer | Vtab,
  config: str,
  seeds: int,
  overrides: Mapping[str, Value],
) -> Study:
  """Returns a study without candidates; its runs differ only in the seed."""
  overrides = {**overrides, 'init.checkpoint': _weights(node)}
  # Fine-tuning runs of several pre-trainings must not share their seeds: they
  # would not be independent.
  first = seeds * node.pretraining.seed
  finals = [
    make_run(
      _folder(node), config, {**overrides, 'seed': first + seed}, seed=seed
    )
    for seed in range(seeds)
  ]
  return Study(node.name, finals=finals)


def at_paper_scale(node: Node, specs: Mapping[str, str]) -> Study:
  """Returns the runs of a node with the paper's own models and data.

  Args:
    node: the node to run.
    specs: pre-training set -> data spec, for sets that are not public.
  """
  if isinstance(node, Pretraining):
    return _papers_pretraining(node, specs.get(node.data, ''))
  if isinstance(node, Vtab):
    # All tasks have the same setting, so there are no candidates.
    config = f'configs/vtab.py:{node.pretraining.model},{VTAB[node.task]}'
    return _tuned(node, config, VTAB_SEEDS, {})
  # 384 is left out: BiT's own setup may have a smaller default.
  options = {} if node.resolution == 384 else {'resolution': node.resolution}
  if node.task == numbers.IMAGENET:
    options['real'] = 'true'
  overrides = {'init.checkpoint': _weights(node), **dict(node.options)}
  if node.pretraining.seed:  # As in `_tuned`, no two may share seeds.
    overrides['seed'] = _TUNING_SEEDS * node.pretraining.seed
  return finetune.study(
    node.pretraining.model,
    TASKS[node.task],
    name=node.name,
    folder=_folder(node),
    options=options,
    overrides=overrides,
  )


def _papers_pretraining(node: Pretraining, spec: str) -> Study:
  """Returns a pre-training study; `spec` locates data that are not public."""
  spec, *splits = spec.split('@')
  if len(splits) not in (0, 2):
    raise ValueError(
      f'{node.data} is {"@".join([spec, *splits])!r}, expected SPEC, or'
      f' SPEC@TRAIN@HELD_OUT as in tfds:jft@train[1%:]@train[:1%]. {USAGE}'
    )
  words = [node.model, runs.DATASETS[node.data]]
  average = node.few_shot == 'several'
  words.append(f'few_shot={"average" if average else "imagenet2012"}')
  if node.images:
    words.append(f'subset={node.images}')
  if node.optimizer != 'adam':
    words.append(f'optimizer={node.optimizer}')
  file = 'masked_patch' if node.objective == 'masked_patch' else 'pretrain'
  if splits and file == 'pretrain':
    words += [f'train={splits[0]}', f'eval={splits[1]}']
  # For masked patch prediction the paper gives steps instead of epochs: a
  # million, which is the config's default.
  if node.epochs is not None and file == 'pretrain':
    words.append(f'epochs={node.epochs:g}')
  overrides = dict(node.options)
  if spec:
    overrides['data.dataset'] = spec
  if splits and file == 'masked_patch':
    overrides['data.train_split'] = splits[0]
    overrides['evals.validation.split'] = splits[1]
  return _pretraining(node, f'configs/{file}.py:{",".join(words)}', overrides)


# All runs share one folder of drawn scenes.
_SCENES = {'data.data_dir': 'sweep:scenes'}


def in_miniature(
  node: Node, data: str = '', scale: str = 'mini'
) -> Study | None:
  """Returns the runs of a node in miniature; None if it has no miniature.

  Args:
    node: the node to run.
    data: the spec of data that replace the scenes; '' keeps the scenes.
    scale: 'mini' or 'midi'.
  """
  file, smaller = f'configs/{scale}.py', midi.SMALLER[scale]
  own = [f'of={data}'] if data else []
  # For TFDS data, `data.data_dir` is the user's to set.
  scenes = {} if data.startswith('tfds:') else _SCENES
  if isinstance(node, Pretraining):
    return _mini_pretraining(node, own, scenes, scale)
  model = node.pretraining.model
  if isinstance(node, Vtab):
    task = VTAB[node.task]
    if task not in mini.TASKS:
      return None
    return _tuned(node, f'{file}:{",".join([model, task, *own])}', 1, scenes)
  config = ','.join([model, MINI_TASKS[node.task], *own])
  # About the paper's ratio of sizes, and a whole number of patches.
  size = smaller.image_size if node.resolution == 384 else smaller.larger
  options = {key: smaller.option(key, value) for key, value in node.options}
  overrides = {'image_size': (size, size)} | scenes | options
  # One seed: more pre-training runs tell more than more runs from one of them.
  return _tuned(node, f'{file}:{config}', 1, overrides)


@functools.cache
def _followed(scale: str) -> frozenset[Node]:
  """Returns the miniatures that need more than the end of their metrics.

  Of pre-trainings that differ only in their seed, it has the first.
  """
  found: set[Node] = set()
  for item in items.ITEMS.values():
    if item.curves:
      found.update(item.shown(scale))
    asked = [mean for claim in item.claims(scale) for mean in claim.means()]
    means = (*item.means(scale), *asked)
    found.update(mean.start for mean in means if mean.measure.curves)
  return frozenset(found)


def _mini_pretraining(
  node: Pretraining,
  own: Sequence[str],
  scenes: Mapping[str, Value],
  scale: str,
) -> Study:
  file, smaller = f'configs/{scale}.py', midi.SMALLER[scale]
  words = [node.model, runs.DATASETS[node.data], *own]
  if node.epochs is not None:
    words.append(f'epochs={node.epochs:g}')
  if node.images:
    whole = smaller.datasets['jft300m'].scenes
    words.append(f'subset={round(whole * node.images / 300e6)}')
  if runs.first(node) not in _followed(scale):
    # The default, five evaluations, takes a fifth as long as the steps.
    words.append('evals=1')
  if node.few_shot == 'several':
    words.append('few_shot=average')
  if node.optimizer != 'adam':
    words.append(f'optimizer={node.optimizer}')
  if node.objective != 'supervised':
    words.append(f'objective={node.objective}')
  options = {key: smaller.option(key, value) for key, value in node.options}
  relative = options.get('model.position_embedding') == 'relative'
  if relative and smaller.relative_stddev:
    # With embeddings shared between heads, some runs learn them late.
    options['model.position_embedding'] = 'relative_per_head'
    options['model.position_stddev'] = smaller.relative_stddev
  config = f'{file}:{",".join(words)}'
  return _pretraining(node, config, options | scenes)
