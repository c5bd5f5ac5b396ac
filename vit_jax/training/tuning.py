"""Trains less of a model: frozen parameters, LoRA, rates that fall by layer.

A frozen parameter has no gradient, no update, no weight decay, no optimizer
state and no average: it stays bitwise as it was. The state keeps one copy of
it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from vit_jax.models import lora

_STACKED = re.compile(r'((?:^|/)encoderblock)/')
# The order of the layers, from the images to the head. A residual block is a
# layer. Names that none of these matches belong to the last layer.
_LAYERS = (
  re.compile(r'(conv_root|gn_root)/'),
  re.compile(r'block(\d+)/unit(\d+)/'),
  re.compile(
    r'(embedding|cls|dist|registers|mask_embedding|Transformer/posembed_input)'
    '(/|$)'
  ),
  re.compile(r'Transformer/encoderblock_(\d+)/'),
)
HEADS = ('head/', 'head_dist/')
_EXAMPLE = "such as 'head' or 'Transformer/encoderblock_[0-5]'"


@dataclasses.dataclass(frozen=True)
class Tuning:
  """Which parameters of a run train.

  Attributes:
    trained: their names, such as `head/kernel`; None for all.
    adapted: the kernels that have low-rank additions.
  """

  trained: frozenset[str] | None = None
  adapted: frozenset[str] = frozenset()

  def split(self, params: Any) -> tuple[Any, Any]:
    """Returns the parameters that train, and the others."""
    if self.trained is None:
      return params, {}
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    trained = {name: x for name, x in flat.items() if name in self.trained}
    frozen = {name: x for name, x in flat.items() if name not in self.trained}
    unflatten = flax.traverse_util.unflatten_dict
    return unflatten(trained, sep='/'), unflatten(frozen, sep='/')

  def plain(self, trained: Any, frozen: Any) -> Any:
    """Returns what the model takes, low-rank additions merged into kernels."""
    return lora.merged(overlaid(frozen, trained))


def overlaid(tree: Any, other: Any) -> Any:
  """Returns the parameters of both trees; `other` wins where both have one."""
  if not tree or not other:
    return tree or other
  flat, flat_other = (
    flax.traverse_util.flatten_dict(dict(t), sep='/') for t in (tree, other)
  )
  return flax.traverse_util.unflatten_dict(flat | flat_other, sep='/')


def build(section: Mapping[str, Any], params: Any) -> Tuning:
  """Finds the parameters that train.

  Args:
    section: `config.tuning`. Its patterns are regular expressions of names; a
      name that goes on after a slash matches, too. A stacked block (`scan`) has
      the names of its single blocks. A distillation token's head trains if the
      head does.
    params: the parameters or their shapes. If they have low-rank additions,
      these train, beside what `train` names or else the head.

  Raises:
    ValueError: both patterns are set; one is no regular expression, matches
      nothing, or leaves nothing to train; or it separates stacked blocks.
  """
  freeze, train = section['freeze'], section['train']
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  own = {n: x for n, x in flat.items() if not n.startswith(f'{lora.FOLDER}/')}
  additions = {name for name in flat if lora.is_addition(name)}
  if freeze and (train or additions):
    other = f'tuning.train={train!r}' if train else 'lora.rank'
    raise ValueError(
      f'tuning.freeze={freeze!r} does not go with {other}, which already says'
      ' what trains: leave one of the two out.'
    )
  if train:
    trained = _matches('tuning.train', train, own)
    if 'head/kernel' in trained:
      trained |= {name for name in own if name.startswith(HEADS[1])}
  elif freeze:
    trained = own.keys() - _matches('tuning.freeze', freeze, own)
    if not trained:
      raise ValueError(
        f'tuning.freeze={freeze!r} freezes all parameters, so that nothing'
        ' would train: leave some out, at least the head.'
      )
  elif additions:
    trained = {name for name in own if name.startswith(HEADS)}
  else:
    return Tuning()
  return Tuning(frozenset(trained | additions), lora.adapted(params))


def _matches(key: str, pattern: str, params: Mapping[str, Any]) -> set[str]:
  """Returns the names of parameters that a pattern matches."""
  try:
    compiled = re.compile(rf'(?:{pattern})(?:/.*)?')
  except re.error as error:
    raise ValueError(
      f'{key}={pattern!r} is no regular expression of names ({error}); write'
      f' one {_EXAMPLE}.'
    ) from error
  found = set()
  for name, x in params.items():
    names = _unstacked(name, x.shape)
    hits = [n for n in names if compiled.fullmatch(n)]
    if len(hits) == len(names) or compiled.fullmatch(name):
      found.add(name)
    elif hits:
      raise ValueError(
        f'{key}={pattern!r} names only {len(hits)} of the {len(names)} blocks'
        f' that model.scan=True stacks in one array ({name}), which trains as a'
        ' whole: set model.scan=False, or name all blocks.'
      )
  if not found:
    names = sorted({'/'.join(name.split('/')[:2]) for name in params})
    raise ValueError(
      f'{key}={pattern!r} matches no parameter; write a regular expression'
      f' {_EXAMPLE}. The names begin with: {", ".join(names)}.'
    )
  return found


def _unstacked(name: str, shape: tuple[int, ...]) -> list[str]:
  """Returns the names that a parameter has if blocks are not stacked."""
  if not _STACKED.search(name):
    return [name]
  return [_STACKED.sub(rf'\1_{i}/', name) for i in range(shape[0])]


# Layer-wise decay ------------------------------------------------------------


def layer_factors(
  decay: float, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, float | jax.Array]:
  """Returns what each parameter's learning rate is multiplied by.

  decay ** (last layer - layer), as in BEiT (arXiv:2106.08254). In a ViT, layer
  0 holds the embeddings of patches and positions, and the tokens before the
  patches, layer i + 1 is block i, and the last layer holds everything behind
  the blocks. In a ResNet, layer 0 is the root, and each unit is a layer; in a
  hybrid, the ViT's layers follow.

  Args:
    decay: in (0, 1].
    shapes: the shapes of all parameters, frozen ones included.

  Returns:
    A number for each parameter. For the stacked blocks of `scan`, an array that
    broadcasts: [depth, 1, ...].
  """
  places = {
    name: [_place(n) for n in _unstacked(name, shape)]
    for name, shape in shapes.items()
  }
  layers = sorted(set().union(*places.values()) | {(len(_LAYERS),)})
  exponents = {
    place: len(layers) - 1 - layer for layer, place in enumerate(layers)
  }
  factors = {}
  for name, found in places.items():
    values = [decay ** exponents[place] for place in found]
    if _STACKED.search(name):
      values = jnp.asarray(values, jnp.float32)
      factors[name] = values.reshape(-1, *(1 for _ in shapes[name][1:]))
    else:
      (factors[name],) = values
  return factors


def _place(name: str) -> tuple[int, ...]:
  """Returns a parameter's place in the order of layers."""
  name = name.removeprefix(f'{lora.FOLDER}/')
  for kind, pattern in enumerate(_LAYERS):
    if found := pattern.match(name):
      return kind, *(int(g) for g in found.groups() if (g or '').isdigit())
  return (len(_LAYERS),)


def scale_by_layer(decay: float, params: Any) -> optax.GradientTransformation:
  """Returns a transformation that multiplies updates by `layer_factors`.

  Args:
    decay: see `layer_factors`.
    params: all parameters or their shapes.
  """
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  factors = layer_factors(decay, {name: x.shape for name, x in flat.items()})

  def update(updates, _):
    scaled = {
      name: x * factors[name]
      for name, x in flax.traverse_util.flatten_dict(updates, sep='/').items()
    }
    return flax.traverse_util.unflatten_dict(scaled, sep='/')

  return optax.stateless(update)
