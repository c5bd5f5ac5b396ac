"""Pictures and numbers that are read from the weights of finished runs.

Pages are made often and weights are slow to read, so both are kept, with what
they are of. What fails becomes a note: there is still a page.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax.pages import drawing
from vit_jax.paper.inside import measuring, pictures
from vit_jax.paper.inside.measuring import NUMBERS
from vit_jax.paper.runs import Node, Pretraining, Results
from vit_jax.runtime import json_text
from vit_jax.workdir import files

__all__ = ['NUMBERS', 'Panel', 'draw', 'ended', 'measure']

# Increase it with every change of `pictures.py`, `measuring.py` or what these
# call, so that old pictures and numbers are made again.
VERSION = {'draw': 2, 'measure': 2}
# WORKDIR/measured has a file of the numbers.
_NUMBERS = 'weights.json'


@dataclasses.dataclass(frozen=True)
class Panel:
  """A part of a picture.

  Attributes:
    kind: a function of `inspection.views`, or `masked_patches`.
    title: of the part, and its name in the file of numbers.
    node: the node whose run is shown.
    images: number of held-out images that it needs.
  """

  kind: str
  title: str
  node: Node
  images: int = 0


def draw(
  name: str,
  panels: Sequence[Panel],
  results: Results,
  folder: pathlib.Path,
  images_from: Mapping[str, str] | None = None,
) -> tuple[list[str], list[str]]:
  """Draws the panels whose runs are finished, unless they are already drawn.

  Args:
    name: of the picture's files.
    panels: from left to right.
    results: knows the runs.
    folder: where the files go. `NAME.drawn.json` there is the stamp: the
      version, and for each panel its run with the run's last step and the time
      of that. So a repeated run is drawn again, and a picture outlives the
      weights. Panels that could not be drawn are tried again each time.
    images_from: see `weights.held_out_images`, if the images are not a run's
      own.

  Returns:
    The titles of the panels in the picture, none if there is no picture; and
    notes on those that are not in it. Problems with runs or files become such
    notes, not exceptions.
  """
  notes, wanted = [], []
  for panel in panels:
    workdir = results.folder(panel.node)
    if workdir is None:
      notes.append(f'Missing: the run {panel.node.name}.')
      continue
    one = {'kind': panel.kind, 'title': panel.title, 'images': panel.images}
    one |= {'run': panel.node.name, 'workdir': os.fspath(workdir)}
    if panel.images and images_from:
      one['images_from'] = images_from
    wanted.append(one | {'ended': ended(workdir)})
  notes = list(dict.fromkeys(notes))
  if not wanted:
    return [], notes
  stem, stamp = folder / name, folder / f'{name}.drawn.json'
  done = _read(stamp)
  if not _is_drawn(done, wanted, stem):
    # If the process is killed, its files must not look complete.
    stamp.unlink(missing_ok=True)
    drawn, failures = pictures.draw(wanted, stem, results.mark)
    done = {'version': VERSION['draw'], 'panels': wanted}
    done |= {'drawn': drawn, 'failures': failures}
    folder.mkdir(parents=True, exist_ok=True)
    with files.atomic(stamp) as temporary:
      temporary.write_text(json.dumps(done, indent=1))
  return done['drawn'], [*notes, *done['failures']]


def _is_drawn(
  done: Mapping[str, Any],
  panels: Sequence[Mapping[str, Any]],
  stem: pathlib.Path,
) -> bool:
  # Without work directories, as the whole folder may be moved.
  one, other = (
    [{**panel, 'workdir': ''} for panel in some]
    for some in (done.get('panels', ()), panels)
  )
  return (
    done.get('version') == VERSION['draw']
    and one == other
    and not done['failures']
    and all(stem.with_suffix(end).exists() for end in drawing.SUFFIXES)
  )


def measure(
  wanted: Mapping[Pretraining, Mapping[str, Callable[[str], float]]],
  results: Results,
  folder: pathlib.Path,
) -> tuple[dict[str, dict[str, float]], list[str]]:
  """Returns the numbers of finished runs; measures what is not known yet.

  Args:
    wanted: pre-training -> kind -> what reads it, see `claims.inside`.
    results: knows the runs.
    folder: WORKDIR/measured, where each run's numbers are kept with the time of
      its end, so that they outlive the weights.

  Returns:
    Name of a pre-training -> kind -> number; and a line for each number that
    could not be measured.
  """
  path = folder / _NUMBERS
  known, found, problems = _read(path), {}, []
  for start, kinds in wanted.items():
    workdir = results.folder(start)
    if workdir is None:
      continue
    of = [VERSION['measure'], ended(workdir)]
    kept = known.get(start.name, {})
    numbers = kept['numbers'] if kept.get('ended') == of else {}
    found[start.name] = numbers
    for kind in sorted(kinds.keys() - numbers.keys()):
      try:
        numbers[kind] = measuring.number(kinds[kind], os.fspath(workdir))
      # Any failure becomes a line of the command: other numbers still count.
      except Exception as error:
        why = ' '.join(str(error).split())
        problems.append(f'{start.name}: {kind}: {why}')
        continue
      known[start.name] = {'ended': of, 'numbers': numbers}
      folder.mkdir(parents=True, exist_ok=True)
      with files.atomic(path) as temporary:
        temporary.write_text(json.dumps(known, indent=1) + '\n')
  return found, problems


def ended(weights: epath.Path) -> Any:
  """Returns what changes with the weights.

  Args:
    weights: the work directory of a run, or a file.

  Returns:
    The last step of a run and its time, None while it is not finished; the size
    of a file in bytes, and its time.
  """
  if weights.suffix == '.npz':
    found = weights.stat()
    return [found.length, int(found.mtime)]
  path = weights / 'DONE'
  if not path.exists():
    return None
  return [path.read_text().strip(), int(path.stat().mtime)]


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Returns a file of JSON; nothing without one."""
  return json_text.loads(files.content(path) or b'{}')
