"""Builds the sections of the items from the files of their runs."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from absl import logging

from vit_jax.configs import midi, mini
from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import cost, registered, report
from vit_jax.paper.claims import answers
from vit_jax.paper.claims.measures import Inside
from vit_jax.paper.cost import planning
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.paper.page import page_parts
from vit_jax.paper.pictures import weight_numbers
from vit_jax.paper.report import Section
from vit_jax.paper.runs import (
  DATASETS,
  Node,
  Pretraining,
  Results,
  seeds,
  with_needs,
)
from vit_jax.sweep import bring_to_end, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Sweep
from vit_jax.workdir import environment, files

# The numbers behind the claims; they may be the pilot of further runs.
NUMBERS = 'numbers.json'


def sections(
  chosen: Sequence[Item],
  sweep: Sweep,
  where: Folders,
  design: Design,
) -> tuple[list[Section], list[str]]:
  """Renders the items; a failing item does not stop the others.

  Args:
    chosen: the items.
    sweep: contains their runs.
    where: the folders of the runs; pictures go to its `figures`, and the
      numbers of the claims to its `numbers.json`.
    design: the scale, and how many pre-trainings there are.

  Returns:
    A section for each item; and a line for each item that could not be drawn,
    whose section gives the reason too.
  """
  scale = design.scale
  finished = bring_to_end.read_finished(sweep, where)
  results = Results(
    sweep.studies,
    finished,
    comparable=scale == 'paper',
    scale=scale,
    workdir=where.workdir,
    core_days=_core_days(chosen, sweep, where, design)
    if scale == 'paper'
    else {},
  )
  inside, unread = _inside(chosen, results, where, design)

  @functools.cache  # Items share runs, and reading remote folders is slow.
  def commits(name: str) -> str:
    if name not in finished:
      return ''
    return ', '.join(environment.commits(where.workdir(name)))

  found, failures = [], list(unread)
  numbers = {}
  for item in chosen:
    own = results.counting(design.counts(item), inside)
    section = _render(item, own, where.local / 'figures', design)
    for measure, values in answers.numbers(item.claims(scale), own).items():
      for start, found_ in values.items():
        # Items may have different numbers of the same pre-trainings.
        known = numbers.setdefault(measure, {})
        known[start] = max(known.get(start, []), found_, key=len)
    if isinstance(section, str):
      failures.append(f'{item.name}: {section}')
      section = Section(item.name, item.title, missing=(section,))
    runs = [
      report.Run(
        run.name,
        _config(run),
        run.name in finished,
        hours=cost.device_hours(finished.get(run.name, {})),
        commit=commits(run.name),
      )
      for run in known_runs(design.nodes(item), sweep, finished)
    ]
    section = dataclasses.replace(section, runs=runs)
    if scale != 'paper':
      section = _as_miniature(section)
    found.append(section)
  _write_numbers(where, numbers, finished)
  return found, failures


def _write_numbers(
  where: Folders,
  numbers: Mapping[str, Mapping[str, Sequence[float]]],
  finished: schedule.Finished,
) -> None:
  """Writes the numbers behind the claims, which can be the pilot of others."""
  hours = {name: cost.device_hours(last) for name, last in finished.items()}
  minutes = {
    name: round(60 * value, 3)
    for name, value in sorted(hours.items())
    if value is not None
  }
  if numbers or minutes:
    with files.atomic(where.local / NUMBERS) as temporary:
      found = {'values': numbers, 'minutes': minutes}
      temporary.write_text(json.dumps(found, indent=1) + '\n')


def _inside(
  chosen: Sequence[Item], results: Results, where: Folders, design: Design
) -> tuple[Mapping[str, Mapping[str, float]], list[str]]:
  """Returns the numbers from weights that are shown, and what went wrong."""
  wanted: dict[Pretraining, set[str]] = {}
  for item in chosen:
    counts = design.counts(item)
    for first in item.shown_at(design.scale) if item.inside else ():
      for start in seeds(first, counts.get(first, 1)):
        wanted.setdefault(start, set()).update(item.inside)
    for claim in item.claims(design.scale):
      for mean in claim.means():
        if isinstance(mean.measure, Inside):
          for start in seeds(mean.start, counts[mean.start]):
            wanted.setdefault(start, set()).add(mean.measure.kind)
  return weight_numbers.measure(wanted, results, where.local)


def _config(run: Run) -> str:
  """Returns a run's config with what is set otherwise than in its file."""
  return ' '.join(
    [run.config, *(f'{key}={value}' for key, value in run.overrides.items())]
  )


def known_runs(
  nodes: Iterable[Node], sweep: Sweep, finished: schedule.Finished
) -> list[Run]:
  """Returns the known runs of the nodes and of their pre-trainings."""
  studies = {study.name: study for study in sweep.studies}
  return [
    run
    for node in with_needs(nodes)
    if node.name in studies  # Some tasks of VTAB have no miniature.
    for run in schedule.known(studies[node.name], finished)
  ]


