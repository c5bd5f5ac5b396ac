"""The memory of a training step by model, as the TPU compiler states it.

The compiler states the memory of a step at two batch sizes. Their difference,
by the images between them, is what an image takes: the parameters and the
optimizer's state are in both and cancel. The instructions, whose size depends
on the batch, are not counted. No TPU is needed, and nothing runs.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from vit_jax.paper import planning
from vit_jax.paper.items.speeds import timed
from vit_jax.plan import devices
from vit_jax.sweep.spec import Run

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
Plans = Mapping[int, planning.Plan]


def per_image(plans: Plans) -> float:
  """Returns the GiB that one more image on a core takes."""
  many, few = plans
  # A core without the instructions.
  full, less = (p['hbm_gib'] - p['hbm']['program'] for p in plans.values())
  return (full - less) / (many - few)


def _run(model: str, images: int, scale: str) -> Run:
  """Returns the pre-training whose step is compiled, with images on a core."""
  config = f'{FILES[scale]}:{model},jft300m'
  return Run(NAME, config, {'data.batch_size': CORES * images})


def _with_room(
  plans: Sequence[planning.Plan], model: str, scale: str
) -> dict[int, planning.Plan]:
  """Returns the first two batches with room; fewer if they aren't compiled."""
  found = {
    images: planning.find(plans, _run(model, images, scale), TOPOLOGY)
    for images in BATCHES[scale]
  }
  fitting = [
    (images, plan)
    for images, plan in found.items()
    if plan and plan['hbm_gib'] <= _ROOM * plan['hbm_usable_gib']
  ]
  return dict(fitting[:2])


def measure(
  scale: str, folder: pathlib.Path, planner: planning.Planner | None = None
) -> None:
  """Compiles what is missing, a batch of a model after another.

  Args:
    scale: one of `runs.SCALES`.
    folder: WORKDIR/measured; each compilation is kept in its `training_memory`.
    planner: None: `vit_jax.plan`, in a separate process for each compilation.

  Raises:
    ValueError: there is no TPU compiler, or it failed; the latter is raised
      after all other models are compiled.
  """
  scale, where = timed(scale), folder / NAME
  if planner is None:
    planner = _plan
    done, total = progress(scale, folder)
    if done < total and not devices.have_compiler():
      raise ValueError(INSTALL)
  failed = []
  for model in MODELS:
    try:
      for images in BATCHES[scale]:
        if len(_with_room(planning.read(where), model, scale)) < 2:
          print(f'{model}, {images} images on a core', file=sys.stderr)
          planning.compile_missing(
            [_run(model, images, scale)],
            where,
            TOPOLOGY,
            lambda line: None,
            planner,
          )
    except ValueError as error:
      failed.append(f'{NAME}: {error}')
  if failed:
    raise ValueError('\n'.join(failed))


def _plan(words: Sequence[str]) -> planning.Plan:
  # A batch that does not fit is followed by a smaller one, not by a search.
  return planning.plan([*words, '--nosearch'])


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
