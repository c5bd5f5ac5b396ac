"""A trained model that takes images as people have them.

Axes: N images of a user, B images of a batch, K classes.
"""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import loaded as loaded_lib
from vit_jax import sharding
from vit_jax.config import platforms
from vit_jax.data import ops, pipeline
from vit_jax.data.source import Record
from vit_jax.images import gather
from vit_jax.inspection import attention_maps, capture
from vit_jax.interop.weight_files import ImageSize, pair
from vit_jax.models import layers
from vit_jax.models.shared import normalize
from vit_jax.predict.predictions import Predictions
from vit_jax.runtime import printable

DTYPES = ('auto', 'float32', 'bfloat16')
# Of `Predictor.batches`: logits [B, K], and rollouts [B, rows, columns].
LOGITS_AND_ATTENTION = 'logits and attention'
# The images of a batch that each device gets. On CPUs, the first results come
# sooner from small batches.
_BATCH = {'cpu': 16}
_ACCELERATOR_BATCH = 128
_SECONDS = 10.0  # Between two lines that tell the progress.
# The most bytes of attention weights that a device holds at a time.
_WEIGHTS = 2**29


def load(
  checkpoint: epath.PathLike,
  *,
  image_size: ImageSize | None = None,
  preprocess: str | None = None,
  batch_size: int | None = None,
  dtype: str = 'auto',
  max_pixels: int = ops.MAX_PIXELS,
) -> 'Predictor':
  """Loads a trained model, to use it on images.

  Args:
    checkpoint: a run's work directory or one of its checkpoints; a `.npz` file;
      a Hugging Face folder; or the name of a released file, such as
      `augreg+imagenet2012/B_16`.
    image_size: side or (height, width) in pixels that the model sees. By
      default the checkpoint's. Position embeddings are resized to it.
    preprocess: operations on each image, see `data/ops`. By default those of
      the run's own evaluation, which the checkpoint keeps, or else `resize`.
    batch_size: the most images of a batch, over all devices. By default it
      depends on the devices.
    dtype: the compute dtype, one of DTYPES. 'auto' is float32 on CPUs and
      bfloat16 on TPUs and GPUs, as in training.
    max_pixels: the most pixels of an image, see `ops.parse`.

  Returns:
    The model, on all devices of this process.

  Raises:
    ValueError: there are no such weights, they are damaged, or an argument does
      not suit them.
  """
  if dtype not in DTYPES:
    raise ValueError(f'dtype={dtype!r} is unknown; choose from {list(DTYPES)}.')
  if batch_size is not None and batch_size < 1:
    raise ValueError(f'batch_size={batch_size} must be at least 1.')
  loaded = loaded_lib.load(
    str(checkpoint),
    image_size=None if image_size is None else pair(image_size),
    preprocess=preprocess,
    max_pixels=max_pixels,
  )
  return Predictor(loaded, batch_size=batch_size, dtype=dtype)


