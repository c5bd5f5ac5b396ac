"""Fits loaded parameters to a model (section 3.2 of the paper).

For every kind of file, this module alone decides what happens to heads,
position embeddings and arrays that do not fit.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np

from vit_jax import checkpoint as checkpoint_lib
from vit_jax.interop import arrays as arrays_lib
from vit_jax.interop import parameter_shapes, released
from vit_jax.models import position

_HEAD, _PRE_LOGITS = parameter_shapes.HEADS
_MASK_EMBEDDING, _PATCH_HEAD = parameter_shapes.MASKED_PATCH
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
  source: Any,
  params: Any,
  *,
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int] | None,
  new_head: bool,
  name: str,
  option: str = 'new_head=True',
  dropped: tuple[str, ...] = (),
  notes: tuple[str, ...] = (),
) -> tuple[Any, Report]:
  """Fits a tree of arrays to a model's parameters.

  Args:
    source: the loaded parameters by our names, as a tree or flat, with stacked
      blocks or without.
    params: the model's parameters. They give the shapes and the new head; all
      but the new arrays may be a `jax.ShapeDtypeStruct`.
    old_grid: the grid of the source's position embeddings. None means a square,
      as in all released files. If their number is no square, but is that of
      `params`, the same grid is assumed, and the report says so.
    new_grid: the grid of `params`; None if the model has none.
    new_head: whether `head` keeps the values of `params`. A hidden layer
      `pre_logits` is still loaded if the model has one of the same size;
      otherwise the file's is left out and the model's is new. For masked patch
      prediction, `patch_head` is treated like the head, and the mask embedding
      like the hidden layer.
    name: name of the source, for the error message.
    option: how the user asks for a new head, for the error message.
    dropped: names of the file's arrays that are not parameters.
    notes: notes for the report.

  Returns:
    The fitted tree, NumPy arrays in the dtypes of `params`, and a report of
    what was done.

  Raises:
    ValueError: arrays are missing, extra, of another shape, or not finite. The
      message lists them all.
  """
  loaded, report = match(
    source,
    params,
    old_grid=old_grid,
    new_grid=new_grid,
    new_head=new_head,
    name=name,
    option=option,
    dropped=dropped,
    notes=notes,
  )
  target = parameter_shapes.without_structs(params)
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
  dropped: tuple[str, ...] = (),
  notes: tuple[str, ...] = (),
) -> tuple[dict[str, Any], Report]:
  """Does the part of `fit` that needs only shapes (see `placeholder`).

  Returns:
    Our name -> array of the model's shape in the file's dtype, blocks not
    stacked; and the report.
  """
  target = parameter_shapes.without_structs(params)
  loaded = released.unstack(flax.traverse_util.flatten_dict(source, sep='/'))
  old_head, new = _new_head(loaded, target) if new_head else ((), ())
  kept = {k: v for k, v in loaded.items() if k not in old_head}
  kept |= {k: target[k] for k in new}
  if old_grid is None:
    old_grid, assumed = _assumed_grid(kept, target, new_grid)
    notes = (*notes, *assumed)
  resized, problem = _resize_positions(kept, target, old_grid, new_grid)
  difference = checkpoint_lib.mismatch(
    parameter_shapes.of(target), parameter_shapes.of(kept)
  )
  if difference or problem:
    hint = '' if new_head else _head_hint(loaded, target, option)
    hint += _norm_hint(loaded, target)
    if difference:
      difference = f' Compared with the model:\n{difference}\n'
    raise ValueError(
      f'The weights of {name} do not fit the model.{difference or " "}'
      f'Check the name of the model and its sizes.{hint}{problem}'
    )
  return kept, Report(
    loaded=tuple(sorted(kept.keys() - set(new) - set(resized))),
    resized=tuple(resized),
    dropped=tuple(sorted((*dropped, *old_head))),
    new=tuple(sorted(new)),
    notes=notes,
  )


def _new_head(
  loaded: Mapping[str, Any], target: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Returns the file's arrays to drop, and the model's that stay new."""
  hidden = {
    name: {k: tuple(v.shape) for k, v in params.items() if _is_hidden(k)}
    for name, params in (('loaded', loaded), ('target', target))
  }
  parts = (_HEAD, _PATCH_HEAD)
  if hidden['loaded'] != hidden['target']:
    parts += (_PRE_LOGITS,)
  if (_MASK_EMBEDDING in loaded) != (_MASK_EMBEDDING in target):
    parts += (_MASK_EMBEDDING,)
  return (
    tuple(k for k in loaded if k.startswith(parts)),
    tuple(k for k in target if k.startswith(parts)),
  )


