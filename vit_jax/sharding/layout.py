"""Where each array of the training state lives: rules by name and shape."""

import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SHARDS = {
  'none': 'every device holds the whole state',
  'optimizer': "the optimizer's state and the average are split (ZeRO-1)",
  'all': 'so are the parameters (fully sharded, ZeRO-3)',
}
GATHERS = {
  'step': 'all parameters once a step, which holds them whole for the step',
  'micro_batch': 'each where a micro-batch needs it, forward and backward',
}
PARTITIONS = {
  'auto': "'manual' where it is possible",
  'manual': 'each device works through its own rows, then gradients are summed',
  'compiler': 'the compiler splits the whole step',
}
# Of the devices' sums of gradients.
REDUCE_DTYPES = ('float32', 'bfloat16')
# More devices than these sum in float32, unless the config says otherwise. A
# ring rounds at every link, so that the error grows with the root of their
# number, and parts that all devices agree on stall: LOG.md.
_MOST_BFLOAT16 = 128

# What is split over `tensor`: the end of a parameter's name and the dimension,
# counted from the last one, as scanned blocks have a dimension more in front.
# Columns first, rows second, so that a block sums its parts just twice: after
# the heads' outputs and after the MLP.
_ATTENTION = r'MultiHeadDotProductAttention_\d+'
TENSOR_RULES = (
  (rf'{_ATTENTION}/(query|key|value)/(kernel|bias)', -2, 'heads'),
  (rf'{_ATTENTION}/out/kernel', -3, 'heads'),
  (rf'{_ATTENTION}/relative_embedding', -2, 'heads'),
  (r'MlpBlock_\d+/Dense_0/(kernel|bias)', -1, 'mlp_dim'),
  (r'MlpBlock_\d+/Dense_1/kernel', -2, 'mlp_dim'),
)
# Parameters with a leading dimension of blocks (`scan`): each step of the loop
# takes one block, so that dimension is not split.
_STACKED = re.compile(r'(^|/)encoderblock/')


def default_reduce_dtype(mesh: jax.sharding.Mesh) -> str:
  """What the gradients of products are summed in, if the config leaves it open.

  On TPU bfloat16, half the traffic and what the compiler's own sums are in,
  up to 128 devices; else float32.
  """
  on_tpu = mesh.devices.flat[0].platform == 'tpu'
  return 'bfloat16' if on_tpu and mesh.size <= _MOST_BFLOAT16 else 'float32'


