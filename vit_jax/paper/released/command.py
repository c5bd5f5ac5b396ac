"""The command: `python -m vit_jax.reproduce released --weights=DIR`."""

import datetime
import pathlib
import sys
from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax.interop import catalog
from vit_jax.pages import drawing
from vit_jax.paper import page
from vit_jax.paper.page import texts
from vit_jax.paper.released import evaluating, files, sections
from vit_jax.sweep import state
from vit_jax.workdir.files import absolute

WORD = 'released'
# Flags that go with the word.
_FLAGS = {'workdir', 'weights', 'data', 'set', 'list', 'render'}
_ABOUT = (
  "Nothing was trained here: all is from the files that the paper's authors"
  ' released, pre-trained on ImageNet-21k. The models of JFT-300M are not'
  ' public. The printed numbers are of other fine-tunings than the files, so'
  ' small differences mean nothing. "Authors\' README" is that of'
  ' github.com/google-research/vision_transformer, beside the paper.'
)


def is_asked(words: Sequence[str], weights: str) -> bool:
  """Returns whether the command line asks for the released weights.

  Args:
    words: its words that are no flags.
    weights: the value of --weights.

  Raises:
    ValueError: it also asks for something else, or names weights without need.
  """
  if WORD not in words:
    if weights:
      raise ValueError(
        f'--weights={weights} is for the word {WORD}: python -m'
        f' vit_jax.reproduce {WORD} --weights=DIR --workdir=DIR'
      )
    return False
  if others := {*words} - {WORD}:
    raise ValueError(
      f'{WORD} makes pages of its own: give it without'
      f' {", ".join(sorted(others))}, which need runs.'
    )
  known = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  refused = sorted(
    f'--{f.name}' for f in known if f.present and f.name not in _FLAGS
  )
  if refused:
    raise ValueError(
      f'{WORD} starts no sweep and does not take {", ".join(refused)}; it takes'
      f' {", ".join(f"--{name}" for name in sorted(_FLAGS))}.'
    )
  return True


def run(
  weights: str,
  workdir: pathlib.Path,
  *,
  data: str,
  keys: Sequence[str],
  only_list: bool,
  only_render: bool,
) -> None:
  """Evaluates and draws what is missing, and writes WORKDIR/released.

  Args:
    weights: the folder of the released files; '': that of the catalogue.
    workdir: may also hold a reproduction by runs, which stays as it is.
    data: see `evaluating.find_images`.
    keys: config keys to set, KEY=VALUE.
    only_list: prints the files and does nothing else.
    only_render: evaluates nothing.

  Raises:
    ValueError: an evaluation failed, or the images cannot be read.
  """
  place = absolute(weights) if weights else catalog.folder()
  if only_list:
    print(files.listing(place))
    return
  drawing.check_matplotlib()
  if weights and not place.is_dir():
    raise ValueError(f'--weights={weights}: there is no such folder.')
  images = evaluating.find_images(data, keys)
  folder = workdir / WORD
  folder.mkdir(parents=True, exist_ok=True)
  failures = []
  with state.lock(folder, holder='process that works on these pages'):
    for name in () if only_render else files.FINE_TUNED:
      if path := files.find(name, place):
        failures.append(evaluating.evaluate(name, path, images, folder))
    _write(place, images, folder)
  if failures := list(filter(None, failures)):
    raise ValueError('\n'.join(failures))


def _write(
  place: epath.Path, images: evaluating.Images, folder: pathlib.Path
) -> None:
  """Draws the pictures, writes the pages and prints one of them."""
  shown = [sections.accuracies(place, images, folder)]
  shown += [
    sections.figure(item, place, images, folder / 'figures')
    for item in files.FIGURES
  ]
  names = files.uses()
  there = sum(files.find(name, place) is not None for name in names)
  head = {
    'title': 'An Image is Worth 16x16 Words, from released weights',
    'facts': {
      'weights': f'{there} of {len(names)} files, {place}',
      'images': f'{images.spec}, split {images.split}'
      if images.split
      else 'missing',
      'date': datetime.date.today().isoformat(),
    },
    'about': [_ABOUT],
  }
  page.write(shown, folder, **head)
  print(page.markdown(shown, **head))
  done = texts.summary(shown).get(texts.COMPLETE, 0)
  print(f'{folder}/index.html: {done} of {len(shown)} sections are complete.')
