"""ObjectNet (D.9): Table 2's ViT-H/14, evaluated without training."""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from vit_jax.paper import inside
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items.tables import table2
from vit_jax.paper.numbers import IMAGENET, Value
from vit_jax.paper.released import eval_only
from vit_jax.paper.report import Cell, Missing, Number, Table
from vit_jax.paper.runs import Results, Transfer, with_start
from vit_jax.sweep import commands
from vit_jax.sweep.spec import Run
from vit_jax.workdir.files import absolute

NAME = 'objectnet'
_TITLE = 'Accuracy on ObjectNet'
_LACKING = (
  'ObjectNet was not evaluated: download it from https://objectnet.dev, unpack'
  ' it, and name its folder, which has images and mappings, by'
  ' --objectnet=PATH.'
)
_PARTS = ('images', 'mappings')
# Column -> metric.
_METRICS = {'top-1': 'accuracy', 'top-5': 'top5_accuracy'}
# What a run may need to fit its devices, which changes no accuracy.
_FITTING = ('--config.mesh.', '--config.data.batch_size=')
_NOTE = (
  'The model is that of Table 2, fine-tuned on ImageNet. ObjectNet has only'
  ' some of the 1,000 classes of ImageNet. Here, a model may predict any of the'
  ' 1,000 classes. The paper does not say whether its models could do so, or at'
  ' which resolution they were tested. Here, the resolution is that of the'
  ' fine-tuning.'
)
# Column -> percent, in the setup of the BiT paper.
PAPER = {
  'top-1': Value(61.7, note='ViT-H/14, Appendix D.9', printed='61.7'),
  'top-5': Value(82.1, note='ViT-H/14, Appendix D.9', printed='82.1'),
}
_NODE = Transfer(table2.HUGE, IMAGENET, table2.RESOLUTION[table2.HUGE.model])


def check(path: str) -> None:
  """Checks that a folder holds ObjectNet.

  Raises:
    ValueError: a part of it is missing.
  """
  folder = absolute(path)
  missing = [part for part in _PARTS if not (folder / part).is_dir()]
  if missing:
    raise ValueError(
      f'--objectnet={path}: expected the folders {" and ".join(_PARTS)} there,'
      f' but {" and ".join(missing)} are missing. Name the folder that'
      ' unpacking ObjectNet made.'
    )


def _evaluate(results: Results, measured: pathlib.Path, path: str) -> None:
  """Evaluates the finished runs that have no result yet.

  Raises:
    ValueError: an evaluation failed; has a line for each.
  """
  argument = (
    f'{table2.HUGE.model},{NAME},resolution={_NODE.resolution}'
    f',{NAME}={os.fspath(absolute(path))}'
  )
  failures = []
  for run, workdir, kept in _runs(results, measured):
    if workdir and not eval_only.result(*kept):
      flags = [f for f in commands.config_flags(run) if f.startswith(_FITTING)]
      failures.append(eval_only.evaluate(*kept, argument, workdir, *flags))
  if any(failures):
    raise ValueError('\n'.join(filter(None, failures)))


def _runs(
  results: Results, measured: pathlib.Path
) -> Iterator[tuple[Run, epath.Path | None, tuple[pathlib.Path, str, Any]]]:
  """Yields the fine-tuning runs, and the arguments of `eval_only.result`.

  The page need not know where the data are, so results do not depend on it.
  """
  for start in results.seeds(_NODE.pretraining):
    for run, workdir in results.reported(with_start(_NODE, start)):
      of = workdir and inside.ended(workdir)
      yield run, workdir, (measured / NAME, run.name.replace('/', ','), of)


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  found = _found(results, pictures.parent / 'measured')
  row, cells = 'ViT-H/14, JFT-300M', {}
  for column, metric in _METRICS.items():
    percent = tuple(
      100 * result[f'{NAME}/{metric}'] for result in found.values()
    )
    ours = Number(percent, tuple(found)) if found else None
    cells[row, column] = Cell(ours, PAPER[column], results.comparable)
  yield Table(f'{_TITLE} in percent', [row], [*_METRICS], cells)
  if results.comparable:
    yield _NOTE
    if not found:
      yield Missing(_LACKING)


def _found(
  results: Results, measured: pathlib.Path
) -> dict[str, Mapping[str, float]]:
  """Returns run -> what is kept of it; none while a run lacks it."""
  found = {
    run.name: eval_only.result(*kept) if workdir else {}
    for run, workdir, kept in _runs(results, measured)
  }
  return found if all(found.values()) else {}


ITEM = Item(
  NAME,
  _TITLE,
  _blocks,
  lambda scale: [_NODE],
  miniature=[
    'This item does not exist in miniature: no data set there stands for'
    " ObjectNet's photographs."
  ],
  measure=_evaluate,
  lacking=_LACKING,
  scales=('paper',),
)
