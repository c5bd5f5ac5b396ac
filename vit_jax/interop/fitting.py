"""Fits loaded parameters to a model (section 3.2 of the paper).

For every kind of file, this module alone decides what happens to heads,
position embeddings and arrays that do not fit.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import checkpoint as checkpoint_lib
from vit_jax.interop import arrays as arrays_lib
from vit_jax.interop import inference, layouts
from vit_jax.interop.transformers_layouts import CLS, DIST
from vit_jax.interop.weight_files import Weights
from vit_jax.models import patches, position

_HEAD, _PRE_LOGITS = ('head/', 'head_dist/'), 'pre_logits/'
# Only masked patch prediction and masked autoencoders have these.
_MASK_EMBEDDING, _PATCH_HEAD = 'mask_embedding', 'patch_head/'
_DECODER = 'decoder/'
# A model has one of these two: see `Options.final_norm`.
_NORMS = ('Transformer/encoder_norm/', 'fc_norm/')
_HEADS = (*_HEAD, _PRE_LOGITS, _PATCH_HEAD, _DECODER, *_NORMS)
# Arrays whose length depends on the image size.
_TABLES = ('pos_embedding', 'x_embedding', 'y_embedding', 'relative_embedding')
_KERNEL = 'embedding/kernel'
_LISTED = 8  # Longest list of names in a report; optimizers have hundreds.


@dataclasses.dataclass(frozen=True)
class Report:
  """What happened to each array, by name, and notes on differences."""

  loaded: tuple[str, ...]
  resized: tuple[str, ...]
  dropped: tuple[str, ...]
  new: tuple[str, ...]
  notes: tuple[str, ...] = ()

  def __str__(self) -> str:
    parts = [f'{len(self.loaded)} arrays loaded']
    for name in ('resized', 'dropped', 'new'):
      names = getattr(self, name)
      if names:
        more = len(names) - _LISTED
        listed = ', '.join(names[:_LISTED])
        parts.append(
          f'{name}: {listed}' + (f' and {more} more' if more > 0 else '')
        )
    return '; '.join([*parts, *self.notes])


def fit(
  weights: Weights,
  params: Any,
  model: nn.Module,
  grid: tuple[int, int] | None,
  *,
  new_head: bool,
  option: str = 'new_head=True',
) -> tuple[Any, Report]:
  """Fits weights to a model's parameters.

  If a file does not state the grid of its position embeddings, it is a square,
  as in all released files. If their number is no square, but is that of
  `params`, they have the same grid.

  A model with `kernel_size` takes a kernel of patches of any size, as FlexiViT
  begins with a plain ViT (arXiv:2212.08013, §3.5): `patches.resize_kernel`
  brings it to `kernel_size`, once.

  Args:
    weights: as read; blocks may be stacked.
    params: the model's parameters. They give the shapes and the new head. Any
      may be a `jax.ShapeDtypeStruct`; where a new array is one, zeros that take
      no memory stand for it.
    model: the model, for the report of differences that no array shows.
    grid: (rows, columns) of the position embeddings of `params`; None if the
      model has none.
    new_head: whether `head` keeps the values of `params`. A hidden layer
      `pre_logits` is still loaded if the model has one of the same size;
      otherwise the file's is left out and the model's is new. For masked patch
      prediction, `patch_head` is treated like the head, as is the `decoder` of
      a masked autoencoder, and the mask embedding like the hidden layer. So is
      the last norm, if only one of the two models has it after pooling, as in
      the fine-tuning of MAE.
    option: how the user asks for a new head, for the error message.

  Returns:
    The fitted tree, NumPy arrays in the dtypes of `params`, and a report of
    what was done.

  Raises:
    ValueError: arrays are missing, extra, of another shape, or not finite. The
      message lists them all.
  """
  target = without_structs(params)
  loaded = layouts.unstack(weights.params)
  old_head, new = _new_head(loaded, target) if new_head else ((), ())
  kept = {k: v for k, v in loaded.items() if k not in old_head}
  kept |= {k: target[k] for k in new}
  notes = _renormalize(kept, weights.model, model)
  (resized, hint), problem = _resize_kernel(kept, target, model), ''
  try:
    resized += _resize_positions(
      kept, target, weights.grid, grid, model, weights.resize
    )
  except ValueError as error:
    problem = f' {error}'
  difference = checkpoint_lib.mismatch(_shapes(target), _shapes(kept))
  if difference or problem:
    if difference:
      difference = f' Compared with the model:\n{difference}\n'
    if not new_head and _shapes(loaded, _HEADS) != _shapes(target, _HEADS):
      hint += f' {option} starts a new head.'
    raise ValueError(
      f'The weights of {weights.origin} do not fit the model.'
      f'{difference or " "}Check the name of the model and its sizes.'
      f'{hint}{problem}'
    )
  fitted = {k: np.asarray(v, target[k].dtype) for k, v in kept.items()}
  arrays_lib.check_finite(fitted, weights.origin)
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  if any(k.startswith('Transformer/encoderblock/') for k in flat):
    fitted = layouts.stack(fitted)
  return flax.traverse_util.unflatten_dict(fitted, sep='/'), Report(
    loaded=tuple(sorted(kept.keys() - {*new, *resized})),
    resized=tuple(resized),
    dropped=tuple(sorted((*weights.dropped, *old_head))),
    new=tuple(sorted(new)),
    notes=notes + weights.remarks(model),
  )


def _new_head(
  loaded: Mapping[str, Any], target: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Returns the file's arrays to drop, and the model's that stay new."""
  parts = (*_HEAD, _PATCH_HEAD, _DECODER)
  if _shapes(loaded, _PRE_LOGITS) != _shapes(target, _PRE_LOGITS):
    parts += (_PRE_LOGITS,)
  if (_MASK_EMBEDDING in loaded) != (_MASK_EMBEDDING in target):
    parts += (_MASK_EMBEDDING,)
  places = [
    {n for n in _NORMS if _shapes(flat, n)} for flat in (loaded, target)
  ]
  if all(places) and places[0] != places[1]:
    parts += _NORMS
  return (
    tuple(k for k in loaded if k.startswith(parts)),
    tuple(k for k in target if k.startswith(parts)),
  )


