"""What a page says of runs that are not the paper's own."""

import dataclasses
from collections.abc import Sequence

from vit_jax.configs import midi, mini
from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import report
from vit_jax.paper.report import Section
from vit_jax.paper.runs import DATASETS

_SMALLER = {'mini': mini.MINI, 'midi': midi.MIDI}
_SIZES = {
  'midi': "Models are smaller than the paper's. Transformers have a sixth of"
  " the paper's width and half of its layers. ResNets have a quarter of the"
  " paper's width and half of its layers.",
  'mini': "In miniature, models are smaller than the paper's. Transformers have"
  " an eighth of the paper's width and a sixth of its layers. ResNets"
  " have an eighth of the paper's width and a quarter of its layers.",
}
_RATES = (
  "Learning rates are not tuned. In pre-training, we take each model's rate"
  ' for JFT-300M from Table 3 and multiply it by one common factor. The model'
  ' has this rate on all data sets, also on those for which Table 3 has'
  ' another one. In fine-tuning, all models share one rate. For these'
  ' reasons, compare with the paper only which of two models is better, and'
  ' do not compare accuracies.'
)
_STAND_INS = (
  'The table below shows what stands for each data set of the paper. A name'
  ' such as shapes:colour+size means rendered scenes of shapes. In this'
  ' example, each class is one combination of a colour and a size. With'
  ' shapes:all, each scene has a label for every one of its properties.'
)


def marked(section: Section) -> Section:
  """Marks the titles, and hides the differences, which mean nothing here.

  Sections that rest on nothing that was run, such as Table 1, are not marked.
  """
  measured = section.runs or section.measured

  def title(text: str) -> str:
    return f'{text} ({report.MINIATURE})' if measured else text

  blocks = []
  for block in section.blocks:
    if isinstance(block, report.Table):
      block = dataclasses.replace(block, comparable=False)
    if isinstance(block, report.Table | report.Picture):
      block = dataclasses.replace(block, title=title(block.title))
    blocks.append(block)
  return dataclasses.replace(section, title=title(section.title), blocks=blocks)


def about(
  shown: Sequence[Section], *, scale: str, data: str = ''
) -> list[str | report.Listing]:
  """Returns paragraphs and a listing on what the items' runs have in common.

  Args:
    shown: the sections below the paragraphs. If no section has runs, there are
      no paragraphs.
    scale: one of `runs.SCALES`.
    data: spec of the data that replace a miniature's scenes; '': none do.
  """
  if scale == 'paper' or not any(section.runs for section in shown):
    return []
  size = _SMALLER[scale].image_size
  models = (
    f'{_SIZES[scale]} All models see images of {size} px:'
    f' {data or "rendered scenes"} and scanned digits (configs/{scale}.py).'
  )
  stand_ins = _STAND_INS
  if not data:
    stand_ins += (
      ' For fine-tuning and testing, shapes:colour+position stands for'
      ' ImageNet. The position is a cell of a 3 x 3 grid. Patches of 32 px'
      f' become patches of {size // 3} px in miniature, so an image has 3 x 3'
      ' patches. Each of these patches is exactly one cell of the grid.'
      ' Fine-tuning takes its scenes from the split validation, because'
      ' pre-training takes the split train.'
    )
  return [models, _RATES, stand_ins, _stand_ins(data, scale)]


def _stand_ins(data: str, scale: str) -> report.Listing:
  """Returns what stands for each data set, as the configs themselves have it.

  Args:
    data: as for `about`.
    scale: 'mini' or 'midi'.
  """
  papers = {
    **{name: f'{paper} (VTAB)' for paper, name in reproduce.VTAB.items()},
    **{name: paper for paper, name in reproduce.MINI_TASKS.items()},
    **{name: f'{paper}, to pre-train' for paper, name in DATASETS.items()},
  }
  own = f',of={data}' if data else ''
  rows = []
  for name in (*mini.MINI.datasets, *mini.TASKS):
    config = mini.make(f'ViT-B/32,{name}{own}', _SMALLER[scale])
    rows.append((papers[name], config.data.dataset, config.data.train_split))
  return report.Listing(('In the paper', 'In miniature', 'Trained on'), rows)
