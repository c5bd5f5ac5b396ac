"""Pictures that are drawn from the weights of finished runs.

A page is made often, and weights are slow to read: what was drawn is kept, with
a stamp that says of which runs it is.

Drawing is another process, on the CPU. This one may be about to start runs,
which need the accelerators that JAX would take hold of; and a process that
fails leaves a note on the page in place of no page.
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
from vit_jax.compare import drawing
from vit_jax.paper.runs import Node, Results
from vit_jax.runtime import json_text

# Of what is drawn. What an older version drew is drawn again: increase it with
# every change of `weights_drawing.py` or of what that calls.
VERSION = 1

# Of the process that draws; JSON on its standard input.
_COMMAND = (sys.executable, '-m', 'vit_jax.paper.pictures.draw_weights')


@dataclasses.dataclass(frozen=True)
class Panel:
  """A part of a picture.

  Attributes:
    kind: a key of `weights_drawing.KINDS`.
    title: of the part, and its name in the file of numbers.
    node: whose run it is of.
    images: how many held-out images it needs.
  """

  kind: str
  title: str
  node: Node
  images: int = 0


@dataclasses.dataclass(frozen=True)
class Drawn:
  """What there is of a picture.

  Attributes:
    titles: of the panels that are in it; empty if there is no picture.
    notes: which are not, and why.
    numbers: the file with what is drawn.
  """

  titles: tuple[str, ...]
  notes: tuple[str, ...]
  numbers: pathlib.Path


def draw(
  name: str, panels: Sequence[Panel], results: Results, folder: pathlib.Path
) -> Drawn:
  """Draws the panels whose runs are finished, unless that was done before.

  Args:
    name: of the picture's files.
    panels: from left to right.
    results: knows the runs.
    folder: where the files go. `NAME.drawn.json` there is the stamp: the
      version, and of each panel its run and the step and the time at which that
      ended. So a run that is made anew is drawn anew, and a picture outlives
      the weights. What could not be drawn is tried again each time.

  Returns:
    What there is; nothing is raised for runs or files that are not as expected.
  """
  stem = folder / name
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
        'ended': _ended(workdir),
      }
    )
  notes = list(dict.fromkeys(notes))  # A run may be in several panels.
  stamp = stem.with_name(f'{name}.drawn.json')
  numbers = stem.with_suffix('.csv')
  if not _is_drawn(stem, stamp, wanted):
    # Found out here, in place of in a process each time.
    deleted = {p['run']: why for p in wanted if (why := _deleted(p['workdir']))}
    wanted = [panel for panel in wanted if panel['run'] not in deleted]
    notes += [f'Not drawn: {run}: {why}' for run, why in deleted.items()]
  if not wanted:
    return Drawn((), tuple(notes), numbers)
  if not _is_drawn(stem, stamp, wanted):
    # A process that is killed must not leave files that look drawn.
    stamp.unlink(missing_ok=True)
    if failure := _start(stem, stamp, wanted):
      return Drawn((), (*notes, failure), numbers)
  done = json.loads(stamp.read_text())
  return Drawn(tuple(done['drawn']), (*notes, *done['failures']), numbers)


def _deleted(workdir: str) -> str:
  """Why there are no weights, or ''."""
  try:
    checkpoint.find(workdir)
  except ValueError as error:
    return ' '.join(str(error).split())
  return ''


def _ended(workdir: epath.Path) -> Any:
  """What changes if a run is made anew: its last step, and when that was."""
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
  except json.JSONDecodeError:  # The disk was full, or the process killed.
    return False
  return (
    found['version'] == VERSION
    and _comparable(found['panels']) == _comparable(panels)
    and not found['failures']
    and all(stem.with_suffix(end).exists() for end in drawing.SUFFIXES)
  )


def _comparable(panels: Sequence[Mapping[str, Any]]) -> Any:
  """Panels without the places of runs: a folder may be moved as a whole."""
  return [{**panel, 'workdir': ''} for panel in panels]


def _start(
  stem: pathlib.Path, stamp: pathlib.Path, panels: Sequence[Mapping[str, Any]]
) -> str:
  """Draws; returns why that failed, or ''."""
  request = {
    'version': VERSION,
    'panels': panels,
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
  last = (found.stdout.strip().splitlines() or ['it said nothing'])[-1]
  return f'Not drawn: exit code {found.returncode}, {last}'