def _renormalize(
  loaded: dict[str, Any], old: nn.Module | None, new: nn.Module
) -> tuple[str, ...]:
  """Changes the embedding in `loaded` for another mean and deviation.

  An image x in [0, 1] became (x - m) / s in the old model, and becomes
  z = (x - m') / s' in the new one. So the old input is z s' / s + (m' - m) / s.
  This is linear, and the embedding has no padding, so that the outputs stay the
  same.

  Returns:
    A note for the report, if anything changed.

  Raises:
    ValueError: the embedding has no bias that could take the difference, or
      reads no images.
  """
  names = 'image_mean', 'image_std'
  given = [[getattr(m, name, None) for name in names] for m in (old, new)]
  if old is None or given[0] == given[1] or _KERNEL not in loaded:
    return ()
  (mean, std), (new_mean, new_std) = (
    (np.asarray(v or 0.5, np.float64) for v in values) for values in given
  )
  # That of a hybrid reads a feature map.
  if 'embedding/bias' not in loaded or 'conv_root/kernel' in loaded:
    set_ = ' and '.join(map('model.{}={}'.format, names, given[0]))
    raise ValueError(
      f'these weights are for images normalised with {given[0]}, which their'
      f' embedding cannot take over: set {set_}, or use model.name=auto.'
    )
  kernel = np.asarray(loaded[_KERNEL], np.float64)  # [h, w, channels, D]
  shift = np.broadcast_to((new_mean - mean) / std, kernel.shape[2])
  bias = loaded['embedding/bias'] + np.einsum('hwcd,c->d', kernel, shift)
  scale = np.broadcast_to(new_std / std, kernel.shape[2])
  loaded[_KERNEL] = np.float32(kernel * scale[:, None])
  loaded['embedding/bias'] = np.float32(bias)
  return (
    f'these weights are for images normalised with {given[0]}, this model'
    f' normalises with {given[1]}; the embedding is changed so that outputs are'
    ' the same',
  )


def _resize_kernel(
  loaded: dict[str, Any], target: Mapping[str, Any], model: nn.Module
) -> tuple[list[str], str]:
  """Replaces the kernel of the patches in `loaded`, if the model resizes it.

  Returns:
    The resized names, and what to set if the kernel has another size, but the
    model does not resize it.
  """
  old, new = (
    _shapes(flat, _KERNEL).get(_KERNEL, ()) for flat in (loaded, target)
  )
  if old == new or old[2:] != new[2:] or not hasattr(model, 'kernel_size'):
    return [], ''
  if model.kernel_size is None:
    return [], f' model.kernel_size={old[:2]} resizes it to other patches.'
  kernel = np.asarray(loaded[_KERNEL], np.float32)
  loaded[_KERNEL] = np.asarray(patches.resize_kernel(kernel, new[:2]))
  return [_KERNEL], ''


