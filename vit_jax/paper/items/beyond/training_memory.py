"""Beyond the paper: the memory of training, as the TPU compiler has it.

The paper has that of inference. The compiler states the memory of a step at two
batch sizes. Their difference, by the images between them, is what an image
takes: the parameters and the optimizer's state are in both and cancel. The
instructions, whose size depends on the batch, are not counted. No TPU is
needed, and nothing runs.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vit_jax.paper import answers, planning
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items.figures.figure12 import timed
from vit_jax.paper.report import Cell, Claim, Missing, Number, Table
from vit_jax.paper.runs import Results
from vit_jax.plan import compilers, devices
from vit_jax.workdir import files

NAME = 'training_memory'
# The smallest slice, which has the cores of the paper's "TPUv3 with 8 cores".
TOPOLOGY, CORES = 'v3:2x2', 8
# A ViT, and the ResNet whose forward pass has about as many multiply-adds.
# These are Figure 12's models; ViT-L/16 has no such ResNet there.
PAIRS = (
  ('ViT-B/32', 'BiT-R50x1'),
  ('ViT-L/32', 'BiT-R50x2'),
  ('ViT-B/16', 'BiT-R50x2'),
  ('ViT-L/16', 'BiT-R152x2'),
  ('ViT-H/14', 'BiT-R152x4'),
)
_HYBRIDS = ('R50+ViT-B/32', 'R50+ViT-B/16', 'R50+ViT-L/16')
MODELS = (*dict.fromkeys(name for pair in PAIRS for name in pair), *_HYBRIDS)
# Images of a core, the most first. Each is twice the next, and two are compared
# that leave room: short of memory, the compiler computes values twice instead
# of keeping them, and an image would seem to take less. So it would with few
# images, where gradients may need more memory than what is kept of the images.
BATCHES = {'paper': (64, 32, 16, 8, 4), 'mini': (256, 128)}
_ROOM = 0.85  # The part of the memory that a step may take.
FILES = {'paper': 'configs/pretrain.py', 'mini': 'configs/mini.py'}
INSTALL = (
  f'{NAME} needs the TPU compiler, but no TPU: pip install'
  ' "vit-paper-jax[plan]" installs it on x86-64 Linux.'
)
# What is known of a model: images on a core -> the JSON of `vit_jax.plan`, of
# two batches, the larger one first.
Plan = Mapping[str, Any]
Plans = Mapping[int, Plan]
_BATCH = 'data.batch_size'


def per_image(plans: Plans) -> float:
  """Returns the GiB that one more image on a core takes."""
  many, few = plans
  # A core without the instructions.
  full, less = (p['hbm_gib'] - p['hbm']['program'] for p in plans.values())
  return (full - less) / (many - few)


def _config(model: str, scale: str) -> str:
  """Returns the pre-training whose step is compiled."""
  return f'{FILES[scale]}:{model},jft300m'


def _with_room(
  plans: Sequence[Plan], model: str, scale: str
) -> dict[int, Plan]:
  """Returns the first two batches with room; fewer if they aren't compiled."""
  found = {
    int(plan['overrides'][_BATCH]) // CORES: plan
    for plan in plans
    if plan['config'] == _config(model, scale)
    and plan['hbm_gib'] <= _ROOM * plan['hbm_usable_gib']
  }
  return {n: found[n] for n in [n for n in BATCHES[scale] if n in found][:2]}


def measure(
  scale: str,
  folder: pathlib.Path,
  planner: Callable[[Sequence[str]], Plan] | None = None,
) -> None:
  """Compiles what is missing, a batch of a model after another.

  Args:
    scale: one of `runs.SCALES`.
    folder: WORKDIR/measured; each compilation is kept in its `training_memory`.
    planner: takes the flags of vit_jax.plan and returns its JSON. None:
      `vit_jax.plan`, in a separate process for each compilation.

  Raises:
    ValueError: there is no TPU compiler, or it failed; the latter is raised
      after all other models are compiled.
  """
  scale, where = timed(scale), folder / NAME
  done, total = progress(scale, folder)
  if planner is None and done < total and not devices.have_compiler():
    raise ValueError(INSTALL)
  where.mkdir(parents=True, exist_ok=True)
  plans, failed = planning.read(where), []
  for model in MODELS:
    for images in BATCHES[scale]:
      config, batch = _config(model, scale), str(CORES * images)
      settings = {'config': config, 'overrides': {_BATCH: batch}}
      known = any(settings.items() <= plan.items() for plan in plans)
      if known or len(_with_room(plans, model, scale)) == 2:
        continue
      print(f'{model}, {images} images on a core', file=sys.stderr)
      words = [f'--config={config}', f'--config.{_BATCH}={batch}']
      words += [f'--topology={TOPOLOGY}', '--json']
      try:
        plans.append({**(planner or _plan)(words), **settings})
      except ValueError as error:
        failed.append(f'{NAME}: {config}: {error}')
        break
      with files.atomic(where / planning.FILE) as temporary:
        temporary.write_text(json.dumps(plans) + '\n')
  if failed:
    raise ValueError('\n'.join(failed))


