"""Pictures that are drawn from the weights of finished runs.

Pages are made often and weights are slow to read, so pictures are kept, each
with a stamp that names its runs.

Another process draws, on the CPU. The current process may be about to start
runs, which need the accelerators that JAX would occupy. And if the other
process fails, there is still a page, with a note.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax import checkpoint
from vit_jax.pages import drawing
from vit_jax.paper.runs import Node, Results
from vit_jax.runtime import json_text

# The version of the drawing code. Increase it with every change of
# `weights_drawing.py` or of what that calls, so that old pictures are redrawn.
VERSION = 2

# The process that draws; it reads JSON from its standard input.
_COMMAND = (sys.executable, '-m', 'vit_jax.paper.pictures.draw_weights')


@dataclasses.dataclass(frozen=True)
class Panel:
  """A part of a picture.

  Attributes:
    kind: a key of `weights_drawing.KINDS`.
    title: of the part, and its name in the file of numbers.
    node: the node whose run is shown.
    images: number of held-out images that it needs.
  """

  kind: str
  title: str
  node: Node
  images: int = 0


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A picture as far as it could be drawn.

  Attributes:
    titles: of the panels in the picture; empty if there is no picture.
    notes: which panels are not in the picture, and why.
    numbers: the file with the drawn numbers.
  """

  titles: tuple[str, ...]
  notes: tuple[str, ...]
  numbers: pathlib.Path


def draw(
  name: str, panels: Sequence[Panel], results: Results, folder: pathlib.Path
) -> Drawn:
  """Draws the panels whose runs are finished, unless they are already drawn.

  Args:
    name: of the picture's files.
    panels: from left to right.
    results: knows the runs.
    folder: where the files go. `NAME.drawn.json` there is the stamp: the
      version, and for each panel its run with the run's last step and the time
      of that. So a repeated run is drawn again, and a picture outlives the
      weights. Panels that could not be drawn are tried again each time.

  Returns:
    The picture; problems with runs or files become its notes, not exceptions.
  """
  notes, wanted = [], []
  for panel in panels:
    workdir = results.folder(panel.node)
    if workdir is None:
      notes.append(f'Missing: the run {panel.node.name}.')
      continue
    wanted.append(
      {
        'kind': panel.kind,
        'title': panel.title,
        'images': panel.images,
        'run': panel.node.name,
        'workdir': os.fspath(workdir),
        'ended': ended(workdir),
      }
    )
  return draw_wanted(name, wanted, folder, notes=notes, mark=results.mark)


def draw_wanted(
  name: str,
  wanted: Sequence[Mapping[str, Any]],
  folder: pathlib.Path,
  *,
  notes: Sequence[str] = (),
  mark: str = '',
) -> Drawn:
  """Does what `draw` does for panels of any weights and images.

  Args:
    name: of the picture's files.
    wanted: the panels, each with `kind`, `title` and `images` as in `Panel`;
      `run`, a name for messages; `workdir`, the path of a run or a `.npz` file;
      `ended`, anything that changes with the weights; and `images_from`, see
      `inspected_run.images_of`, if the images are not a run's own.
    folder: where the files go, see `draw`.
    notes: which other panels are missing.
    mark: see `drawing.save`.
  """
  stem = folder / name
  notes = list(dict.fromkeys(notes))  # A run may be in several panels.
  stamp = stem.with_name(f'{name}.drawn.json')
  numbers = stem.with_suffix('.csv')
  if not _is_drawn(stem, stamp, wanted):
    # Checked here to save starting a process each time.
    deleted = {p['run']: why for p in wanted if (why := _deleted(p['workdir']))}
    wanted = [panel for panel in wanted if panel['run'] not in deleted]
    notes += [f'Not drawn: {run}: {why}' for run, why in deleted.items()]
  if not wanted:
    return Drawn((), tuple(notes), numbers)
  if not _is_drawn(stem, stamp, wanted):
    # If the process is killed, its files must not look complete.
    stamp.unlink(missing_ok=True)
    if failure := _start(stem, stamp, wanted, mark):
      return Drawn((), (*notes, failure), numbers)
  done = json.loads(stamp.read_text())
  return Drawn(tuple(done['drawn']), (*notes, *done['failures']), numbers)


def _deleted(workdir: str) -> str:
  """Returns why a run has no weights, or ''."""
  if workdir.endswith('.npz'):
    return ''  # No run, but a file that was there a moment ago.
  try:
    checkpoint.find(workdir)
  except ValueError as error:
    return ' '.join(str(error).split())
  return ''


def ended(workdir: epath.Path) -> Any:
  """Returns what changes if a run is repeated: its last step and its time."""
  path = workdir / 'DONE'
  if not path.exists():
    return None
  return [path.read_text().strip(), int(path.stat().mtime)]


def _is_drawn(
  stem: pathlib.Path, stamp: pathlib.Path, panels: Sequence[Mapping[str, Any]]
) -> bool:
  if not stamp.exists():
    return False
  try:
    found = json_text.loads(stamp.read_text())
  except json.JSONDecodeError:  # A full disk or a killed process cut it off.
    return False
  return (
    found['version'] == VERSION
    and _comparable(found['panels']) == _comparable(panels)
    and not found['failures']
    and all(stem.with_suffix(end).exists() for end in drawing.SUFFIXES)
  )


def _comparable(panels: Sequence[Mapping[str, Any]]) -> Any:
  """Returns panels without work directories: the whole folder may be moved."""
  return [{**panel, 'workdir': ''} for panel in panels]


def _start(
  stem: pathlib.Path,
  stamp: pathlib.Path,
  panels: Sequence[Mapping[str, Any]],
  mark: str,
) -> str:
  """Draws in another process; returns why that failed, or ''."""
  request = {
    'version': VERSION,
    'panels': panels,
    'mark': mark,
    'stem': os.fspath(stem),
    'stamp': os.fspath(stamp),
  }
  found = subprocess.run(
    _COMMAND,
    input=json.dumps(request),
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  if found.returncode == 0 and stamp.exists():
    return ''
  last = (found.stdout.strip().splitlines() or ['no output'])[-1]
  return f'Not drawn (exit code {found.returncode}): {last}'
