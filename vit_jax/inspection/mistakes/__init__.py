"""A page on the mistakes of a run, from its saved predictions."""

import pathlib
from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax import config as config_lib
from vit_jax import pages
from vit_jax.evaluators import predictions
from vit_jax.inspection.mistakes import pictures, tally
from vit_jax.workdir import files

# With more classes, the matrix shows only those with the most mistakes.
_MATRIX = 30


def find(path: epath.PathLike) -> epath.Path:
  """Returns the file of predictions of a run, or the path of such a file.

  Raises:
    ValueError: the run has none, or those of several evaluations.
  """
  path = files.absolute(path)
  if not path.is_dir():
    return path
  found = sorted((path / predictions.FOLDER).glob('*.parquet'))
  if not found:
    evals = (config_lib.load(path) or {}).get('evals', {})
    names = [n for n, e in evals.items() if e['kind'] == 'classification']
    raise ValueError(
      f'{path} has no saved predictions. Start the command of the run again,'
      ' with --config.evals.NAME.save_predictions=True: a finished run only'
      f' evaluates again. NAME is {" or ".join(names) or "an evaluation"}; or'
      ' auto, if the config file left the choice of the split to the data.'
    )
  if len(found) > 1:
    raise ValueError(
      f'{path} has predictions of several evaluations; choose one of'
      f' {", ".join(map(str, found))}.'
    )
  return found[0]


def write(
  path: epath.PathLike,
  to: epath.PathLike,
  *,
  worst: int = 60,
  dataset: str = '',
) -> str:
  """Writes the page `TO/index.html`, and its numbers as CSV files.

  Args:
    path: a run with saved predictions, or a file of them.
    to: a folder; older files in it are replaced.
    worst: how many of the most confident mistakes are shown.
    dataset: the data spec to read images from; '' is that of the evaluation.

  Returns:
    Lines on what was written.

  Raises:
    ValueError: there are no predictions, or `dataset` cannot be read.
  """
  path, to = find(path), files.absolute(to)
  table, facts = predictions.read(path)
  numbers = tally.compute(table, facts)
  shown = numbers['wrong'][:worst]
  found, note = pictures.read(
    path.parent.parent,
    facts,
    dict(zip(shown['index'].tolist(), shown['name'], strict=True)),
    count=len(table),
    dataset=dataset,
  )
  to.mkdir(parents=True, exist_ok=True)
  page = to / 'index.html'
  page.write_text(render(numbers, worst, found, note), encoding='utf-8')
  names = numbers['classes']['name']
  for name, rows, columns in (
    ('confusions', numbers['pairs'], ('actual', 'predicted')),
    ('classes', numbers['classes'], ('confused_with',)),
  ):
    named = rows.assign(**{key: rows[key].map(names) for key in columns})
    (to / f'{name}.csv').write_text(named.to_csv(index=False))
  line = (
    f'{len(numbers["wrong"]):,} mistakes on {numbers["counts"]["counted"]:,}'
    f' images (accuracy {numbers["metrics"]["accuracy"]:.2%}): {page}'
  )
  return f'{line}\n{note}'.rstrip()


def render(
  numbers: Mapping[str, Any], worst: int, found: Mapping[int, str], note: str
) -> str:
  """Returns the page.

  Args:
    numbers: from `tally.compute`.
    worst: how many mistakes to show.
    found: index -> `data:` URI; an image may be missing.
    note: a sentence on missing images, or ''.
  """
  classes = numbers['classes']
  seen = classes[(classes['images'] > 0) | (classes['predicted'] > 0)]
  chosen, confused = tally.matrix(numbers, _MATRIX)
  return pages.render(
    pathlib.Path(__file__).with_name('page.html'),
    title=f'Mistakes on {numbers["facts"]["evaluation"]}',
    **numbers,
    chosen=chosen,
    confused=confused,
    seen=seen.sort_values(['recall', 'images'], ascending=[True, False]),
    shown=numbers['wrong'][:worst],
    pictures=found,
    note=note,
  )
