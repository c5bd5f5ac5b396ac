"""Draws the inputs, predictions and images of masked patch prediction.

Axes: `B` images, `L` patches of an image, `C` channels.
"""

import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, interop
from vit_jax.config import inputs
from vit_jax.losses import corruption, masked_patch, targets
from vit_jax.models.shared import normalize
from vit_jax.models.vit import MASK
from vit_jax.pages import drawing

_GREY = 128


def pictures(
  images: np.ndarray,
  source: np.ndarray,
  corrupted: np.ndarray,
  predicted: np.ndarray,
  patch_size: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns pictures of the model's input and of its predictions.

  Args:
    images: uint8 [B, H, W, C].
    source: int32 [B, L], see `corruption.Corruption.draw`.
    corrupted: bool [B, L].
    predicted: uint8 [B, L, height, width, C], predictions of all patches.
    patch_size: (height, width) in pixels.

  Returns:
    Two arrays uint8 [B, rows * height, columns * width, C]: the input, and the
    image with the predictions in its corrupted patches.
  """
  pixels = np.asarray(targets.patches(images, patch_size))
  index = np.maximum(source, 0)[:, :, None, None, None]
  seen = np.take_along_axis(pixels, index, axis=1)
  spread = (..., None, None, None)
  seen = np.where((source == MASK)[spread], np.uint8(_GREY), seen)
  prediction = np.where(corrupted[spread], predicted, pixels)
  rows = images.shape[1] // patch_size[0]

  def joined(patches):  # [B, L, h, w, C] -> [B, rows * h, columns * w, C]
    batch, _, high, _, channels = patches.shape
    x = patches.reshape(batch, rows, -1, *patches.shape[2:])
    return x.swapaxes(2, 3).reshape(batch, rows * high, -1, channels)

  return joined(seen), joined(prediction)


def draw(seen: np.ndarray, prediction: np.ndarray, images: np.ndarray):
  """Returns a `matplotlib.figure.Figure` with a row for each image.

  Args:
    seen: uint8 [B, H, W, C], see `pictures`.
    prediction: uint8 [B, H, W, C].
    images: uint8 [B, H, W, C].

  Raises:
    ValueError: matplotlib is not installed.
  """
  drawing.check_matplotlib()
  figure = drawing.new_figure((6, 2 * len(images)))
  axes = figure.subplots(len(images), 3, squeeze=False)
  titled = {'input': seen, 'prediction': prediction, 'image': images}
  for column, (title, shown) in zip(axes.T, titled.items(), strict=True):
    column[0].set_title(title)
    for ax, image in zip(column, shown, strict=True):
      ax.imshow(image, cmap='gray', vmin=0, vmax=255)
      ax.axis('off')
  return figure


def predict_pictures(
  workdir: epath.PathLike, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
  """Returns pictures of a run's first images, corrupted as in evaluations.

  Args:
    workdir: work directory of a run with the loss `masked_patch` or `mae`.
    count: number of images, at least 1. They come from the run's first
      evaluation of masked patches, or else from the training split.

  Returns:
    What `pictures` returns, the images, and the patch size.

  Raises:
    ValueError: there is no such run, or its weights or images cannot be read.
  """
  saved = config_lib.load(workdir)
  loss = (saved or {}).get('loss', {})
  if loss.get('name') not in config_lib.PATCH_LOSSES:
    raise ValueError(
      f'{workdir} holds no run with loss.name in {config_lib.PATCH_LOSSES}.'
      ' Expected the --workdir of a run of configs/masked_patch.py.'
    )
  config = ml_collections.ConfigDict(saved)
  images = _first_images(config, count)
  weights = interop.read(workdir)
  task = masked_patch.build(config, weights.model)
  params = flax.traverse_util.unflatten_dict(dict(weights.params), sep='/')
  keys = corruption.image_keys(
    corruption.corruption_key(0), jnp.arange(len(images))
  )
  corrupted, source = task.corruption.draw(keys)
  predictions, _ = jax.jit(task.model.apply)(
    {'params': params}, normalize(images), source=source
  )
  size = task.target.patch_size
  predicted = task.target.pixels(predictions, targets.patches(images, size))
  seen, prediction = pictures(
    images, *map(np.asarray, (source, corrupted, predicted)), size
  )
  return seen, prediction, images, size


def _first_images(config: ml_collections.ConfigDict, count: int) -> np.ndarray:
  """Returns up to `count` images of a run, uint8 [B, H, W, C]."""
  evals = config.evals.values()
  found = [each for each in evals if each.kind in config_lib.PATCH_LOSSES]
  training = config_lib.evaluation(config.data.train_split, preprocess='resize')
  section = (found or [training])[0]
  dataset = section.dataset or config.data.dataset
  source = inputs.open_source(
    config, dataset, label_key=section.label_key, own_classes=True
  )
  view = data.View(source, section.split)
  prepare = inputs.parse_preprocess(config, section.preprocess, dataset)
  rng = np.random.default_rng(0)  # Unused: nothing is augmented.
  return np.stack(
    [prepare(view[i].image, rng) for i in range(min(count, len(view)))]
  )