@dataclasses.dataclass(frozen=True)
class Layout:
  """The mesh, and what is split over its axes.

  Attributes:
    mesh: see `mesh.make_mesh`.
    shard: one of SHARDS.
    gather: one of GATHERS; matters for shard='all'.
    partition: one of PARTITIONS; see `gradients`.
    reduce_dtype: one of REDUCE_DTYPES, which 'auto' becomes, see
      `default_reduce_dtype`; matters where gradients are summed by hand. The
      compiler's own sums are of the products' dtype.
  """

  mesh: jax.sharding.Mesh
  shard: str = 'all'
  gather: str = 'step'
  partition: str = 'auto'
  reduce_dtype: str = 'auto'

  def __post_init__(self):
    if self.reduce_dtype == 'auto':
      chosen = default_reduce_dtype(self.mesh)
      object.__setattr__(self, 'reduce_dtype', chosen)
    for name, value, choices in (
      ('shard', self.shard, SHARDS),
      ('gather', self.gather, GATHERS),
      ('partition', self.partition, PARTITIONS),
      ('reduce_dtype', self.reduce_dtype, REDUCE_DTYPES),
    ):
      if value not in choices:
        raise ValueError(
          f'mesh.{name}={value!r} is unknown; choose one of {list(choices)}.'
        )
    if self.partition == 'manual' and self._shared_work:
      raise ValueError(
        f"mesh.partition='manual' does not go with {self._shared_work}, which"
        " the devices share: use mesh.partition='compiler'."
      )

  def __str__(self) -> str:
    sizes = ' x '.join(f'{n} {size}' for n, size in self.mesh.shape.items())
    return (
      f'{sizes}, shard={self.shard}, gather={self.gather},'
      f' partition={self.partition}'
    )

  def is_manual(self, global_masks: bool) -> bool:
    """Whether each device works through its rows alone.

    Args:
      global_masks: whether dropout masks must not depend on the mesh.

    Raises:
      ValueError: that was asked for, but the masks do not allow it.
    """
    if self.partition == 'manual' and global_masks:
      raise ValueError(
        "mesh.partition='manual' gives each device dropout masks of its own,"
        " but those of dropout_rng='threefry' are the same on any mesh: use"
        " dropout_rng='rbg' or mesh.partition='compiler'."
      )
    if self.partition == 'auto':
      return not global_masks and not self._shared_work
    return self.partition == 'manual'

  @property
  def _shared_work(self) -> str:
    """What makes devices share the work on a row, if anything."""
    if self.mesh.shape['tensor'] > 1:
      return f'mesh.tensor={self.mesh.shape["tensor"]}'
    if self.shard == 'all' and self.gather == 'micro_batch':
      return "mesh.gather='micro_batch'"
    return ''

  @property
  def whole(self) -> NamedSharding:
    """A whole copy on each device."""
    return NamedSharding(self.mesh, P())

  def params(self, tree: Any) -> Any:
    """Shardings of the parameters between steps."""
    return self._shardings(tree, split=self.shard == 'all')

  def gathered_params(self, tree: Any) -> Any:
    """Shardings of the parameters whole over `fsdp`."""
    return self._shardings(tree, split=False)

  def updates(self, tree: Any) -> Any:
    """Shardings of what has the parameters' shapes beside them.

    The gradients, the optimizer's state and the average: a device updates the
    part of which it holds the state.
    """
    return self._shardings(tree, split=self.shard != 'none')

  def state(self, state: Any) -> Any:
    """Shardings of a `step.TrainState`; its leaves need only shapes."""
    return state.replace(
      step=self.whole,
      params=self.params(state.params),
      opt_state=self.updates(state.opt_state),
      ema_params=self.updates(state.ema_params),
    )

  def check(self, params: Any) -> None:
    """Raises ValueError if `tensor` does not fit a model's parameters."""
    tensor = self.mesh.shape['tensor']
    if tensor == 1:
      return
    found = False
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
      rule = _tensor_rule(_name(path))
      if rule and leaf.shape[rule[0]] > 1:
        found = True
        size = leaf.shape[rule[0]]
        if size % tensor:
          raise ValueError(
            f'mesh.tensor={tensor} must divide the {size} {rule[1]} of'
            f' {_name(path)}, which it splits.'
          )
    if not found:
      raise ValueError(
        f'mesh.tensor={tensor}, but this model has neither attention heads nor'
        ' MLPs to split over it: set it to 1 and use mesh.fsdp instead.'
      )

  def spec(self, name: str, shape: tuple[int, ...], *, split: bool) -> P:
    """The axes that an array's dimensions are split over.

    Args:
      name: of the parameter that it belongs to, `Transformer/.../kernel`.
      shape: its own shape.
      split: whether over `fsdp` too: then along the first dimension that can be
        divided, so that the parts lie one behind the other when gathered.
    """
    axes = [None] * len(shape)
    tensor, fsdp = self.mesh.shape['tensor'], self.mesh.shape['fsdp']
    rule = _tensor_rule(name)
    if rule and tensor > 1 and shape[rule[0]] % tensor == 0:
      axes[rule[0]] = 'tensor'
    if split and fsdp > 1:
      first = 1 if _STACKED.search(name) else 0
      free = [
        i
        for i in range(first, len(shape))
        if axes[i] is None and shape[i] % fsdp == 0 and shape[i] > 0
      ]
      if free:
        axes[free[0]] = 'fsdp'
    return P(*axes)

  def _shardings(self, tree: Any, *, split: bool) -> Any:
    return jax.tree_util.tree_map_with_path(
      lambda path, x: NamedSharding(
        self.mesh, self.spec(_name(path), x.shape, split=split)
      ),
      tree,
    )

  def describe(self, state: Any) -> str:
    """A table: the groups of parameters, how they are split, their bytes.

    Args:
      state: a `step.TrainState`; its leaves need only shapes.

    Returns:
      One line for each group of parameters of equal shape whose names differ
      in numbers only: how many, shape, split at rest and in the update, and
      bytes on each device of the parameters, and of the optimizer's state and
      average together.
    """
    groups: dict[tuple, list[int]] = {}
    # No dict, whose keys would be taken for a part of the names.
    beside = (state.opt_state, state.ema_params)
    for part, tree in (('params', state.params), ('beside', beside)):
      split = self.shard == 'all' or (
        part == 'beside' and self.shard == 'optimizer'
      )
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = _name(path)
        held = _bytes_held(
          leaf,
          NamedSharding(self.mesh, self.spec(name, leaf.shape, split=split)),
        )
        key = (re.sub(r'\d+', '*', name), leaf.shape)
        row = groups.setdefault(key, [name, 0, 0, 0])
        row[1] += part == 'params'
        row[2 if part == 'params' else 3] += held
    rows = [
      ('parameters', '', 'shape', 'at rest', 'update', 'bytes', '+ state')
    ]
    for (pattern, shape), (name, count, held, beside_held) in groups.items():
      if not count:
        continue  # The optimizer's own counters.
      specs = [
        _spec_text(self.spec(name, shape, split=split))
        for split in (self.shard == 'all', self.shard != 'none')
      ]
      rows.append(
        (pattern, f'x{count}', str(shape), *specs)
        + (f'{held:,}', f'{beside_held:,}')
      )
    total = [sum(row[i] for row in groups.values()) for i in (2, 3)]
    rows.append(('on each device', '', '', '', '', *(f'{t:,}' for t in total)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join(
      '  '.join(
        cell.rjust(width) if i >= 5 else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
      ).rstrip()
      for row in rows
    )


def put_tree(tree: Any, shardings: Any) -> Any:
  """Puts host arrays on the devices, each device only the part it holds.

  Args:
    tree: NumPy arrays, the same ones on every process.
    shardings: where they go, of the same structure.
  """
  return jax.tree.map(
    lambda x, sharding: jax.make_array_from_callback(
      x.shape, sharding, lambda index: x[index]
    ),
    jax.tree.map(np.asarray, tree),
    shardings,
  )


def _name(path) -> str:
  """The parameter that a leaf belongs to: the path's last run of dict keys.

  So a moment in an optimizer's state has its parameter's name.
  """
  keys = []
  for entry in reversed(path):
    if not isinstance(entry, jax.tree_util.DictKey):
      break
    keys.append(str(entry.key))
  return '/'.join(reversed(keys))


def _tensor_rule(name: str) -> tuple[int, str] | None:
  for pattern, dimension, what in TENSOR_RULES:
    if re.search(rf'(^|/){pattern}$', name):
      return dimension, what
  return None


def _bytes_held(leaf, sharding: NamedSharding) -> int:
  shard = sharding.shard_shape(leaf.shape)
  return math.prod(shard) * np.dtype(leaf.dtype).itemsize


def _spec_text(spec: P) -> str:
  return '(' + ', '.join(axis or '-' for axis in spec) + ')'
