"""A page on the mistakes of a run, from its saved predictions."""

from collections.abc import Sequence

from etils import epath

from vit_jax import config as config_lib
from vit_jax.evaluators import predictions
from vit_jax.inspection.mistakes import page, tally, thumbnails
from vit_jax.workdir import files


def find(path: epath.PathLike) -> epath.Path:
  """Returns the file of predictions of a run, or the path of such a file.

  Raises:
    ValueError: the run has none, or those of several evaluations.
  """
  path = files.absolute(path)
  if not path.is_dir():
    return path
  folder = (
    path if path.name == predictions.FOLDER else path / predictions.FOLDER
  )
  found = sorted(folder.glob('*.parquet')) if folder.is_dir() else []
  if not found:
    raise ValueError(
      f'{path} has no saved predictions. Start the command of the run again,'
      ' with --config.evals.NAME.save_predictions=True: a finished run only'
      f' evaluates again. {_names(path)}'
    )
  if len(found) > 1:
    raise ValueError(
      f'{path} has predictions of several evaluations; choose one of'
      f' {_listed(found)}.'
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
  try:
    numbers = tally.compute(table, facts)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  shown = numbers.wrong[:worst]
  pictures, note = thumbnails.read(
    path.parent.parent if path.parent.name == predictions.FOLDER else None,
    facts,
    dict(zip(shown['index'].tolist(), shown['name'], strict=True)),
    count=len(table),
    dataset=dataset,
  )
  text = page.render(numbers, shown['index'].tolist(), pictures, note)
  to.mkdir(parents=True, exist_ok=True)
  (to / 'index.html').write_text(text, encoding='utf-8')
  names = numbers.classes['name']
  with_names = numbers.pairs.assign(
    **{key: numbers.pairs[key].map(names) for key in ('actual', 'predicted')}
  )
  (to / 'confusions.csv').write_text(with_names.to_csv(index=False))
  (to / 'classes.csv').write_text(
    numbers.classes.assign(
      confused_with=numbers.classes['confused_with'].map(names)
    ).to_csv(index=False)
  )
  lines = [
    f'{len(numbers.wrong):,} mistakes on {numbers.counts["counted"]:,} images'
    f' (accuracy {100 * numbers.metrics["accuracy"]:.2f}%): {to / "index.html"}'
  ]
  return '\n'.join([*lines, note] if note else lines)


def _names(run: epath.Path) -> str:
  """Returns a sentence on what the keys of a run's evaluations are called."""
  saved = config_lib.load(run) or {}
  names = [
    name
    for name, section in saved.get('evals', {}).items()
    if section['kind'] == 'classification'
  ]
  return (
    f'NAME is {" or ".join(names) or "the name of an evaluation"}; or auto, if'
    ' the config file left the choice of the split to the data.'
  )


def _listed(paths: Sequence[epath.Path]) -> str:
  return ', '.join(map(str, paths))
