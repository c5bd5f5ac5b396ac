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

import contextlib
import csv
import json
import os
import sys
from collections.abc import Sequence

import numpy as np
from absl import flags, logging
from etils import epath

from vit_jax import images as images_lib
from vit_jax.images import Images
from vit_jax.interop import weight_files
from vit_jax.predict import commands, overlay, predictor
from vit_jax.predict.predictions import Predictions
from vit_jax.runtime import command_line
from vit_jax.workdir import files

commands.define_flags()
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

_COLUMNS = ['image', 'rank', 'class', 'index', 'probability', 'error']
# Of the longest names of images, the end is shown; of classes, the beginning.
_LONGEST, _LONGEST_CLASS = 48, 20


def main(words: Sequence[str]) -> None:
  found = _find(words)
  to = _ATTENTION.value and files.absolute(_ATTENTION.value)
  model = commands.from_flags()
  model.check('logits')
  output = 'logits'
  if to:
    output = predictor.LOGITS_AND_ATTENTION
    model.check(output)
    to.mkdir(parents=True, exist_ok=True)
  if _CLASS_NAMES.value:
    names = weight_files.class_names(_CLASS_NAMES.value)
    weight_files.check_class_names(names, len(model.class_names))
    model.class_names = names
  problems = []  # The images that cannot be read.
  indices = np.full(len(found), -1)
  with contextlib.ExitStack() as stack:
    table = None
    if _CSV.value:
      path = files.absolute(_CSV.value)
      path.parent.mkdir(parents=True, exist_ok=True)
      file = stack.enter_context(path.open('w'))
      table = csv.DictWriter(file, _COLUMNS, lineterminator='\n')
      table.writeheader()
    for rows, results, missing in model.batches(output, found):
      predictions = Predictions(
        tuple(found.names[i] for i in rows),
        results[0] if to else results,
        model.class_names,
        model.loss,
      )
      _print(predictions, found)
      if table:
        table.writerows(predictions.top(_TOP.value).to_dict('records'))
      if to:
        _draw(to, model, found, rows, predictions, results[1])
      indices[rows] = predictions.indices
      problems += [
        {
          'image': found.names[i],
          'error': found.problem(i, model.preprocess),
        }
        for i in missing
      ]
    if table:
      table.writerows(problems)
  if _JSON.value:
    for problem in problems:
      print(json.dumps(problem))
  _tell_accuracy(model.class_names, found, indices)
  if problems:
    for problem in problems:
      logging.warning('Not read: %s: %s.', *problem.values())
    logging.warning(
      '%d of %d files could not be read.', len(problems), len(found)
    )
    sys.exit(command_line.UNREADABLE)


def _find(words: Sequence[str]) -> Images:
  """Returns the images of the command line, or of the names on stdin."""
  if '-' not in words:
    return images_lib.from_paths(images_lib.find(words))
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


def _print(predictions: Predictions, found: Images) -> None:
  """Prints the most probable classes of each image, at once."""
  width = min(_LONGEST, max(map(len, found.names)))
  wide = min(_LONGEST_CLASS, max(map(len, predictions.class_names)))
  best = predictions.best(_TOP.value)
  for name, classes in zip(predictions.names, best, strict=True):
    if _JSON.value:
      print(json.dumps({'image': name, 'predictions': classes}))
      continue
    if len(name) > width:
      name = '...' + name[3 - width :]
    words = (
      f'{c["probability"]:6.1%} {c["class"][:wide]:<{wide}}' for c in classes
    )
    print(f'{name:{width}}  {"  ".join(words)}'.rstrip())
  sys.stdout.flush()


def _draw(
  to: epath.Path,
  model: predictor.Predictor,
  found: Images,
  rows: np.ndarray,
  predictions: Predictions,
  maps: np.ndarray,
) -> None:
  """Writes a picture of each image with its attention."""
  for index, best, attention in zip(
    rows.tolist(), predictions.best(1), maps, strict=True
  ):
    image = found.pixels(index, model.preprocess)
    text = f'{best[0]["class"]} {best[0]["probability"]:.1%}'
    # Images of several folders may have the same name.
    name = os.path.basename(found.names[index])
    stem = os.path.splitext(name)[0]
    path = to / f'{index:0{len(str(len(found)))}d}_{stem}.png'
    with path.open('wb') as file:
      overlay.draw(image, attention, text).save(file, format='PNG')


def _tell_accuracy(
  class_names: Sequence[str], found: Images, indices: np.ndarray
) -> None:
  """Logs the accuracy if all images lie in folders named like classes."""
  places = {name: i for i, name in enumerate(class_names)}
  folders = (os.path.basename(os.path.dirname(name)) for name in found.names)
  labels = np.array([places.get(folder, -1) for folder in folders])
  read = indices >= 0
  if -1 in labels or not read.any():
    return
  correct = (labels == indices)[read]
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
