"""Measures how often a run answers otherwise once its images are shifted.

The answers are those of the run's own few-shot evaluation. Its classifiers are
fitted to images as they are. Then images of its test split are shown at their
place and shifted. Whether an answer stays the same is the consistency of
arXiv:1904.11486; it needs no true label.

Axes: `S` draws of the shots, `N` images.
"""

import functools
from collections.abc import Callable

import ml_collections
import numpy as np
from etils import epath

from vit_jax import checkpoint, data, sharding
from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.configs import midi, mini
from vit_jax.evaluators import evaluator, fewshot, frozen
from vit_jax.paper.inside import weights

EVALUATION = 'few_shot'
SHOTS = 5
# Images that are shifted; all if there are fewer.
_IMAGES = 1_000
# A batch of ResNets at 224 px needs some 100 MB an image on a CPU.
_BATCH = 32
# Image size of a miniature -> what stands for a patch of 32 px at 224 px. Other
# images have seven such patches, as at 224 px.
_PATCHES = {
  scale.image_size: scale.patches['32'] for scale in (mini.MINI, midi.MIDI)
}
# The stand-in of ImageNet asks where a scene is, so a shift may rightly change
# the answer. These ask something else about the same scenes.
_ASKED = {mini.TASKS['imagenet'][0]: mini.TASKS['pets'][0]}


def shifts(pixels: int) -> tuple[tuple[int, int], ...]:
  """Returns the shifts (down, right) by some pixels, one in each direction."""
  return (pixels, 0), (-pixels, 0), (0, pixels), (0, -pixels)


def patch_of(image_size: int) -> int:
  """Returns what stands for a patch of 32 px, in pixels.

  Raises:
    ValueError: an eighth of it is less than a pixel.
  """
  patch = _PATCHES.get(image_size, image_size // 7)
  if patch < 8:
    raise ValueError(
      f'images of {image_size} px have patches of {patch} px, and an eighth of'
      ' a patch is less than a pixel: use images of at least 56 px.'
    )
  return patch


@functools.cache
def measured(workdir: str) -> dict[str, float]:
  """Returns kind -> number, for all kinds that begin with `shift`.

  Raises:
    ValueError: the run has no weights, its data cannot be read, or its images
      are too small.
  """
  config = ml_collections.ConfigDict(config_lib.load(workdir))
  patch = patch_of(config.image_size[0])
  answers = _answers(workdir, config)
  before, labels = answers((0, 0))
  accuracy = 100 * float(np.mean(before == labels))
  found = {'shift_accuracy': accuracy}
  for part, pixels in (('eighth', patch // 8), ('quarter', patch // 4)):
    # [4, S, N]: a shift in each direction.
    after = np.stack([answers(shift)[0] for shift in shifts(pixels)])
    found[f'shift_{part}'] = 100 * float(np.mean(before != after))
  lost = accuracy - 100 * float(np.mean(after == labels))
  return found | {'shift_loss': lost}


def _answers(
  workdir: str, config: ml_collections.ConfigDict
) -> Callable[[tuple[int, int]], tuple[np.ndarray, np.ndarray]]:
  """Returns shift (down, right) -> answers [S, N] and labels [N]."""
  # The newest weights of a run that overfits are not those of Figure 4.
  best = epath.Path(workdir) / checkpoint.BEST
  run = weights.load(str(best if best.exists() else workdir))
  section = config.evals[EVALUATION]
  source = inputs.open_source(
    config,
    _ASKED.get(section.dataset, section.dataset) or config.data.dataset,
    label_key=section.label_key,
    own_classes=True,
  )
  train = data.View(source, section.train_split)
  test = data.View(source, section.split)
  mesh = sharding.make_mesh()

  classes = source.info.num_classes

  def read(view: data.Picked, shift: tuple[int, int]) -> frozen.Features:
    text = '|'.join(filter(None, [section.preprocess, f'shift{shift}']))
    preprocess = inputs.parse_preprocess(config, text, section.dataset)
    given = evaluator.Context(
      *(config, section, run.model, mesh, source, source, preprocess),
      _BATCH * mesh.size,
    )
    # Each reading is too short for worker processes.
    batches = given.batches(num_classes=classes, max_labels=1, workers=0)
    return frozen.read(view, batches, run.model, run.params, mesh)

  known = data.read_labels(train)
  fitted = []
  for seed in section.seeds:
    drawn = fewshot.draw(known, classes, seed)
    shots = data.Picked(train, sorted(i for few in drawn for i in few[:SHOTS]))
    features = read(shots, (0, 0))
    fitted += fewshot.fit(
      *(features.features, features.labels, classes), section.l2[:1]
    )
  shown = data.Picked(test, weights.spaced(len(test), _IMAGES))

  def answers(shift: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    found = read(shown, shift)
    return np.stack([c.predict(found.features) for c in fitted]), found.labels

  return answers
