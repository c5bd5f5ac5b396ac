"""A trained model that takes images as people have them.

Axes: N images of a user, B images of a batch, K classes.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.config import platforms
from vit_jax.data import ops, pipeline
from vit_jax.inspection import attention_maps, capture, subject
from vit_jax.interop.weight_files import ImageSize, pair
from vit_jax.models import layers
from vit_jax.models.shared import normalize
from vit_jax.predict import images as images_lib
from vit_jax.predict.images import Images
from vit_jax.predict.predictions import Predictions
from vit_jax.runtime import printable

# Of the parameters and uint8 images [B, height, width, channels].
Function = Callable[[Any, jax.Array], Any]

DTYPES = ('auto', 'float32', 'bfloat16')
# The images of a batch that each device gets. On CPUs, the first results come
# sooner from small batches.
_BATCH = {'cpu': 16}
_ACCELERATOR_BATCH = 128
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
  loaded = subject.load(
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
    mesh: the devices.
  """

  def __init__(
    self,
    loaded: subject.Subject,
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
    self._has_head = loaded.has_head
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
    self.check_head()
    found = self._gather(images)
    logits = self._all(self.logits, found)
    return Predictions(found.names, logits, self.class_names, self.loss)

  def features(self, images: Any, layer: str = layers.DEFAULT) -> np.ndarray:
    """Returns the features of images, float32 [N, D].

    Args:
      images: see `predict`.
      layer: 'pre_logits', the head's input; 'encoded', after the last norm;
        'block_0', 'block_1' and so on, after that block; 'stage_1' and so on of
        a ResNet; 'features', a hybrid's ResNet; or 'logits'. Tokens are pooled
        as the model pools them.

    Raises:
      ValueError: see `predict`; or the model has no such layer.
    """
    self.check_layer(layer)
    return self._all(
      layers.compiled(self.module, self.mesh, layer), self._gather(images)
    )

  def attention(self, images: Any) -> np.ndarray:
    """Returns how much of the output comes from each patch (§D.8).

    Args:
      images: see `predict`.

    Returns:
      float32 [N, rows, columns], the attention rollout of each image.

    Raises:
      ValueError: see `predict`; or the model does not attend over all tokens.
    """
    capture.check(self.module)
    return self._all(self.logits_and_attention, self._gather(images))[1]

  @property
  def logits(self) -> Function:
    """`(params, images) -> logits [B, K]`, for `batches`."""
    return layers.compiled(self.module, self.mesh, 'logits')

  @property
  def logits_and_attention(self) -> Function:
    """`(params, images) -> logits, rollouts [B, rows, columns]`."""
    return _compiled_rollout(self.module, self.mesh)

  def check_head(self) -> None:
    """Raises ValueError if the checkpoint has no head that classifies."""
    if not self._has_head:
      raise ValueError(
        f'{self.origin} has no head, so it predicts no classes. Its features'
        ' can be used; fine-tuning gives it a head.'
      )

  def check_layer(self, layer: str) -> None:
    """Raises ValueError if there is no such layer, or no head for 'logits'."""
    layers.check(self.module, layer)
    if layer == 'logits':
      self.check_head()

  def batches(
    self, function: Function, images: Images
  ) -> Iterator[tuple[range, np.ndarray, Any]]:
    """Applies a function to batches of images, ahead of the caller.

    Args:
      function: `(params, uint8 images [B, height, width, channels]) -> arrays
        of B rows`, jitted.
      images: the images.

    Yields:
      The indices of some images; bool [B], which of them could be read; and
      the function's results as NumPy arrays of B rows.
    """
    size = self._rows(function, len(images))
    done, pending = 0, None
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
        yield _fetched(*pending)
      indices = range(done, min(done + size, len(images)))
      pending = indices, ~batch['unreadable'][: len(indices)], results
      done += size
    yield _fetched(*pending)

  def _rows(self, function: Function, count: int) -> int:
    """Returns the batch size for `count` images, a multiple of the devices."""
    size = self._batch_size
    if function == self.logits_and_attention:  # It holds all their weights.
      tokens = math.prod(self.module.token_grid(self.image_size)) + 1
      image_bytes = 4 * self.module.depth * self.module.heads * tokens**2
      size = min(size, self.mesh.size * max(1, _WEIGHTS // image_bytes))
    # Powers of two, so that few batch sizes are compiled.
    size = min(size, 2 ** math.ceil(math.log2(count)))
    return -(-size // self.mesh.size) * self.mesh.size

  def _gather(self, images: Any) -> Images:
    return images_lib.gather(images, upright=self.preprocess.upright)

  def _all(self, function: Function, images: Images) -> Any:
    """Returns the results of all images; all must be readable."""
    parts = []
    for indices, readable, results in self.batches(function, images):
      if not readable.all():
        index = indices[int(np.argmin(readable))]
        reason = images.problem(index, self.preprocess)
        raise ValueError(f'{images.names[index]} cannot be read: {reason}.')
      parts.append(results)
    return jax.tree.map(lambda *rows: np.concatenate(rows), *parts)


def _fetched(
  indices: range, readable: np.ndarray, results: Any
) -> tuple[range, np.ndarray, Any]:
  return (
    indices,
    readable,
    jax.tree.map(lambda x: np.asarray(x)[: len(indices)], results),
  )


@functools.lru_cache(16)
def _compiled_rollout(model: nn.Module, mesh: jax.sharding.Mesh):
  def function(params, images):
    with sharding.use_mesh(mesh):
      weights, logits = capture.forward(model, params, normalize(images))
    grid = model.token_grid(images.shape[1:3])
    maps = attention_maps.rollout_rows(weights, capture.prefix_tokens(model))
    return logits, maps.reshape(-1, *grid)

  return jax.jit(function, out_shardings=NamedSharding(mesh, P()))
