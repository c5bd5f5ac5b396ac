"""Pictures and numbers that are read from the weights of finished runs.

Pages are made often and weights are slow to read, so both are kept, with what
they are of. Another process reads the weights, on the CPU: the current one may
be about to start runs, which need the accelerators that JAX would occupy. And
if the other process fails, there is still a page, with a note.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax.pages import drawing
from vit_jax.paper.claims import Measure, inside
from vit_jax.paper.runs import Node, Pretraining, Results
from vit_jax.runtime import json_text
from vit_jax.workdir import files

# Increase it with every change of `pictures.py`, `measuring.py` or what these
# call, so that old pictures and numbers are made again.
VERSION = {'draw': 2, 'measure': 2}
# WORKDIR/measured has a file of the numbers.
_NUMBERS = 'weights.json'

# What `measuring.KINDS` measure: kind -> its name with its unit, and digits.
NUMBERS: dict[str, Measure] = {
  kind: inside(kind, name, digits)
  for kind, name, digits in (
    (
      'distance_by_depth',
      "Kendall's rank correlation of a head's block and attention distance,"
      ' beyond that of untrained models',
      2,
    ),
    (
      'far_head',
      'distance of the farthest head of the first block, minus that of uniform'
      ' attention to the nearest half, in px',
      1,
    ),
    (
      'near_head',
      'distance of uniform attention to the nearest half, minus that of the'
      ' nearest head of the first block, in px',
      1,
    ),
    (
      'early_distance',
      'mean attention distance in the first quarter of the blocks, in px',
      1,
    ),
    (
      'late_distance',
      'mean attention distance in the last quarter of the blocks, in px',
      1,
    ),
    (
      'position_locality',
      "rank correlation of positions' similarity and nearness",
      2,
    ),
    (
      'position_lines',
      'similarity of positions in the same row or column, beyond that of others'
      ' at exactly their distance',
      3,
    ),
    (
      'position_waves',
      "share of the position embeddings' variance in slow waves, beyond that of"
      ' shuffled positions',
      3,
    ),
    (
      'filter_share',
      "share of the filters' variance in few components, beyond that of random"
      ' filters',
      3,
    ),
    (
      'shift_eighth',
      '5-shot answers that change as the image shifts by an eighth of a patch,'
      ' in percent',
      2,
    ),
    (
      'shift_quarter',
      '5-shot answers that change as the image shifts by a quarter of a patch,'
      ' in percent',
      2,
    ),
    ('shift_accuracy', '5-shot accuracy without a shift, in percent', 2),
    (
      'shift_loss',
      '5-shot accuracy lost by a shift of a quarter of a patch, in percentage'
      ' points',
      2,
    ),
  )
}


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
  name: str, panels: Sequence[Panel], results: Results, folder: pathlib.Path
) -> tuple[Sequence[str], Sequence[str]]:
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
) -> tuple[Sequence[str], Sequence[str]]:
  """Does what `draw` does for panels of any weights and images.

  Args:
    name: of the picture's files.
    wanted: the panels, each with `kind`, `title` and `images` as in `Panel`;
      `run`, a name for messages; `workdir`, the path of a run or a `.npz` file;
      `ended`, anything that changes with the weights; and `images_from`, see
      `weights.held_out_images`, if the images are not a run's own.
    folder: where the files go, see `draw`.
    notes: which other panels are missing.
    mark: see `drawing.save`.
  """
  stem, notes = folder / name, list(dict.fromkeys(notes))
  stamp = stem.with_name(f'{name}.drawn.json')
  if not wanted:
    return (), notes
  if not _is_drawn(stem, stamp, wanted):
    # If the process is killed, its files must not look complete.
    stamp.unlink(missing_ok=True)
    request = {
      'version': VERSION['draw'],
      'panels': wanted,
      'mark': mark,
      'stem': os.fspath(stem),
      'stamp': os.fspath(stamp),
    }
    last, code = _ask('draw', request)
    if code or not stamp.exists():
      return (), [*notes, f'Not drawn (exit code {code}): {last}']
  done = json.loads(stamp.read_text())
  return done['drawn'], [*notes, *done['failures']]


def measure(
  wanted: Mapping[Pretraining, Collection[str]],
  results: Results,
  folder: pathlib.Path,
) -> tuple[dict[str, dict[str, float]], list[str]]:
  """Returns the numbers of finished runs; measures what is not known yet.

  Args:
    wanted: pre-training -> keys of `NUMBERS`.
    results: knows the runs.
    folder: WORKDIR/measured, where each run's numbers are kept with the time of
      its end, so that they outlive the weights.

  Returns:
    Name of a pre-training -> kind -> number; and a line for each number that
    could not be measured.
  """
  path = folder / _NUMBERS
  known = _read(path)
  found, missing = {}, {}
  for start, kinds in wanted.items():
    workdir = results.folder(start)
    if workdir is None:
      continue
    of = [VERSION['measure'], ended(workdir)]
    kept = known.get(start.name, {})
    numbers = kept.get('numbers', {}) if kept.get('ended') == of else {}
    found[start.name] = numbers
    if lacking := sorted({*kinds} - {*numbers}):
      missing[start.name] = {
        'workdir': os.fspath(workdir),
        'kinds': lacking,
        'ended': of,
      }
  if not missing:
    return found, []
  last, code = _ask('measure', missing)
  if code:
    return found, [f'Weights were not measured (exit code {code}): {last}']
  problems = []
  for name, one in json.loads(last).items():
    found[name] |= one['numbers']
    known[name] = {'ended': missing[name]['ended'], 'numbers': found[name]}
    problems += [f'{name}: {line}' for line in one['failures']]
  folder.mkdir(parents=True, exist_ok=True)
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(known, indent=1) + '\n')
  return found, problems


def ended(workdir: epath.Path) -> Any:
  """Returns what changes if a run is repeated: its last step and its time."""
  path = workdir / 'DONE'
  if not path.exists():
    return None
  return [path.read_text().strip(), int(path.stat().mtime)]


def _ask(what: str, request: Mapping[str, Any]) -> tuple[str, int]:
  """Has another process read weights: its last line, and its exit code."""
  found = subprocess.run(
    [sys.executable, '-m', 'vit_jax.paper.inside', what],
    input=json.dumps(request),
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  lines = found.stdout.strip().splitlines()
  return (lines or ['no output'])[-1], found.returncode


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Returns a file of JSON; nothing without one."""
  return json_text.loads(files.content(path) or b'{}')


def _is_drawn(
  stem: pathlib.Path, stamp: pathlib.Path, panels: Sequence[Mapping[str, Any]]
) -> bool:
  found = _read(stamp)
  # Without work directories, as the whole folder may be moved.
  one, other = (
    [{**panel, 'workdir': ''} for panel in some]
    for some in (found.get('panels', ()), panels)
  )
  return (
    found.get('version') == VERSION['draw']
    and one == other
    and not found['failures']
    and all(stem.with_suffix(end).exists() for end in drawing.SUFFIXES)
  )
