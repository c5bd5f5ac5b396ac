"""Fitting loaded parameters to a model (section 3.2 of the paper).

The one place that knows what happens to heads, position embeddings and misfits,
whichever kind of file the parameters come from.
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
from vit_jax.interop import released
from vit_jax.models import position

_HEAD = 'head/'
_PRE_LOGITS = 'pre_logits/'
_HEADS = (_HEAD, _PRE_LOGITS)


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of each array, by name, and remarks on what differs."""

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
        parts.append(f'{name}: {", ".join(names)}')
    return '; '.join([*parts, *self.notes])


def fit(
  source: Any,
  params: Any,
  *,
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int] | None,
  new_head: bool,
  name: str,
  option: str = 'new_head=True',
  notes: tuple[str, ...] = (),
) -> tuple[Any, Report]:
  """Fits a tree of arrays to a model's parameters.

  Args:
    source: the loaded parameters by our names, as a tree or flat, with scanned
      blocks or without.
    params: the model's parameters; they give the shapes and the new head. What
      is not new may be a `jax.ShapeDtypeStruct`.
    old_grid: the grid of the source's position embeddings; None is that of
      `params` if it has as many patches, else a square.
    new_grid: the grid of `params`; None if the model has none.
    new_head: whether `head` keeps what `params` holds. A hidden layer
      `pre_logits` is loaded all the same where the model has one of that size;
      else it is left out, or new.
    name: of the source, for the error message.
    option: how the user asks for a new head, for the error message.
    notes: remarks for the report.

  Returns:
    The fitted tree, NumPy arrays in the dtypes of `params`, and a report of
    what was done.

  Raises:
    ValueError: arrays that are missing, extra, of another shape, or not
      finite; lists them all.
  """
  loaded, report = match(
    source,
    params,
    old_grid=old_grid,
    new_grid=new_grid,
    new_head=new_head,
    name=name,
    option=option,
    notes=notes,
  )
  target = _target(params)
  fitted = {k: np.asarray(v, target[k].dtype) for k, v in loaded.items()}
  arrays_lib.check_finite(fitted, name)
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  if any(k.startswith('Transformer/encoderblock/') for k in flat):
    fitted = released.stack(fitted)
  return flax.traverse_util.unflatten_dict(fitted, sep='/'), report


def match(
  source: Any,
  params: Any,
  *,
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int] | None,
  new_head: bool,
  name: str,
  option: str = 'new_head=True',
  notes: tuple[str, ...] = (),
) -> tuple[dict[str, Any], Report]:
  """The part of `fit` for which shapes are enough (see `placeholder`).

  Returns:
    Our name -> array of the right shape, blocks not stacked, in the dtype of
    its file; and the report.
  """
  target = _target(params)
  loaded = released.unstack(flax.traverse_util.flatten_dict(source, sep='/'))
  dropped, new = _new_head(loaded, target) if new_head else ((), ())
  kept = {k: v for k, v in loaded.items() if k not in dropped}
  kept |= {k: target[k] for k in new}
  resized, problem = _resize_positions(kept, target, old_grid, new_grid)
  difference = checkpoint_lib.mismatch(_shapes(target), _shapes(kept))
  if difference or problem:
    hint = '' if new_head else _head_hint(loaded, target, option)
    if difference:
      difference = f' Against the model:\n{difference}\n'
    raise ValueError(
      f'The weights of {name} do not fit the model.{difference or " "}'
      f'Check the name of the model and its sizes.{hint}{problem}'
    )
  return kept, Report(
    loaded=tuple(sorted(kept.keys() - set(new) - set(resized))),
    resized=tuple(resized),
    dropped=tuple(sorted(dropped)),
    new=tuple(sorted(new)),
    notes=notes,
  )


def initial(
  model: nn.Module, image_size: tuple[int, int], channels: int, *, head: bool
) -> dict[str, Any]:
  """The model's parameters: their shapes, and a fresh head.

  Args:
    model: from `models.build`.
    image_size: (height, width) in pixels.
    channels: of the images.
    head: whether `head/...` and `pre_logits/...` are arrays with initial
      values, always the same ones.

  Returns:
    Flat name -> `jax.ShapeDtypeStruct`, or array.
  """

  def fresh_head():
    params = _init(model, image_size, channels)
    # What isn't returned is not computed either.
    return {k: v for k, v in params.items() if k.startswith(_HEADS)}

  shapes = _initial_shapes(model, image_size, channels)
  return shapes | (jax.device_get(jax.jit(fresh_head)()) if head else {})