def _plan(words: Sequence[str]) -> Plan:
  """Calls vit_jax.plan in a process, as its compiler may crash.

  Raises:
    ValueError: it failed; the message is its error.
  """
  found = subprocess.run(
    # A batch that does not fit is followed by a smaller one, not by a search.
    [sys.executable, '-m', 'vit_jax.plan', *words, '--nosearch'],
    capture_output=True,
    text=True,
    check=False,
  )
  if found.returncode:
    # The command's own error, or else the end of what a crash printed.
    why = f'\n{found.stderr}'.rpartition('\nerror: ')[2].strip()[-1000:]
    raise ValueError(why or f'exit {found.returncode}')
  return json.loads(found.stdout.strip().splitlines()[-1])


def read(folder: pathlib.Path, scale: str) -> dict[str, Plans]:
  """Returns the models of which two batches are compiled.

  Args:
    folder: WORKDIR/measured.
    scale: one of `runs.SCALES`.

  Raises:
    ValueError: the file is damaged.
  """
  plans = planning.read(folder / NAME)
  found = {model: _with_room(plans, model, timed(scale)) for model in MODELS}
  return {model: pair for model, pair in found.items() if len(pair) == 2}


def progress(scale: str, folder: pathlib.Path) -> tuple[int, int]:
  """Returns how many models are compiled, and how many there are."""
  return len(read(folder, scale)), len(MODELS)


# What the page shows. ---------------------------------------------------------

_TITLE = 'Training memory for one more image, on a core of a TPU v3'
_COLUMNS = ('Parameters (millions)', 'Forward pass (GMACs)', 'GiB an image')
_CLAIM = (
  'A ViT takes less training memory per image than the ResNet of comparable'
  ' compute. This is not a claim of the paper, whose Appendix D.5 is about'
  ' inference.'
)


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  compiled = read(pictures.parent / 'measured', results.scale)
  found = {model: per_image(plans) for model, plans in compiled.items()}
  cells = {(model, column): Cell() for model in MODELS for column in _COLUMNS}
  for model, plans in compiled.items():
    plan, _ = plans.values()
    shown = (plan['params'] / 1e6, plan['forward_gmacs'], found[model])
    for column, number in zip(_COLUMNS, shown, strict=True):
      cells[model, column] = Cell(Number((number,), (f'plan: {model}',)))
  # Miniatures take a hundredth.
  digits = 4 if results.comparable else 6
  yield Table(_TITLE, MODELS, _COLUMNS, cells, digits)
  # A miniature's ResNets have other proportions of compute (configs/mini.py).
  if results.comparable:
    yield _claim(found)
  if found:
    yield _note(compiled, timed(results.scale))
  if missing := ', '.join(model for model in MODELS if model not in found):
    yield Missing(
      f'Not compiled yet, or without two batches that leave room: {missing}.'
      f' {INSTALL}'
    )


def _claim(found: Mapping[str, float]) -> Claim:
  """Answers from one compiler, so the answer is never more than 'seen once'."""
  missing = [name for pair in PAIRS for name in pair if name not in found]
  if missing:
    names = '; '.join(dict.fromkeys(missing))
    return Claim(_CLAIM, answers.MISSING, f'Not compiled: {names}.')
  evidence = '; '.join(
    f'{vit} {found[vit]:.4f}, {resnet} {found[resnet]:.4f},'
    f' {found[vit] / found[resnet]:.2f} times as much'
    for vit, resnet in PAIRS
  )
  less = sum(found[vit] < found[resnet] for vit, resnet in PAIRS)
  return Claim(
    _CLAIM,
    answers.SEEN if less == len(PAIRS) else answers.NOT_SEEN,
    f'GiB an image: {evidence}. The ViT takes less in {less} of {len(PAIRS)}'
    ' pairs. This is what one compiler says.',
  )


def _note(compiled: Mapping[str, Plans], scale: str) -> str:
  """Returns what the numbers mean; `scale` is a key of `FILES`."""
  made = {
    compilers.named(plan)
    for plans in compiled.values()
    for plan in plans.values()
  }
  return (
    f'Nothing was run: the compiler ({"; ".join(sorted(made))}) states the'
    f' memory of a step of {FILES[scale]} on each of the {CORES}'
    f' cores of {TOPOLOGY}. "GiB an image" is the difference in memory'
    ' between two batches, divided by the difference in images. So it does not'
    ' include parameters and optimizer. It includes what is kept for the'
    ' backward pass, work space and padding. Memory is not exactly proportional'
    ' to the number of images, so other batches may give other numbers.'
  )


ITEM = Item(
  NAME,
  _TITLE,
  _blocks,
  miniature=[
    'In miniature, the page does not ask whether ViTs take less memory, because'
    ' the ResNets there have less compute beside the ViTs than in the paper.'
  ],
  measure=lambda results, folder, data: measure(results.scale, folder),
  measured=progress,
  beyond=True,
)
