"""Splits each array of the training state by rules of its name and shape."""

import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
from clu import parameter_overview
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.sharding import mesh as mesh_lib

# More devices than this sum in float32, unless the config says otherwise. A
# ring all-reduce rounds at every link, so the error grows with the root of the
# number of devices, and gradients that all devices agree on stall: LOG.md.
_MOST_BFLOAT16 = 128

# What `tensor` splits: the end of a parameter's name, the dimension and what it
# counts. Dimensions count from the last, as scanned blocks have one more in
# front. A block splits columns first and rows second, so that it sums its parts
# only twice: after the heads' outputs and after the MLP. Parts `a` and `b` are
# those of low-rank additions (`models/lora.py`): a device adds its own part of
# their product.
_ATTENTION = r'MultiHeadDotProductAttention_\d+'
TENSOR_RULES = (
  (rf'{_ATTENTION}/(query|key|value)/(kernel|bias|kernel/b)', -2, 'heads'),
  (rf'{_ATTENTION}/out/kernel(/a)?', -3, 'heads'),
  (rf'{_ATTENTION}/(relative_embedding|rotary_frequencies)', -2, 'heads'),
  (r'MlpBlock_\d+/(Dense_0|gate)/(kernel|bias|kernel/b)', -1, 'mlp_dim'),
  (r'MlpBlock_\d+/Dense_1/kernel(/a)?', -2, 'mlp_dim'),
)
# Parameters with a leading dimension of blocks (`scan`). That dimension is not
# split, as each step of the loop takes one block.
_STACKED = re.compile(r'(^|/)encoderblock/')


def default_reduce_dtype(mesh: jax.sharding.Mesh) -> str:
  """Returns the default dtype for the sums of matmul kernels' gradients.

  This is bfloat16 on up to 128 TPU devices: it halves the traffic, and the
  compiler's own sums use it, too. Otherwise it is float32.
  """
  on_tpu = mesh.devices.flat[0].platform == 'tpu'
  return 'bfloat16' if on_tpu and mesh.size <= _MOST_BFLOAT16 else 'float32'