def _resize_positions(
  loaded: dict[str, Any],
  target: Mapping[str, Any],
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int] | None,
  model: nn.Module,
  method: str,
) -> list[str]:
  """Replaces position embeddings in `loaded`; returns the resized names.

  Raises:
    ValueError: one cannot be resized. The message names it.
  """
  resized = []
  prefix = sum(name in loaded for name in (CLS, DIST))
  prefix *= getattr(model, 'class_position', True)
  for name in sorted(loaded.keys() & target.keys()):
    kind, array = name.rpartition('/')[2], loaded[name]
    if kind not in _TABLES or array.ndim != target[name].ndim:
      continue
    length = len(target[name])
    try:
      if kind == 'relative_embedding':
        array = position.resize_relative(array, length)
      elif kind != 'pos_embedding':
        array = position.resize_rows(array, length)
      elif old_grid != new_grid:
        # Two grids may have the same number of patches.
        array = position.resize(
          array,
          old_grid=old_grid,
          new_grid=new_grid,
          num_prefix_tokens=prefix,
          method=method,
        )
    except ValueError as error:
      if old_grid is None and array.shape == target[name].shape:
        continue  # No square, so the grid is most likely that of the model.
      raise ValueError(f'{name}: {error}') from error
    if array is not loaded[name]:
      resized.append(name)
      loaded[name] = array
  return resized


# ---- A model's parameters ----------------------------------------------------


def initial(
  model: nn.Module, image_size: tuple[int, int], channels: int, *, head: bool
) -> dict[str, Any]:
  """Returns the shapes of a model's parameters, and values for a new head.

  Args:
    model: from `models.build`.
    image_size: (height, width) in pixels.
    channels: channels of the images.
    head: whether the parameters that `fit` may leave new are arrays with
      initial values, which are the same at each call.

  Returns:
    Flat name -> `jax.ShapeDtypeStruct`, or array.
  """

  def fresh_head():
    params = _init(model, image_size, channels)
    parts = (*_HEADS, _MASK_EMBEDDING)
    # jit does not compute what is not returned.
    return {k: v for k, v in params.items() if k.startswith(parts)}

  shapes = _initial_shapes(model, image_size, channels)
  return shapes | (jax.device_get(jax.jit(fresh_head)()) if head else {})


@functools.lru_cache(maxsize=2)  # Tracing a large model takes seconds.
def _initial_shapes(model, image_size, channels) -> dict[str, Any]:
  return jax.eval_shape(lambda: _init(model, image_size, channels))


def _init(model, image_size, channels) -> dict[str, Any]:
  images = jnp.zeros((1, *image_size, channels))
  params = model.init(jax.random.key(0), images, train=False)['params']
  return flax.traverse_util.flatten_dict(params, sep='/')


def without_structs(params: Any) -> dict[str, Any]:
  """Returns flat parameters, blocks not stacked.

  Zeros that take no memory stand for each `jax.ShapeDtypeStruct`.
  """
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return layouts.unstack(
    {
      k: np.broadcast_to(np.zeros((), v.dtype), v.shape)
      if isinstance(v, jax.ShapeDtypeStruct)
      else v
      for k, v in flat.items()
    }
  )


def _shapes(
  flat: Mapping[str, Any], parts: str | tuple[str, ...] = ''
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the arrays whose names begin with one of `parts`."""
  return {k: tuple(v.shape) for k, v in flat.items() if k.startswith(parts)}


def check_params(weights: Weights) -> None:
  """Checks that parameters fit their model, before they are written.

  Args:
    weights: with the model, and all of its head or nothing of it. If the image
      size is not known, the position embeddings are not checked.

  Raises:
    ValueError: arrays are missing, extra, of the wrong shape or not finite.
  """
  params, model, size = weights.params, weights.model, weights.image_size
  height, width = getattr(model, 'patch_size', (1, 1))
  some_size = (64 * height, 64 * width)  # A few patches, also behind a ResNet.
  channels = inference.channels(params)
  has_head = any(k.startswith(_HEAD) for k in params)
  target = initial(model, size or some_size, channels, head=False)
  expected, found = (
    {
      k: shape
      for k, shape in _shapes(flat).items()
      if size or k.rpartition('/')[2] not in _TABLES
      if has_head or not k.startswith(_HEAD)
    }
    for flat in (without_structs(target), params)
  )
  if difference := checkpoint_lib.mismatch(expected, found):
    raise ValueError(
      'The parameters do not fit the model, so nothing is written.'
      f' Compared with the model:\n{difference}\n'
      "Check the model's number of classes, sizes and options, and the image"
      ' size.'
    )
  arrays_lib.check_finite(params, 'The model')
