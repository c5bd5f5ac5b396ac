"""Classifies images: `python -m vit_jax.predict --checkpoint=PATH IMAGE...`

  --checkpoint=runs/birds robin.jpg                 one photograph
  --checkpoint=runs/birds photos more/owl.png       folders and files
  --checkpoint=augreg+imagenet2012/B_16 photos      a released file by its name
  find photos -name '*.jpg' | python -m vit_jax.predict --checkpoint=... -
  --checkpoint=runs/birds photos --json > found.jsonl
  --checkpoint=runs/birds photos --csv=found.csv
  --checkpoint=runs/birds photos --attention=seen   where the model looked

--checkpoint is a run's directory or one of its checkpoints, a .npz file, a
Hugging Face folder, or a name from vit_jax/interop/catalog.py. Images are
prepared as in the run's own evaluation. Subfolders are searched, too.

If all images lie in folders that are named like classes of the model, the last
line tells the accuracy. Exit codes: 0 all images are classified; 1 an error; 3
some files could not be read, which are named at the end, and the others are
classified.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
from absl import flags, logging
from etils import epath

from vit_jax.inspection import capture, model_flags, subject
from vit_jax.interop import weight_files
from vit_jax.predict import images as images_lib
from vit_jax.predict import overlay, predictor, writing
from vit_jax.predict.images import Images
from vit_jax.predict.predictions import Predictions
from vit_jax.runtime import command_line, printable

flags.adopt_module_key_flags(model_flags)
_TOP = flags.DEFINE_integer(
  'top', 5, 'How many classes to name for each image.', lower_bound=1
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print a JSON object for each image, one on each line.'
)
_CSV = flags.DEFINE_string(
  'csv', None, 'File for a table with one line for each image and class.'
)
_ATTENTION = flags.DEFINE_string(
  'attention',
  None,
  'Directory for a picture of each image beside its attention rollout, with'
  ' the prediction. Only for ViTs and hybrids.',
)
_CLASS_NAMES = flags.DEFINE_string(
  'class_names',
  None,
  "Text file with one class name on each line, in place of the checkpoint's.",
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  'Most images of a batch, over all devices; by default 16 a CPU, or 128 a GPU'
  ' or TPU core.',
  lower_bound=1,
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  'auto',
  predictor.DTYPES,
  'The compute dtype; auto: float32 on CPUs, bfloat16 on TPUs and GPUs.',
)

_LONGEST = 200  # Bytes of an image's name in that of its picture.
_SECONDS = 10.0  # Between two lines that tell the progress.


def main(words: Sequence[str]) -> None:
  found = _find(words)
  to = _directory(_ATTENTION.value) if _ATTENTION.value else None
  model = predictor.load(
    model_flags.CHECKPOINT.value,
    batch_size=_BATCH_SIZE.value,
    dtype=_DTYPE.value,
    **model_flags.arguments(),
  )
  model.check_head()
  if to:
    capture.check(model.module)
  if _CLASS_NAMES.value:
    model.class_names = _class_names(len(model.class_names))
  logging.info('%s', printable.text(str(model)))
  for note in model.notes:
    logging.warning('%s', note)
  unnamed = sum(n == f'class {i}' for i, n in enumerate(model.class_names))
  if unnamed and not _CLASS_NAMES.value:
    logging.warning(
      'The checkpoint has no names for %d of its %d classes; give them with'
      ' --class_names=FILE.',
      *(unnamed, len(model.class_names)),
    )
  problems = {}
  indices = np.full(len(found), -1)
  with writing.opened(
    found.names, _TOP.value, _JSON.value, _CSV.value
  ) as write:
    for rows, predictions, maps in _predictions(model, found, to, problems):
      write(predictions)
      indices[rows] = predictions.indices
      if to:
        _draw(to, model, found, rows, predictions, maps)
    for index, reason in problems.items():
      write.problem(found.names[index], reason)
  _tell_accuracy(model.class_names, found, indices)
  if to:
    logging.info('The pictures are in %s.', to)
  if problems:
    for index, reason in problems.items():
      logging.warning('Not read: %s: %s.', found.names[index], reason)
    logging.warning(
      '%d of %d files could not be read.', len(problems), len(found)
    )
    sys.exit(command_line.UNREADABLE)


def _find(words: Sequence[str]) -> Images:
  """Returns the images of the command line, or of the names on stdin."""
  if '-' not in words:
    return images_lib.from_paths(subject.find_images(words))
  if len(words) > 1:
    raise ValueError(
      f'{list(words)}: - takes the names of files from the standard input, so'
      ' no other file can be named.'
    )
  # Names may hold bytes that are not UTF-8; Python restores them for `open`.
  names = os.fsdecode(sys.stdin.buffer.read()).split('\n')
  if not (names := list(filter(None, names))):
    raise ValueError(
      'The standard input is empty, expected the name of a file on each line.'
    )
  return images_lib.from_paths(list(dict.fromkeys(names)))


def _directory(path: str) -> epath.Path:
  to = weight_files.absolute(path)
  if to.exists() and not to.is_dir():
    raise ValueError(f'--attention={to} is a file, expected a directory.')
  return to


def _class_names(count: int) -> tuple[str, ...]:
  names = weight_files.class_names(_CLASS_NAMES.value)
  if len(names) != count:
    raise ValueError(
      f'{_CLASS_NAMES.value} has {len(names)} lines, but the model has'
      f' {count} classes: give one name per class, in the order of the logits.'
    )
  return names


def _predictions(
  model: predictor.Predictor,
  found: Images,
  to: epath.Path | None,
  problems: dict[int, str],
) -> Iterator[tuple[np.ndarray, Predictions, np.ndarray | None]]:
  """Yields the indices, predictions and attention of images as they are done.

  Adds the reasons why images cannot be read to `problems`, by their indices.
  """
  function = model.logits_and_attention if to else model.logits
  start = told = time.monotonic()
  for indices, readable, results in model.batches(function, found):
    logits, maps = results if to else (results, None)
    for index in np.asarray(indices)[~readable].tolist():
      problems[index] = found.problem(index, model.preprocess)
    rows = np.asarray(indices)[readable]
    names = tuple(found.names[i] for i in rows)
    maps = None if maps is None else maps[readable]
    if len(rows):
      yield (
        rows,
        Predictions(names, logits[readable], model.class_names, model.loss),
        maps,
      )
    now = time.monotonic()
    if now - told > _SECONDS:
      told, done = now, indices.stop
      rate = done / (now - start)
      logging.info(
        '%s of %s images, %s images/s, %s left',
        *(f'{done:,}', f'{len(found):,}', f'{rate:,.0f}'),
        printable.duration((len(found) - done) / rate),
      )


def _draw(
  to: epath.Path,
  model: predictor.Predictor,
  found: Images,
  rows: np.ndarray,
  predictions: Predictions,
  maps: np.ndarray,
) -> None:
  """Writes a picture of each image with its attention."""
  to.mkdir(parents=True, exist_ok=True)
  for index, best, attention in zip(
    rows.tolist(), predictions.best(1), maps, strict=True
  ):
    image = model.preprocess(found[index].image, np.random.default_rng(0))
    text = f'{best[0]["class"]} {best[0]["probability"]:.1%}'
    # Images of several folders may have the same name.
    name = os.path.basename(found.names[index])
    stem = os.path.splitext(name)[0].replace('\\', '_')
    # File systems limit a name's bytes.
    stem = stem.encode()[:_LONGEST].decode(errors='ignore')
    path = to / f'{index:0{len(str(len(found)))}d}_{stem}.png'
    with path.open('wb') as file:
      overlay.draw(image, attention, text).save(file, format='PNG')


def _tell_accuracy(
  class_names: Sequence[str], found: Images, indices: np.ndarray
) -> None:
  """Logs the accuracy if all images lie in folders named like classes."""
  places = {name: i for i, name in enumerate(class_names)}
  labels = [
    places.get(os.path.basename(os.path.dirname(name)), -1)
    for name in found.names
  ]
  read = indices >= 0
  if -1 in labels or not read.any():
    return
  correct = (np.asarray(labels) == indices)[read]
  logging.info(
    'accuracy %.2f%%: %d of %d images are of the class of their folder.',
    *(100 * correct.mean(), correct.sum(), read.sum()),
  )


if __name__ == '__main__':
  command_line.run(
    main,
    required=('checkpoint',),
    arguments='image files, folders of them, or -, such as photos',
  )