@dataclasses.dataclass(frozen=True)
class Layout:
  """The mesh, and how the training state is split over its axes.

  Attributes:
    mesh: see `mesh.make_mesh`.
    shard: what `fsdp` splits besides the batch. 'none': every device holds the
      whole state. 'optimizer': the optimizer's state and the average are split
      (ZeRO-1). 'all': the parameters, too (fully sharded, ZeRO-3). Nothing is
      split where `fsdp` is 1, its default.
    gather: for shard='all'. 'step': all parameters are gathered once a step,
      then held whole until its end. 'micro_batch': each parameter is gathered
      where a micro-batch needs it, in both passes.
    partition: 'manual': each device works through its own rows, then gradients
      are summed. 'compiler': the compiler splits the whole step. 'auto':
      'manual' where it is possible. See `gradients`.
    reduce_dtype: the dtype in which devices sum gradients, 'float32' or
      'bfloat16'; 'auto' becomes `default_reduce_dtype`. Matters only for the
      manual partition: the compiler's own sums have the dtype of the matmuls.
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
    if self.partition == 'manual' and self._shared_work:
      raise ValueError(
        f"mesh.partition='manual' does not go with {self._shared_work}, where"
        " devices share the work: use mesh.partition='compiler'."
      )

  def __str__(self) -> str:
    sizes = ' x '.join(f'{n} {size}' for n, size in self.mesh.shape.items())
    return (
      f'{sizes}, shard={self.shard}, gather={self.gather},'
      f' partition={self.partition}'
    )

  def is_manual(self, global_masks: bool) -> bool:
    """Whether each device works on its own rows alone.

    Args:
      global_masks: whether dropout masks must not depend on the mesh.

    Raises:
      ValueError: partition='manual', but the masks do not allow it.
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
    """The setting that makes devices share the work on a row; '' if none."""
    if self.mesh.shape['tensor'] > 1:
      return f'mesh.tensor={self.mesh.shape["tensor"]}'
    if self.shard == 'all' and self.gather == 'micro_batch':
      return "mesh.gather='micro_batch'"
    return ''

  @property
  def whole(self) -> NamedSharding:
    """The sharding that puts a whole copy on each device."""
    return NamedSharding(self.mesh, P())

  def params(self, tree: Any) -> Any:
    """Returns the shardings of the parameters between steps."""
    return self._shardings(tree, split=self.shard == 'all')

  def gathered_params(self, tree: Any) -> Any:
    """Returns the shardings of the parameters after gathering over `fsdp`."""
    return self._shardings(tree, split=False)

  def updates(self, tree: Any) -> Any:
    """Returns shardings for gradients, the optimizer's state and the average.

    Each device updates the part whose state it holds.
    """
    return self._shardings(tree, split=self.shard != 'none')

  def state(self, state: Any) -> Any:
    """Returns the shardings of a `TrainState`; its leaves need only shapes.

    In the optimizer's state, only arrays of a parameter's shape are split.
    """
    shapes = {
      _name(path): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(state.params)
    }

    def of_optimizer(path, x):
      # Adafactor's factors of moments are small, and have other dimensions.
      if shapes.get(name := _name(path)) != x.shape:
        return self.whole
      split = self.shard != 'none'
      return NamedSharding(self.mesh, self.spec(name, x.shape, split=split))

    return state.replace(
      step=self.whole,
      params=self.params(state.params),
      opt_state=jax.tree_util.tree_map_with_path(of_optimizer, state.opt_state),
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
    """Returns the mesh axes that an array's dimensions are split over.

    Args:
      name: the array's parameter, such as `Transformer/.../kernel`.
      shape: the array's shape.
      split: whether to split over `fsdp`, too. This splits the first dimension
        that `fsdp` divides, so that gathered parts are contiguous in memory.
    """
    axes = [None] * len(shape)
    tensor, fsdp = self.mesh.shape['tensor'], self.mesh.shape['fsdp']
    rule = _tensor_rule(name)
    if rule and tensor > 1 and shape[rule[0]] % tensor == 0:
      axes[rule[0]] = 'tensor'
    if split and fsdp > 1:
      for i in range(1 if _STACKED.search(name) else 0, len(shape)):
        if axes[i] is None and shape[i] > 0 and shape[i] % fsdp == 0:
          axes[i] = 'fsdp'
          break
    return P(*axes)

  def _shardings(self, tree: Any, *, split: bool) -> Any:
    return jax.tree_util.tree_map_with_path(
      lambda path, x: NamedSharding(
        self.mesh, self.spec(_name(path), x.shape, split=split)
      ),
      tree,
    )

  def describe(self, state: Any) -> str:
    """Returns a table of how the parameters are split, and a device's bytes.

    Args:
      state: a `step.TrainState`; its leaves need only shapes.
    """
    held = jax.tree.map(
      lambda x, sharding: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=sharding
      ),
      state,
      self.state(state),
    )
    table = parameter_overview.get_parameter_overview(
      held.params, include_stats='sharding' if self.mesh.size > 1 else False
    )
    size = sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(held)
    )
    return f'{table}\nThe state takes {size:,} bytes of a device.'


def build(**section: Any) -> Layout:
  """Builds the layout of the config's `mesh` section.

  Args:
    **section: the arguments of `mesh.make_mesh` and of `Layout`, by name.

  Raises:
    ValueError: the sizes don't fit the devices.
  """
  names = (*mesh_lib.AXES, 'devices')
  sizes = {name: section.pop(name) for name in names if name in section}
  return Layout(mesh_lib.make_mesh(**sizes), **section)


def put_tree(tree: Any, shardings: Any) -> Any:
  """Puts host arrays on the devices; each device gets only its own part.

  Args:
    tree: NumPy arrays, the same on every process.
    shardings: the arrays' shardings, a tree of the same structure.
  """
  return jax.tree.map(
    lambda x, sharding: jax.make_array_from_callback(
      x.shape, sharding, lambda index: x[index]
    ),
    jax.tree.map(np.asarray, tree),
    shardings,
  )


def _name(path) -> str:
  """Returns the name of a leaf's parameter: the dict keys that end its path.

  A moment in an optimizer's state therefore has its parameter's name.
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
