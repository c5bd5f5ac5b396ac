"""Reproduces the paper: `python -m vit_jax.reproduce ITEM... --workdir=DIR`.

  all --list                           lists the items and their state in DIR
  all --scale=mini --parallel=2        runs in miniature, on two CPU cores
  table6 --plan                        prints the runs, their cost and state
  table6 --render                      draws and prints the results so far
  released --weights=DIR               from the authors' weights, untrained

The command starts the missing runs, at most --parallel at a time; the same
command resumes them after an interruption. Items share runs. Then
DIR/results.md and DIR/index.html show our numbers beside the paper's, and mark
a number without its runs as missing. --list, --plan and --render start no runs.
The command reports failures at the end, after all other work. A signal during
the runs leaves the pages as they are: --render draws them, also while another
process runs.

--scale=paper uses the paper's own models and data. Start it with
--launcher=slurm or tpu_vm, or run on a pod the commands that --dry_run prints.
Name the data that you must supply: --jft=SPEC, --imagenet21k=SPEC, or
SPEC@TRAIN@HELD_OUT where its splits have other names; and --objectnet=PATH.
--scale=mini needs no data; --data=SPEC, such as folder:/data/cifar10, replaces
its rendered scenes.
--scale=midi trains small models on such photographs, in a day of one GPU.

`released` evaluates and draws the authors' released weights in DIR, and writes
WORKDIR/released/results.md and index.html. `released --list` names the files
and how to fetch them.
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence

import jax
from absl import flags

from vit_jax.pages import drawing
from vit_jax.paper import items, making, planning
from vit_jax.paper.item import Item
from vit_jax.paper.items.text import objectnet
from vit_jax.paper.making import Workplace
from vit_jax.paper.numbers import IMAGENET21K, JFT
from vit_jax.paper.released import pages as released
from vit_jax.paper.runs import SCALES, Node, Pretraining
from vit_jax.runtime import command_line
from vit_jax.sweep import reading, running, state
from vit_jax.sweep.spec import Sweep

SWEEP = 'configs/sweeps/reproduce.py'

_SCALE = flags.DEFINE_enum(
  'scale',
  'paper',
  list(SCALES),
  'Scale of the models, data and schedules.',
)
_JFT = flags.DEFINE_string('jft', '', 'Data spec of JFT-300M.')
_IMAGENET21K = flags.DEFINE_string(
  'imagenet21k', '', 'Data spec of ImageNet-21k.'
)
_DATA = flags.DEFINE_string(
  'data',
  '',
  'Data spec with the splits train and test: what --scale=midi pre-trains on,'
  ' and --scale=mini instead of rendered scenes. With released: a copy of'
  ' ImageNet whose classes are WordNet ids; default: tfds:imagenet2012.',
)
_WEIGHTS = flags.DEFINE_string(
  'weights',
  '',
  "With released: the folder of the authors' files. Default: $VIT_JAX_WEIGHTS,"
  ' or ~/.cache/vit_jax.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds',
  None,
  'How many pre-trainings each claim is tested on. With 1, no claim is decided;'
  ' a difference of two models needs 4 or more, another sum 6. Default: 1 for'
  ' --scale=paper, else 3.',
  lower_bound=1,
)
_FIRST_SEED = flags.DEFINE_integer(
  'first_seed',
  0,
  'The first seed of a miniature. Seeds that were used for nothing else can'
  ' confirm what a set-up, committed before, was chosen for.',
  lower_bound=0,
)
_LIST = flags.DEFINE_bool('list', False, 'List the items and exit.')
_PLAN = flags.DEFINE_bool(
  'plan', False, 'Print the runs, their cost and their state.'
)
_RENDER = flags.DEFINE_bool(
  'render', False, 'Draw and print the results so far.'
)
_OBJECTNET = flags.DEFINE_string(
  'objectnet',
  '',
  'With objectnet: the folder of ObjectNet, which has images and mappings.',
)
flags.adopt_module_key_flags(running)
flags.mark_bool_flags_as_mutual_exclusive(['plan', 'dry_run', 'list', 'render'])


def sweep_text(chosen: Sequence[Item], seeds: int) -> str:
  """Returns the sweep file with its argument, built from the flags."""
  words = ['+'.join(item.name for item in chosen)]
  words += [f'scale={_SCALE.value}', f'seeds={seeds}']
  for flag in (_JFT, _IMAGENET21K, _DATA):
    if flag.value:
      words.append(f'{flag.name}={flag.value}')
  if _FIRST_SEED.value:
    words.append(f'first_seed={_FIRST_SEED.value}')
  return f'{SWEEP}:{",".join(words)}'


def read(chosen: Sequence[Item], seeds: int) -> Sweep:
  """Returns the runs of some items, with the overrides of the flags."""
  return running.with_overrides(reading.load(sweep_text(chosen, seeds)))


def check_data(nodes: Sequence[Node]) -> None:
  """Checks that the data sets that nobody can download are named.

  Args:
    nodes: the runs.

  Raises:
    ValueError: some are not; the message names the flags.
  """
  needed = {node.data for node in nodes if isinstance(node, Pretraining)}
  unset = [
    f'--{flag.name}=SPEC'
    for data, flag in ((JFT, _JFT), (IMAGENET21K, _IMAGENET21K))
    if data in needed and not flag.value
  ]
  sets_data = any(x.startswith('data.dataset=') for x in running.SET.value)
  if _SCALE.value == 'paper' and unset and not sets_data:
    raise ValueError(
      'These items pre-train on data that cannot be downloaded. Name your own'
      f' data: {" ".join(unset)}, where SPEC is such as folder:/data/jft.'
      ' --list and --plan work without, and --scale=mini needs no such data.'
    )


def _check_objectnet(chosen: Sequence[Item]) -> None:
  """Checks --objectnet before any run.

  Raises:
    ValueError: it is no copy of ObjectNet, or nothing here needs it.
  """
  path = _OBJECTNET.value
  if path and (_SCALE.value != 'paper' or objectnet.ITEM not in chosen):
    raise ValueError(
      f'--objectnet={path} is for the item objectnet at --scale=paper: smaller'
      " models do not know ImageNet's classes. Leave it out."
    )
  if path:
    objectnet.check(path)


def _check_released(words: Sequence[str]) -> None:
  """Raises ValueError if `released` is not alone, or a flag is not for it."""
  if [*words] != [released.WORD]:
    raise ValueError(
      f'--weights and the word {released.WORD} make pages of their own, without'
      f' other items: python -m vit_jax.reproduce {released.WORD} --weights=DIR'
      ' --workdir=DIR'
    )
  taken = {'workdir', 'weights', 'data', 'set', 'list', 'render'}
  known = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  refused = sorted(
    f'--{f.name}' for f in known if f.present and f.name not in taken
  )
  if refused:
    raise ValueError(
      f'{released.WORD} starts no sweep and does not take {", ".join(refused)};'
      f' it takes {", ".join(f"--{name}" for name in sorted(taken))}.'
    )


def main(words: Sequence[str]) -> None:
  # Runs and measurements are other processes, which need the accelerators.
  jax.config.update('jax_platforms', 'cpu')
  where = running.folders()
  if released.WORD in words or _WEIGHTS.value:
    _check_released(words)
    released.run(
      _WEIGHTS.value,
      where.local,
      data=_DATA.value,
      keys=running.SET.value,
      only_list=_LIST.value,
      only_render=_RENDER.value,
    )
    return
  chosen, scale = items.find(words), _SCALE.value
  seeds = _SEEDS.value or (1 if scale == 'paper' else 3)
  place = Workplace(where, scale, seeds, _DATA.value, _FIRST_SEED.value)
  _check_objectnet(chosen)
  if _PLAN.value:
    sweep = read(chosen, seeds)
    state.check_same_runs(where, sweep)
    print(planning.text(place.nodes(*chosen), sweep, where, scale=scale))
    return
  # Without its data, an item needs no runs.
  data = {objectnet.NAME: _OBJECTNET.value}
  ready = [item for item in chosen if data.get(item.name) or not item.lacking]
  nodes = place.nodes(*ready)
  text = sweep_text(ready, seeds)
  if not _LIST.value and not _RENDER.value:
    check_data(nodes)
  if running.DRY_RUN.value:
    for item in chosen:
      if item not in ready and place.nodes(item):
        print(f'# {item.name}: {item.lacking}')
    if nodes:
      running.run(text, table=False)
    return
  every = [*items.ITEMS.values()]
  sweep = read(every, seeds)
  state.check_same_runs(where, sweep)
  place = dataclasses.replace(place, studies=sweep.studies)
  if _LIST.value:
    print(making.listing(every if 'all' in words else chosen, place))
    return
  # Checked before any run, although drawing is the last step.
  drawing.check_matplotlib()
  failures = []
  if not _RENDER.value:
    # A signal ends this call without drawing: drawing takes minutes, which a
    # preempted machine may not have.
    run = functools.partial(running.run, text, table=False) if nodes else None
    failures = making.make(chosen, place, run=run, data=data)
  making.finish(chosen, place, failures)


if __name__ == '__main__':
  command_line.run(
    main,
    required=('workdir',),
    arguments='the items, such as table5 table8, or all; or released',
  )