def _render(
  item: Item, results: Results, pictures: pathlib.Path, design: Design
) -> Section | str:
  """Returns an item's section, or the reason why there is none."""
  try:
    section = item.render(results, pictures)
    claims = item.claims(design.scale)
    said = answers.of_item(claims, results)
    if design.confirms:
      explored = answers.of_values(claims, design.pilot.lookup)
      wordings = registered.wordings()
      said = [
        dataclasses.replace(
          one,
          explored='' if other.answer == answers.MISSING else other.answer,
          registered=''
          if (words := wordings.get(f'{item.name}.{claim.key}', ''))
          == one.statement
          else words,
        )
        for claim, one, other in zip(claims, said, explored, strict=True)
      ]
    section = dataclasses.replace(section, blocks=(*section.blocks, *said))
    page_parts.check([section])
  # An item may fail in any way: the page must still show the others.
  except Exception as error:
    logging.vlog(1, '%s:', item.name, exc_info=True)
    kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
    return f'could not be drawn: {kind}{" ".join(str(error).split())}'
  return section


def _core_days(
  chosen: Sequence[Item], sweep: Sweep, where: Folders, design: Design
) -> dict[str, float]:
  """Returns the known core-days of the items' pre-trainings, by node name."""
  nodes = with_needs(node for item in chosen for node in design.nodes(item))
  runs = planning.pretraining_runs(nodes, sweep)
  return planning.core_days(planning.read(where.local), runs)


def _as_miniature(section: Section) -> Section:
  """Marks the titles, and hides the differences, which mean nothing here.

  Sections that rest on nothing that was run, such as Table 1, are not marked.
  """
  measured = section.runs or section.measured

  def title(text: str) -> str:
    return f'{text} ({report.MINIATURE})' if measured else text

  def marked(block):
    match block:
      case report.Table():
        return dataclasses.replace(
          block, title=title(block.title), comparable=False
        )
      case report.Picture():
        return dataclasses.replace(block, title=title(block.title))
    return block

  return dataclasses.replace(
    section,
    title=title(section.title),
    blocks=[marked(block) for block in section.blocks],
  )


def about(
  shown: Sequence[Section], *, scale: str, data: str = ''
) -> list[str | report.Listing]:
  """Returns paragraphs and a listing on what the items' runs have in common.

  Args:
    shown: the sections below the paragraphs. If no section has runs, there are
      no paragraphs.
    scale: one of `design.SCALES`.
    data: spec of the data that replace a miniature's scenes; '': none do.
  """
  if scale == 'paper' or not any(section.runs for section in shown):
    return []
  if scale == 'midi':
    size, text = (
      midi.MIDI.image_size,
      (
        "Models are smaller than the paper's. Transformers have a sixth of the"
        " paper's width and half of its layers. ResNets have a quarter of the"
        " paper's width and half of its layers."
      ),
    )
  else:
    size, text = (
      mini.MINI.image_size,
      (
        "In miniature, models are smaller than the paper's. Transformers have"
        " an eighth of the paper's width and a sixth of its layers. ResNets"
        " have an eighth of the paper's width and a quarter of its layers."
      ),
    )
  models = (
    f'{text} All models see images of {size} px: {data or "rendered scenes"}'
    f' and scanned digits (configs/{scale}.py).'
  )
  rates = (
    "Learning rates are not tuned. In pre-training, we take each model's rate"
    ' for JFT-300M from Table 3 and multiply it by one common factor. The model'
    ' has this rate on all data sets, also on those for which Table 3 has'
    ' another one. In fine-tuning, all models share one rate. For these'
    ' reasons, compare with the paper only which of two models is better, and'
    ' do not compare accuracies.'
  )
  stand_ins = (
    'The table below shows what stands for each data set of the paper. A name'
    ' such as shapes:colour+size means rendered scenes of shapes. In this'
    ' example, each class is one combination of a colour and a size. With'
    ' shapes:all, each scene has a label for every one of its properties.'
  )
  if not data:
    stand_ins += (
      ' For fine-tuning and testing, shapes:colour+position stands for'
      ' ImageNet. The position is a cell of a 3 x 3 grid. Patches of 32 px'
      f' become patches of {size // 3} px in miniature, so an image has 3 x 3'
      ' patches. Each of these patches is exactly one cell of the grid.'
      ' Fine-tuning takes its scenes from the split validation, because'
      ' pre-training takes the split train.'
    )
  return [models, rates, stand_ins, _stand_ins(data, scale)]


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
    smaller = mini.MINI if scale == 'mini' else midi.MIDI
    config = mini.make(f'ViT-B/32,{name}{own}', smaller)
    rows.append((papers[name], config.data.dataset, config.data.train_split))
  return report.Listing(('In the paper', 'In miniature', 'Trained on'), rows)
