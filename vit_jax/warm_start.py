"""Starting a run from another run's weights (section 3.2 of the paper).

The pre-trained head is left out, position embeddings are interpolated to the
new grid of patches, and everything else must fit.
"""

import dataclasses
from typing import Any

import flax.traverse_util
import numpy as np
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import models, paths
from vit_jax.models import position

_HEAD = 'head/'
_PRE_LOGITS = 'pre_logits/'
_POSITION = 'Transformer/posembed_input/pos_embedding'


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of each array, by name."""

  loaded: tuple[str, ...]
  resized: tuple[str, ...]
  dropped: tuple[str, ...]
  new: tuple[str, ...]

  def __str__(self) -> str:
    parts = [f'{len(self.loaded)} arrays loaded']
    for name in ('resized', 'dropped', 'new'):
      names = getattr(self, name)
      if names:
        parts.append(f'{name}: {", ".join(names)}')
    return '; '.join(parts)


def resolve_path(path: str, workdir: epath.PathLike) -> epath.Path:
  """`stage:NAME` is the run NAME beside this one; others stay as they are."""
  kind, _, name = path.partition(':')
  if kind == 'stage':
    return epath.Path(workdir).parent / name
  return paths.absolute(path)


def pin(path: str, workdir: epath.PathLike) -> str:
  """Names the one checkpoint that a run starts from, for its `config.json`.

  Without it, a run that died before its first save could start again from
  newer weights of the run that it was given.

  Args:
    path: `init.checkpoint` as given: '', a run or checkpoint, `stage:NAME`.
    workdir: of the run that starts. What it was given before stays.

  Returns:
    '' or the path down to `checkpoints/STEP`.

  Raises:
    ValueError: there is no checkpoint.
  """
  if not path:
    return ''
  if path.startswith('stage:'):
    found = checkpoint_lib.find(resolve_path(path, workdir))
    return f'stage:{found.relative_to(epath.Path(workdir).parent)}'
  saved = (config_lib.load(workdir) or {}).get('init', {}).get('checkpoint', '')
  given = str(paths.absolute(path))
  if saved == given or saved.startswith(given + '/'):
    return saved
  return str(checkpoint_lib.find(path))


def load(
  path: epath.PathLike,
  params: Any,
  *,
  new_grid: tuple[int, int],
  new_head: bool,
) -> tuple[Any, str]:
  """Reads a run's parameters and fits them to a new model.

  Args:
    path: a run's directory or one of its checkpoints.
    params: the new model's parameters, freshly initialised.
    new_grid: rows and columns of patches of the new model's images.
    new_head: whether to keep the fresh head.

  Returns:
    Parameters shaped like `params`, and a line that says what was done.

  Raises:
    ValueError: no checkpoint there, or one that doesn't fit; lists missing,
      extra and misshapen arrays.
  """
  source, found = checkpoint_lib.read_params(path)
  fitted, report = fit(
    source,
    params,
    old_grid=_grid_of_run(found.parent.parent),
    new_grid=new_grid,
    new_head=new_head,
    name=str(found),
  )
  return fitted, f'Weights from {found}: {report}.'


def fit(
  source: Any,
  params: Any,
  *,
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int],
  new_head: bool,
  name: str,
) -> tuple[Any, Report]:
  """Fits a tree of arrays to a model's parameters.

  Args:
    source: the loaded parameters, with scanned blocks or without.
    params: the model's parameters; they give the shapes and the new head.
    old_grid: the grid of the source's position embeddings; None is that of
      `params` if it has as many patches, else a square.
    new_grid: the grid of `params`.
    new_head: whether `params` keeps its own head.
    name: of the source, for the error message.

  Returns:
    The fitted tree, and a report of what was done.

  Raises:
    ValueError: arrays that are missing, extra or of another shape.
  """
  scanned = _is_stacked(params)
  target = _flatten(_unstacked(params))
  loaded = _flatten(_unstacked(source))

  dropped, new = [], []
  if new_head:
    dropped = [k for k in loaded if k.startswith((_HEAD, _PRE_LOGITS))]
    new = [k for k in target if k.startswith((_HEAD, _PRE_LOGITS))]
    loaded = {k: v for k, v in loaded.items() if k not in dropped}
    loaded |= {k: target[k] for k in new}
  resized, problem = _resize_position(loaded, target, old_grid, new_grid)

  difference = checkpoint_lib.mismatch(_shapes(target), _shapes(loaded))
  if difference or problem:
    hint = (
      ''
      if new_head
      else ' To leave the head out, set --config.init.new_head=True.'
    )
    raise ValueError(
      f'The weights of {name} do not fit the model. Against what the config'
      f' builds:\n{difference}\nCheck model.name and its sizes.{hint}{problem}'
    )
  fitted = flax.traverse_util.unflatten_dict(
    {k: np.asarray(v, target[k].dtype) for k, v in loaded.items()}, sep='/'
  )
  report = Report(
    loaded=tuple(sorted(loaded.keys() - set(new) - set(resized))),
    resized=tuple(resized),
    dropped=tuple(sorted(dropped)),
    new=tuple(sorted(new)),
  )
  return (models.stack_blocks(fitted) if scanned else fitted), report


def _resize_position(
  loaded: dict[str, Any],
  target: dict[str, Any],
  old_grid: tuple[int, int] | None,
  new_grid: tuple[int, int],
) -> tuple[list[str], str]:
  """Replaces the position embedding in `loaded` by one of the new grid.

  Returns:
    The names of what was resized, and why it could not be, if so.
  """
  if _POSITION not in loaded or _POSITION not in target:
    return [], ''
  old = np.asarray(loaded[_POSITION])
  if old_grid is None and old.shape == target[_POSITION].shape:
    old_grid = new_grid
  # Not by shape: two grids may have the same number of patches.
  if old_grid == new_grid:
    return [], ''
  try:
    loaded[_POSITION] = position.resize(
      old,
      old_grid=old_grid,
      new_grid=new_grid,
      num_prefix_tokens=int('cls' in loaded),
    )
  except ValueError as error:
    return [], f' {_POSITION}: {error}'
  return [_POSITION], ''


def _is_stacked(params: Any) -> bool:
  """Whether these are the parameters of a model with `scan=True`."""
  return 'encoderblock' in params.get('Transformer', {})


def _unstacked(params: Any) -> Any:
  return models.unstack_blocks(params) if _is_stacked(params) else params


def _flatten(tree: Any) -> dict[str, Any]:
  return flax.traverse_util.flatten_dict(tree, sep='/')


def _shapes(flat: dict[str, Any]) -> dict[str, tuple[int, ...]]:
  return {k: tuple(v.shape) for k, v in flat.items()}


def _grid_of_run(workdir: epath.Path) -> tuple[int, int] | None:
  """The patch grid a run was trained at, from its config; None if unknown."""
  saved = config_lib.load(workdir)
  if saved is None or 'image_size' not in saved:
    return None  # Not a config of ours.
  model = models.build(saved['model']['name'], num_classes=saved['num_classes'])
  return position.token_grid(tuple(saved['image_size']), model.patch_size)