@functools.lru_cache(maxsize=2)  # Tracing a large model takes seconds.
def _initial_shapes(model, image_size, channels) -> dict[str, Any]:
  return jax.eval_shape(lambda: _init(model, image_size, channels))


def _init(model, image_size, channels) -> dict[str, Any]:
  images = jnp.zeros((1, *image_size, channels))
  params = model.init(jax.random.key(0), images)['params']
  return flax.traverse_util.flatten_dict(params, sep='/')


def placeholder(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
  """An array for its shape alone: zeros that take no memory."""
  return np.broadcast_to(np.zeros((), dtype), shape)


def _target(params: Any) -> dict[str, Any]:
  """A model's parameters: flat, blocks not stacked, structs as arrays."""
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  arrays = {
    k: placeholder(v.shape, v.dtype)
    if isinstance(v, jax.ShapeDtypeStruct)
    else v
    for k, v in flat.items()
  }
  return released.unstack(arrays)


def _new_head(
  loaded: Mapping[str, Any], target: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """What of the file's head is dropped, and what of the model's is new."""
  hidden = {
    name: {k: tuple(v.shape) for k, v in params.items() if _is_hidden(k)}
    for name, params in (('loaded', loaded), ('target', target))
  }
  parts = _HEAD if hidden['loaded'] == hidden['target'] else _HEADS
  return (
    tuple(k for k in loaded if k.startswith(parts)),
    tuple(k for k in target if k.startswith(parts)),
  )


def _is_hidden(name: str) -> bool:
  return name.startswith(_PRE_LOGITS)


def _head_hint(
  loaded: Mapping[str, Any], target: Mapping[str, Any], option: str
) -> str:
  """What to do about a head that doesn't fit; '' if it does."""
  key, hidden = 'head/bias', 'pre_logits/bias'
  hints = []
  if hidden in loaded and hidden not in target:
    size = loaded[hidden].shape[0]
    hints.append(
      f'These weights have a hidden layer before the head: keep it with'
      f' representation_size={size}, or leave it and the head out with'
      f' {option}.'
    )
  if hidden in target and hidden not in loaded:
    hints.append(
      'These weights have no hidden layer before the head: leave'
      f' representation_size unset, or start a new one with {option}.'
    )
  if key not in loaded:
    hints.append(f'These weights have no head: give the model one by {option}.')
  elif key in target and loaded[key].shape != target[key].shape:
    hints.append(
      f'The head is for {loaded[key].shape[0]} classes, the model has'
      f' {target[key].shape[0]}. To leave the head out, set {option}.'
    )
  return ''.join(' ' + hint for hint in hints)


def _resize_positions(
  loaded: dict[str, Any],
  target: Mapping[str, Any],
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int] | None,
) -> tuple[list[str], str]:
  """Replaces position embeddings in `loaded` by ones of the new grid.

  Returns:
    The names of what was resized, and why some could not be, if so.
  """
  resized, problems = [], []
  for name in sorted(loaded.keys() & target.keys()):
    kind, shape = name.rpartition('/')[2], tuple(target[name].shape)
    try:
      if kind == 'pos_embedding':
        array = _resize_table(
          loaded[name], shape, old_grid, new_grid, int('cls' in loaded)
        )
      elif kind in ('x_embedding', 'y_embedding'):
        array = position.resize_rows(loaded[name], shape[0])
      elif kind == 'relative_embedding':
        array = position.resize_relative(loaded[name], shape[0])
      else:
        continue
    except ValueError as error:
      problems.append(f' {name}: {error}')
      continue
    if array is not loaded[name]:
      resized.append(name)
      loaded[name] = array
  return resized, ''.join(problems)


def _resize_table(array, shape, old_grid, new_grid, num_prefix_tokens):
  if old_grid is None and tuple(array.shape) == shape:
    return array
  # Not by shape: two grids may have the same number of patches.
  if old_grid == new_grid:
    return array
  return position.resize(
    np.asarray(array),
    old_grid=old_grid,
    new_grid=new_grid,
    num_prefix_tokens=num_prefix_tokens,
  )


def _shapes(flat: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  return {k: tuple(v.shape) for k, v in flat.items()}