def _is_hidden(name: str) -> bool:
  return name.startswith(_PRE_LOGITS)


def _head_hint(
  loaded: Mapping[str, Any], target: Mapping[str, Any], option: str
) -> str:
  """Returns what to do about a head that does not fit, or ''."""
  key, hidden = 'head/bias', 'pre_logits/bias'
  if key not in target:
    return (
      ' The model predicts patches, not classes: start its predictions anew'
      f' with {option}.'
    )
  hints = []
  lengths = {
    k: len(v) for k, v in loaded.items() if k in (key, hidden) and v.ndim == 1
  }
  if hidden in lengths and hidden not in target:
    size = lengths[hidden]
    hints.append(
      f'These weights have a hidden layer before the head: keep the layer with'
      f' representation_size={size}, or leave it and the head out with'
      f' {option}.'
    )
  if hidden in target and hidden not in loaded:
    hints.append(
      'These weights have no hidden layer before the head: leave'
      f' representation_size unset, or start a new one with {option}.'
    )
  if key not in loaded:
    hints.append(
      f'These weights have no head: give the model a new one by {option}.'
    )
  elif key in lengths and loaded[key].shape != target[key].shape:
    hints.append(
      f'The head is for {lengths[key]} classes, the model has'
      f' {len(target[key])}. To leave the head out, set {option}.'
    )
  return ''.join(' ' + hint for hint in hints)


def _norm_hint(loaded: Mapping[str, Any], target: Mapping[str, Any]) -> str:
  """Returns what to do about LayerNorms that are in other places, or ''."""
  theirs, ours = map(released.norm_position, (loaded, target))
  if not theirs or not ours or theirs == ours:
    return ''
  return (
    f' By their LayerNorms, these weights are for norm_position={theirs!r}, but'
    f' the model has norm_position={ours!r}: set the former.'
  )


def _assumed_grid(
  loaded: Mapping[str, Any],
  target: Mapping[str, Any],
  new_grid: tuple[int, int] | None,
) -> tuple[tuple[int, int] | None, tuple[str, ...]]:
  """Returns the grid to assume where a file does not state it, and a note."""
  for name in loaded.keys() & target.keys():
    shape = tuple(loaded[name].shape)
    if name.rpartition('/')[2] != 'pos_embedding' or len(shape) != 3:
      continue
    patches = shape[1] - int('cls' in loaded)
    side = math.isqrt(max(patches, 0))
    grid = (side, side) if side**2 == patches else None
    same = shape == tuple(target[name].shape)
    if not same or new_grid in (grid, None):
      # No other grid is as likely. Without a square, resizing raises the error.
      return grid, ()
    grid = grid or new_grid
    return grid, (
      f'the file does not state the grid of its {patches} position embeddings:'
      f' {grid[0]}x{grid[1]} is assumed',
    )
  return None, ()


def _resize_positions(
  loaded: dict[str, Any],
  target: Mapping[str, Any],
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int] | None,
) -> tuple[list[str], str]:
  """Replaces position embeddings in `loaded` by resized ones.

  Returns:
    The names of resized arrays, and why others could not be resized, or ''.
  """
  resized, problems = [], []
  for name in sorted(loaded.keys() & target.keys()):
    kind, shape = name.rpartition('/')[2], tuple(target[name].shape)
    if kind not in parameter_shapes.TABLES or loaded[name].ndim != len(shape):
      continue
    try:
      if loaded[name].size > released.LARGEST_TABLE:
        raise ValueError(f'{loaded[name].shape} is too large to be resized.')
      if kind == 'pos_embedding':
        array = _resize_table(
          loaded[name], old_grid, new_grid, int('cls' in loaded)
        )
      elif kind in ('x_embedding', 'y_embedding'):
        array = position.resize_rows(loaded[name], shape[0])
      else:
        array = position.resize_relative(loaded[name], shape[0])
    except ValueError as error:
      problems.append(f' {name}: {error}')
      continue
    if array is not loaded[name]:
      resized.append(name)
      loaded[name] = array
  return resized, ''.join(problems)


def _resize_table(array, old_grid, new_grid, num_prefix_tokens):
  # Compares grids, because two grids may have the same number of patches.
  if old_grid == new_grid:
    return array
  return position.resize(
    np.asarray(array),
    old_grid=old_grid,
    new_grid=new_grid,
    num_prefix_tokens=num_prefix_tokens,
  )
