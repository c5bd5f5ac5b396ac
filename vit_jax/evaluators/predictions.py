"""Saves what a model predicts for each example of an evaluation.

The file, `WORKDIR/predictions/NAME.parquet`, has a row for each example of the
split, in the split's order; `read` lists its columns. Each evaluation replaces
it, so that it holds the newest.

pyarrow is an optional extra and slow to import, so only functions that need it
import it.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from etils import epath

from vit_jax import data
from vit_jax.runtime import installed
from vit_jax.workdir import files

FOLDER = 'predictions'
TOP = 5
# The key of the file's facts in its metadata.
_FACTS = b'vit_jax'


def path(workdir: epath.PathLike, evaluation: str) -> epath.Path:
  """Returns the path of an evaluation's predictions."""
  return epath.Path(workdir) / FOLDER / f'{evaluation}.parquet'


def check_pyarrow(what: str) -> None:
  """Raises ValueError if pyarrow is not installed, which `what` needs."""
  installed.require('pyarrow', extra='parquet', what=what)


def write(
  path: epath.Path,
  columns: Mapping[str, np.ndarray],
  view: data.View,
  facts: Mapping[str, Any],
) -> None:
  """Writes a file, or replaces it as a whole.

  Args:
    path: see `path`.
    columns: see `classification.compiled_sums`; rows after the last example are
      left out.
    view: the examples, which have names.
    facts: what `read` returns; `class_names` are the model's.
  """
  import pyarrow as pa
  from pyarrow import parquet

  count = len(view)
  columns = {key: value[:count] for key, value in columns.items()}
  # The last name is that of class -1.
  names, labels = np.array([*facts['class_names'], None]), columns.pop('labels')
  table = {
    'index': np.arange(count),
    'name': [view.name(i) for i in range(count)],
  }
  if labels.shape[1] == 1:
    table['label'] = labels[:, 0]
    table['label_name'] = names[labels[:, 0]]
  else:
    table['labels'] = [each[each >= 0] for each in labels]
  for key, value in columns.items():
    table[key] = value if value.ndim == 1 else list(value)
    if key == 'prediction':
      table['prediction_name'] = names[value]
  table = pa.table(table)
  table = table.replace_schema_metadata({_FACTS: json.dumps(dict(facts))})
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.atomic(path) as temporary, temporary.open('wb') as file:
    parquet.write_table(table, file)


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
