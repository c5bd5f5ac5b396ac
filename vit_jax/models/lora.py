"""Low-rank additions to kernels: LoRA (arXiv:2106.09685).

  W' = W + alpha / rank * A B

`A` maps a kernel's inputs to `rank` numbers, `B` maps these to its outputs. The
additions are a folder `lora` beside a model's own parameters: `lora/NAME/a` and
`lora/NAME/b` for the kernel NAME, and `lora/scale`, which is alpha / rank. So a
tree of parameters says by itself what its plain weights are, see `merged`, and
the models know nothing of it.

Axes: `R` rank. A kernel is [inputs ..., outputs ...], with blocks in front if
they are stacked (`scan`).
"""

import functools
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp

FOLDER = 'lora'
SCALE = f'{FOLDER}/scale'
_ATTENTION = r'MultiHeadDotProductAttention_\d+'
# Target -> the end of the kernels' names, and their dimensions of inputs.
TARGETS = {
  'query': (rf'{_ATTENTION}/query/kernel', 1),
  'key': (rf'{_ATTENTION}/key/kernel', 1),
  'value': (rf'{_ATTENTION}/value/kernel', 1),
  'out': (rf'{_ATTENTION}/out/kernel', 2),
  'mlp': (r'MlpBlock_\d+/(Dense_[01]|gate)/kernel', 1),
}
_STACKED = re.compile(r'(^|/)encoderblock/')
# On a TPU, the default precision of a product would round A and B to bfloat16.
_matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def is_addition(name: str) -> bool:
  """Whether a parameter is a trainable part of an addition."""
  return name.startswith(f'{FOLDER}/') and name != SCALE


def init(
  key: jax.Array,
  params: Mapping[str, Any],
  *,
  rank: int,
  alpha: float,
  targets: Sequence[str],
) -> dict[str, Any]:
  """Returns the additions to a model's parameters, which change nothing yet.

  `A` is uniform within 1 / sqrt(inputs), as in the paper's public code; `B` is
  zero.

  Args:
    key: the random key; each kernel gets its own from its name.
    params: the model's parameters.
    rank: R, at least 1.
    alpha: the additions are multiplied by alpha / rank.
    targets: keys of `TARGETS`.

  Returns:
    The folder `lora`, float32.

  Raises:
    ValueError: a target is unknown, or no kernel of the model is one.
  """
  if unknown := sorted(set(targets) - set(TARGETS)):
    raise ValueError(
      f'lora.targets={tuple(targets)} has the unknown {unknown}; choose from'
      f' {list(TARGETS)}.'
    )
  flat = flax.traverse_util.flatten_dict(dict(params), sep='/')
  made = {SCALE: jnp.full((), alpha / rank, jnp.float32)}
  for name, kernel in flat.items():
    ends = (TARGETS[target] for target in targets)
    found = [n for end, n in ends if re.search(rf'(^|/){end}$', name)]
    if not found:
      continue
    inputs = found[0]
    blocks = kernel.shape[:1] if _STACKED.search(name) else ()
    shape = kernel.shape[len(blocks) :]
    bound = 1 / math.sqrt(math.prod(shape[:inputs]))
    made[f'{FOLDER}/{name}/a'] = jax.random.uniform(
      jax.random.fold_in(key, zlib.crc32(name.encode())),
      (*blocks, *shape[:inputs], rank),
      jnp.float32,
      minval=-bound,
      maxval=bound,
    )
    made[f'{FOLDER}/{name}/b'] = jnp.zeros((*blocks, rank, *shape[inputs:]))
  if len(made) == 1:
    raise ValueError(
      f'lora.targets={tuple(targets)} fits no kernel of this model: LoRA is for'
      ' the attention and the MLPs of Transformers. Set lora.rank=0.'
    )
  return flax.traverse_util.unflatten_dict(made, sep='/')[FOLDER]


def merged(
  params: Mapping[str, Any],
  matmul: Callable[[Any, Any], Any] = _matmul,
) -> Mapping[str, Any]:
  """Returns a model's plain parameters, with the additions in its kernels.

  Args:
    params: the parameters; returned as they are if they have no folder `lora`.
    matmul: multiplies [..., M, R] and [..., R, N]; `np.matmul` for NumPy
      arrays.
  """
  if FOLDER not in params:
    return params
  flat = flax.traverse_util.flatten_dict(dict(params), sep='/')
  plain = {n: x for n, x in flat.items() if not n.startswith(f'{FOLDER}/')}
  # In one order in all processes: a set's differs.
  for name in sorted(adapted(params)):
    a, b = (flat[f'{FOLDER}/{name}/{part}'] for part in 'ab')
    kernel = plain[name]
    # A and B have R in common, and the stacked blocks, if any.
    blocks = kernel.shape[: a.ndim + b.ndim - 2 - kernel.ndim]
    product = matmul(
      a.reshape(*blocks, -1, a.shape[-1]),
      b.reshape(*blocks, a.shape[-1], -1),
    )
    plain[name] = kernel + flat[SCALE] * product.reshape(kernel.shape)
  return flax.traverse_util.unflatten_dict(plain, sep='/')


def adapted(params: Mapping[str, Any]) -> frozenset[str]:
  """Returns the names of the kernels that have additions."""
  flat = flax.traverse_util.flatten_dict(dict(params), sep='/')
  return frozenset(
    name.removeprefix(f'{FOLDER}/').rpartition('/')[0]
    for name in flat
    if is_addition(name)
  )
