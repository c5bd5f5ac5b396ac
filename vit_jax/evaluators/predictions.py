"""Saves what a model predicts for each example of an evaluation.

The file, `WORKDIR/predictions/NAME.parquet`, has a row for each example of the
split, in the split's order; `read` lists its columns. Each evaluation replaces
it, so that it holds the newest.

pyarrow is an optional extra and slow to import, so only functions that need it
import it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from etils import epath

from vit_jax import data
from vit_jax.runtime import installed
from vit_jax.workdir import files

FOLDER = 'predictions'
TOP = 5
# Rows that are written at a time: their names need memory.
_ROWS = 65_536
# The key of the file's facts in its metadata.
_FACTS = b'vit_jax'

Rows = Mapping[str, jax.Array]


def path(workdir: epath.PathLike, evaluation: str) -> epath.Path:
  """Returns the path of an evaluation's predictions."""
  return epath.Path(workdir) / FOLDER / f'{evaluation}.parquet'


def check_pyarrow(what: str) -> None:
  """Raises ValueError if pyarrow is not installed, which `what` needs."""
  installed.require('pyarrow', extra='parquet', what=what)


def rows(
  logits: jax.Array,
  labels: jax.Array,
  *,
  batch: Mapping[str, jax.Array],
  counted: jax.Array,
  correct: jax.Array,
  loss: jax.Array,
  confidence: jax.Array,
  probabilities: Callable[[jax.Array], jax.Array],
  top: int,
) -> dict[str, jax.Array]:
  """Returns what is saved of a batch, on the devices.

  Args:
    logits: float32 [B, K].
    labels: int32 [B, M], padded with -1.
    batch: see `data/pipeline.py`.
    counted: bool [B], whether a row counts.
    correct: bool [B].
    loss: float32 [B].
    confidence: float32 [B].
    probabilities: function of logits, such as `jax.nn.softmax`.
    top: number of the most probable classes to keep.
  """
  values, classes = jax.lax.top_k(probabilities(logits), top)
  readable = batch['mask']
  return {
    'labels': labels,
    'prediction': jnp.where(readable, jnp.argmax(logits, axis=-1), -1),
    'confidence': jnp.where(readable, confidence, jnp.nan),
    'loss': jnp.where(counted, loss, jnp.nan),
    'correct': correct & counted,
    'counted': counted,
    'unreadable': batch['unreadable'],
    'unlabelled': readable & ~counted,
    'top5': jnp.where(readable[:, None], classes, -1),
    'top5_probability': jnp.where(readable[:, None], values, jnp.nan),
  }


class Collected:
  """The rows of an evaluation's batches, on the host."""

  def __init__(self):
    self._parts: list[dict[str, np.ndarray]] = []
    self._pending: Rows | None = None

  def add(self, rows: Rows) -> None:
    """Adds a batch's rows; fetches those of the batch before."""
    self._fetch()
    self._pending = rows

  def all(self) -> dict[str, np.ndarray]:
    """Returns all rows, with the padding after the last example."""
    self._fetch()
    return {
      key: np.concatenate([part[key] for part in self._parts])
      for key in self._parts[0]
    }

  def _fetch(self) -> None:
    if self._pending is not None:
      self._parts.append({k: np.asarray(v) for k, v in self._pending.items()})
      self._pending = None


def write(
  path: epath.Path,
  columns: Mapping[str, np.ndarray],
  view: data.View,
  facts: Mapping[str, Any],
) -> None:
  """Writes a file, or replaces it as a whole.

  Args:
    path: see `path`.
    columns: see `Collected.all`; rows after the last example are left out.
    view: the examples, which have names.
    facts: what `read` returns; `class_names` are the model's.
  """
  import pyarrow as pa
  from pyarrow import parquet

  names = pa.array(facts['class_names'], pa.string())
  path.parent.mkdir(parents=True, exist_ok=True)
  first = _table(columns, view, names, 0, 0)
  schema = first.schema.with_metadata({_FACTS: json.dumps(dict(facts))})
  with (
    files.atomic(path) as temporary,
    temporary.open('wb') as file,
    parquet.ParquetWriter(file, schema) as writer,
  ):
    for start in range(0, len(view), _ROWS):
      stop = min(start + _ROWS, len(view))
      table = _table(columns, view, names, start, stop)
      writer.write_table(table.replace_schema_metadata(schema.metadata))


def _table(columns, view, class_names, start: int, stop: int):
  """Returns rows `start` to `stop - 1` as a table."""
  import pyarrow as pa

  part = {key: value[start:stop] for key, value in columns.items()}
  labels = part.pop('labels')
  table = {
    'index': pa.array(np.arange(start, stop)),
    'name': pa.array([view.name(i) for i in range(start, stop)], pa.string()),
  }
  if labels.shape[1] == 1:
    table['label'] = pa.array(labels[:, 0])
    table['label_name'] = _named(labels[:, 0], class_names)
  else:
    kept = labels >= 0
    ends = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    table['labels'] = pa.ListArray.from_arrays(
      pa.array(ends, pa.int32()), pa.array(labels[kept])
    )
  for key, value in part.items():
    if value.ndim == 1:
      table[key] = pa.array(value)
    else:
      table[key] = pa.FixedSizeListArray.from_arrays(
        pa.array(value.ravel()), value.shape[1]
      )
    if key == 'prediction':
      table['prediction_name'] = _named(value, class_names)
  return pa.table(table)


def _named(classes: np.ndarray, class_names):
  """Returns the names of classes; null for -1."""
  import pyarrow as pa

  return class_names.take(pa.array(classes, mask=classes < 0))


def read(path: epath.PathLike) -> tuple[pd.DataFrame, dict[str, Any]]:
  """Reads a file of predictions.

  Returns:
    A table and facts. The table's columns are:

    - index: of the example in the split, from 0.
    - name: of the example, such as its file's path or `test/17`.
    - label, label_name: its class; -1 and no name if it has none. Data with
      several labels per image have `labels` instead, a list.
    - prediction, prediction_name: the most probable class; -1 and no name if
      the image is unreadable.
    - confidence: the prediction's probability. The probabilities of an
      unreadable image are NaN.
    - loss: NaN if the example does not count.
    - correct: whether the prediction is a label.
    - counted: whether the example counts in the metrics. The accuracy is
      `table.correct.sum() / table.counted.sum()`.
    - unreadable, unlabelled: why it does not.
    - top5, top5_probability: lists of the five most probable classes, or of
      all that may be predicted if these are fewer.

    The facts are `evaluation`, `step`, `dataset`, `split`, `class_names` and
    `loss`, the name of the training loss.

  Raises:
    ValueError: the file is missing, damaged, or not of this kind.
  """
  check_pyarrow('a file of predictions')
  from pyarrow import parquet

  path = files.absolute(path)
  files.check_regular(path)
  if not path.exists():
    raise ValueError(f'{path} does not exist.')
  try:
    with path.open('rb') as file:
      table = parquet.read_table(file)
    facts = json.loads((table.schema.metadata or {})[_FACTS])
  except (ValueError, KeyError, OSError) as error:
    raise ValueError(
      f'{path} is damaged or was not written by save_predictions'
      f' ({type(error).__name__}: {error}). Evaluate again.'
    ) from error
  return table.to_pandas(), facts