class Predictor:
  """A model with its weights, class names and preprocessing; see `load`.

  Attributes:
    module: the Flax module; `module.apply({'params': params}, images)` takes
      float images [B, height, width, channels] of `image_size` in [-1, 1].
    params: its parameters, on the devices.
    class_names: one for each logit; 'class 0' and so on if they are unknown.
    image_size: (height, width) in pixels that the model sees.
    preprocess: maps an encoded image to uint8 [height, width, channels].
    origin: where the weights come from.
    name: the model's name, such as 'ViT-B/16'.
    notes: remarks on the weights, such as resized position embeddings.
    loss: the loss that the head was trained with; '' if unknown.
    has_head: whether the checkpoint has a head, so that logits mean something.
    mesh: the devices.
  """

  def __init__(
    self,
    loaded: loaded_lib.Loaded,
    *,
    batch_size: int | None = None,
    dtype: str = 'auto',
  ):
    """Puts a model on the devices; see `load`."""
    options = platforms.defaults(loaded.model, dtype=dtype)
    options['dtype'] = jnp.dtype(options['dtype'])
    self.module: nn.Module = loaded.model.clone(**options)
    self.mesh = sharding.make_mesh()
    self.params = jax.device_put(loaded.params, NamedSharding(self.mesh, P()))
    # Names may come from a stranger's file, and are printed.
    self.class_names = tuple(map(printable.name, loaded.class_names)) or tuple(
      f'class {i}' for i in range(loaded.model.num_classes)
    )
    self.image_size = loaded.image_size
    self.preprocess = loaded.preprocess
    self.origin = loaded.origin
    self.name = loaded.name
    self.notes = loaded.notes
    self.loss = loaded.loss
    self.has_head = loaded.has_head
    self._batch_size = batch_size or self.mesh.size * _BATCH.get(
      jax.default_backend(), _ACCELERATOR_BATCH
    )

  def __repr__(self) -> str:
    height, width = self.image_size
    return (
      f'{self.name} of {self.origin}: {len(self.class_names)} classes,'
      f' {height}x{width} px, preprocessed with {self.preprocess.text!r}'
    )

  def predict(self, images: Any) -> Predictions:
    """Classifies images.

    Args:
      images: a path of a file or folder, a PIL image, a uint8 array [h, w, c]
        or [N, h, w, c], or a list of these.

    Raises:
      ValueError: something is not an image or cannot be read, or the
        checkpoint has no head.
    """
    names, logits = self._all('logits', images)
    return Predictions(names, logits, self.class_names, self.loss)

  def features(self, images: Any, layer: str = layers.DEFAULT) -> np.ndarray:
    """Returns the features of images, float32 [N, D].

    Args:
      images: see `predict`.
      layer: 'pre_logits', the head's input; 'encoded', after the last norm;
        'block_0', 'block_1' and so on, after that block; 'stage_1' and so on of
        a ResNet; 'features', a hybrid's ResNet; or 'logits'. Tokens are pooled
        as the model pools them. 'block_5/cls' is the class token, and
        'block_5/patches' are all patches, float32 [N, rows, columns, D];
        'block_5/norm/cls' and so on are after the model's last norm.

    Raises:
      ValueError: see `predict`; or the model has no such layer.
    """
    return self._all(layer, images)[1]

  def attention(self, images: Any) -> np.ndarray:
    """Returns how much of the output comes from each patch (§D.8).

    Args:
      images: see `predict`.

    Returns:
      float32 [N, rows, columns], the attention rollout of each image.

    Raises:
      ValueError: see `predict`; or the model does not attend over all tokens.
    """
    return self._all(LOGITS_AND_ATTENTION, images)[1][1]

  def check(self, output: str) -> None:
    """Raises ValueError if the model does not give an output of `batches`."""
    if output == LOGITS_AND_ATTENTION:
      capture.check(self.module)
    else:
      layers.check(self.module, output)
    if output == 'logits' and not self.has_head:
      raise ValueError(
        f'{self.origin} has no head, so it predicts no classes. Its features'
        ' can be used; fine-tuning gives it a head.'
      )

  def batches(
    self, output: str, images: Sequence[Record]
  ) -> Iterator[tuple[np.ndarray, Any, list[int]]]:
    """Computes an output of batches of images, ahead of the caller.

    Every few seconds, a line of the log tells how many are done.

    Args:
      output: a layer, see `features`; or LOGITS_AND_ATTENTION.
      images: the images.

    Yields:
      The indices of B images, their results as NumPy arrays of B rows, and the
      indices of those images of the batch that cannot be read.
    """
    if output == LOGITS_AND_ATTENTION:
      function = _compiled_rollout(self.module, self.mesh)
    else:
      function = layers.compiled(self.module, self.mesh, output)
    size = self._rows(output, len(images))
    begun = told = time.monotonic()

    def fetched(start, batch, results):
      nonlocal told
      rows = np.flatnonzero(batch['mask'])
      missing = start + np.flatnonzero(batch['unreadable'])
      done, now = start + len(rows) + len(missing), time.monotonic()
      if now - told > _SECONDS:
        told, rate = now, done / (now - begun)
        logging.info(
          '%s of %s images, %s images/s, %s left',
          *(f'{done:,}', f'{len(images):,}', f'{rate:,.0f}'),
          printable.duration((len(images) - done) / rate),
        )
      results = jax.tree.map(lambda x: np.asarray(x)[rows], results)
      return start + rows, results, missing.tolist()

    start, pending = 0, None
    for batch in pipeline.eval_batches(
      images,
      self.preprocess,
      batch_size=size,
      num_classes=1,
      unreadable='skip-and-count',
      tell=False,  # The caller tells, with better reasons.
    ):
      on_devices = sharding.put_batch({'image': batch['image']}, self.mesh)
      results = function(self.params, on_devices['image'])
      # Fetched one batch late, so that the devices work while this one is read.
      if pending is not None:
        yield fetched(*pending)
      pending = start, batch, results
      start += size
    yield fetched(*pending)

  def _rows(self, output: str, count: int) -> int:
    """Returns the batch size for `count` images, a multiple of the devices."""
    size = self._batch_size
    if output == LOGITS_AND_ATTENTION:  # It holds all their weights.
      tokens = math.prod(self.module.token_grid(self.image_size)) + 1
      image_bytes = 4 * self.module.depth * self.module.heads * tokens**2
      size = min(size, self.mesh.size * max(1, _WEIGHTS // image_bytes))
    # Powers of two, so that few batch sizes are compiled.
    size = min(size, 2 ** math.ceil(math.log2(count)))
    return -(-size // self.mesh.size) * self.mesh.size

  def _all(self, output: str, images: Any) -> tuple[tuple[str, ...], Any]:
    """Returns names and results of all images; all must be readable."""
    self.check(output)
    found = gather(images, upright=self.preprocess.upright)
    parts = []
    for _, results, missing in self.batches(output, found):
      for index in missing:
        reason = found.problem(index, self.preprocess)
        raise ValueError(f'{found.names[index]} cannot be read: {reason}.')
      parts.append(results)
    together = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    return found.names, together


@functools.lru_cache(16)
def _compiled_rollout(model: nn.Module, mesh: jax.sharding.Mesh):
  def function(params, images):
    with sharding.use_mesh(mesh):
      weights, logits = capture.forward(model, params, normalize(images))
    grid = model.token_grid(images.shape[1:3])
    how = capture.prefix_tokens(model), model.pooling == 'token'
    maps = attention_maps.rollout(weights, *how)
    return logits, maps.reshape(-1, *grid)

  return jax.jit(function, out_shardings=NamedSharding(mesh, P()))
