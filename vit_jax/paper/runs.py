"""The runs behind the paper's results, shared between its tables and figures.

A run is named after what it does, not after the item that needs it: Table 2's
ViT-L/16 with 14 epochs of JFT-300M is the same run in Tables 5 and 6 and in
Figure 5. Only its fine-tuning on ImageNet belongs to Table 2 alone.
`configs/sweeps/reproduce.py` has the config of each run at each scale.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from etils import epath

from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT
from vit_jax.paper.report import MINIATURE, Number
from vit_jax.sweep import schedule
from vit_jax.sweep.spec import Run, Study, Sweep, Value
from vit_jax.vtab import tasks
from vit_jax.workdir import metrics

SCALES = ('paper', 'mini', 'midi')
# The paper's pre-training sets, as configs name them.
DATASETS = {
  IMAGENET: 'imagenet2012',
  IMAGENET21K: 'imagenet21k',
  JFT: 'jft300m',
}
ACCURACY = 'test/accuracy'
FEW_SHOT = 'few_shot/5shot/accuracy'
# Models of Tables 2 and 5 that have 14 epochs of JFT-300M, not 7 (Table 3).
_LONG = ('ViT-L/16', 'ViT-H/14')


@dataclasses.dataclass(frozen=True)
class Pretraining:
  """A pre-training run.

  Attributes:
    model: the paper's name of the model.
    data: a key of `DATASETS`.
    epochs: number of epochs; None: as in Table 3.
    optimizer: 'adam' or 'sgd'.
    options: config key -> value, for settings that differ from Table 3.
    label: describes the options; part of the run's name.
    seed: of the initial weights and the order of the data.
    objective: 'supervised' or 'masked_patch'.
    images: size of a random part of the data to train on (Figure 4); None: all.
    few_shot: 'imagenet', or 'several' for an average over data sets too.
  """

  model: str
  data: str = JFT
  epochs: float | None = None
  optimizer: str = 'adam'
  options: tuple[tuple[str, Value], ...] = ()
  label: str = ''
  seed: int = 0
  objective: str = 'supervised'
  images: int | None = None
  few_shot: str = 'imagenet'

  @property
  def name(self) -> str:
    """A name for people and folders: `ViT-L/16, JFT-300M, 14 epochs`."""
    parts = [self.model, self.data]
    if self.epochs is not None:
      parts.append(f'{self.epochs:g} epochs')
    if self.images:
      parts.append(f'{self.images / 1e6:g}M images')
    if self.optimizer != 'adam':
      parts.append(self.optimizer)
    if self.objective != 'supervised':
      parts.append(self.objective)
    if self.label:
      parts.append(self.label)
    if self.seed:
      parts.append(f'seed {self.seed}')
    return ', '.join(parts)

  def seeds(self, count: int) -> list['Pretraining']:
    """Returns `count` pre-trainings that differ only in their seed."""
    return [dataclasses.replace(self, seed=seed) for seed in range(count)]


@dataclasses.dataclass(frozen=True)
class Transfer:
  """Fine-tuning of a pre-trained model on a task, several times.

  Attributes:
    pretraining: what it starts from.
    task: a data set as the paper's tables name it.
    resolution: in pixels; above 384, with Polyak averaging as for Table 2.
    options: config key -> value, for settings that differ from Table 4.
    label: describes the options; part of the runs' names.
  """

  pretraining: Pretraining
  task: str
  resolution: int = 384
  options: tuple[tuple[str, Value], ...] = ()
  label: str = ''

  @property
  def name(self) -> str:
    size = f' at {self.resolution} px' if self.resolution != 384 else ''
    label = f', {self.label}' if self.label else ''
    return f'{self.pretraining.name} to {self.task}{size}{label}'


@dataclasses.dataclass(frozen=True)
class Vtab:
  """Fine-tuning on the 1,000 images of a task of VTAB.

  Attributes:
    pretraining: what it starts from.
    task: as Table 9 prints it.
  """

  pretraining: Pretraining
  task: str

  @property
  def name(self) -> str:
    return f'{self.pretraining.name} to VTAB {self.task}'


Node = Pretraining | Transfer | Vtab


def structure(scale: str) -> str:
  """Returns which runs a scale has: 'mini' has its own, 'midi' the paper's."""
  return 'mini' if scale == 'mini' else 'paper'


def pretraining(model: str, data: str) -> Pretraining:
  """Returns the pre-training of a model on a data set in Tables 2 and 5."""
  epochs = None
  if data == JFT:
    epochs = 14 if model in _LONG else 7
  return Pretraining(model, data, epochs)


def vtab_nodes(start: Pretraining, group: str = 'mean') -> list[Vtab]:
  """Returns a model's fine-tuning on tasks of VTAB, see `tasks.titles`."""
  return [Vtab(start, title) for title in tasks.titles(group)]


def start_of(node: Node) -> Pretraining:
  """Returns the pre-training that a node is or starts from."""
  return node if isinstance(node, Pretraining) else node.pretraining


def with_start(node: Node, start: Pretraining) -> Node:
  """Returns the same run of another pre-training."""
  if isinstance(node, Pretraining):
    return start
  return dataclasses.replace(node, pretraining=start)


def first(node: Node) -> Node:
  """Returns the same run of the first pre-training of its kind."""
  return with_start(node, dataclasses.replace(start_of(node), seed=0))


def with_needs(nodes: Iterable[Node]) -> list[Node]:
  """Returns each node once, after the pre-training that it starts from."""
  found: dict[Node, None] = {}
  for node in nodes:
    found[start_of(node)] = None
    found[node] = None
  # Pre-trainings first: all else waits for them.
  return sorted(found, key=lambda node: not isinstance(node, Pretraining))


@dataclasses.dataclass(frozen=True)
class Results:
  """Our numbers, from the files of finished runs.

  Attributes:
    studies: each has the name of the node whose runs it contains.
    finished: run -> its last numbers, see `bring_to_end.read_finished`.
    scale: one of `SCALES`.
    workdir: run -> its work directory; None if only numbers are known.
    days: name of a pre-training -> estimated TPUv3-core-days, see
      `planning.core_days`.
    counts: of an item: first pre-training -> number of those that differ only
      in their seed; 1 for all others.
    weights: name of a pre-training -> numbers from its weights, see
      `inside.measure`.
  """

  studies: Iterable[Study]
  finished: Mapping[str, Mapping[str, float]]
  scale: str = 'paper'
  workdir: Callable[[str], epath.Path | None] = lambda name: None
  days: Mapping[str, float] = dataclasses.field(default_factory=dict)
  counts: Mapping[Pretraining, int] = dataclasses.field(default_factory=dict)
  weights: Mapping[str, Mapping[str, float]] = dataclasses.field(
    default_factory=dict
  )

  @functools.cached_property
  def _studies(self) -> dict[str, Study]:
    return {study.name: study for study in self.studies}

  @property
  def comparable(self) -> bool:
    """Whether the runs use the paper's own models and data."""
    return self.scale == 'paper'

  @property
  def mark(self) -> str:
    """What every picture and heading says above all else; '' for nothing."""
    return '' if self.comparable else MINIATURE

  def seeds(self, start: Pretraining) -> list[Pretraining]:
    """Returns the pre-trainings of an item that differ only in their seed."""
    return start.seeds(self.counts.get(start, 1))

  def core_days(self, start: Pretraining) -> Number | None:
    """Returns TPUv3-core-days as estimated by `vit_jax.plan`, not measured."""
    days = self.days.get(start.name)
    return None if days is None else Number((days,), (f'plan: {start.name}',))

  # Runs. ----------------------------------------------------------------------

  def _part(self, nodes: Iterable[Node]) -> list[Study]:
    """Returns the studies of nodes and of the pre-trainings they start from."""
    # Some tasks of VTAB have no miniature.
    return [self._studies[n.name] for n in with_needs(nodes) if self.has(n)]

  def known(self, nodes: Iterable[Node]) -> list[Run]:
    """Returns the known runs of nodes and of the pre-trainings they need."""
    return [
      run
      for study in self._part(nodes)
      for run in schedule.known(study, self.finished)
    ]

  def progress(self, nodes: Sequence[Node]) -> tuple[int, int]:
    """Returns how many of these runs are finished, and how many there are."""
    done = {run.name for run in self.known(nodes)} & {*self.finished}
    total = schedule.total(Sweep(self._part(nodes)), self.finished)
    return len(done), total

  def reported(self, node: Node) -> list[tuple[Run, epath.Path | None]]:
    """Returns a node's runs with their work directories; None: unfinished.

    The list is empty while the runs are not known.
    """
    study = self._studies.get(node.name)
    runs = schedule.reported(study, self.finished) if study else None
    return [
      (run, self.workdir(run.name) if run.name in self.finished else None)
      for run in runs or ()
    ]

  def folder(self, node: Node) -> epath.Path | None:
    """Returns the work directory of a node's first run; None if unfinished."""
    return next((place for _, place in self.reported(node)), None)

  def has(self, node: Node) -> bool:
    """Whether a node has runs at this scale, finished or not."""
    return node.name in self._studies

  # Numbers. -------------------------------------------------------------------

  def number(
    self, nodes: Iterable[Node], metric: str, *, scale: float = 100.0
  ) -> Number | None:
    """Returns the mean of a metric over all runs of some nodes.

    Args:
      nodes: they may differ in their seed.
      metric: such as `test/accuracy`.
      scale: factor for the values: accuracies are fractions in the files, and
        percentages in most of the paper.

    Returns:
      None if any of the runs is missing, or lacks the number.
    """
    found: dict[str, float | None] = {}
    for node in nodes:
      runs = self.reported(node)
      if not runs:
        return None
      for run, _ in runs:
        found[run.name] = self.finished.get(run.name, {}).get(metric)
    return _number(found, scale)

  def early_stopped(
    self, nodes: Iterable[Node], metric: str, *, scale: float = 100.0
  ) -> Number | None:
    """Returns the mean of a metric at each run's best step (Section 4.3).

    The metric in the run's own `checkpoint.best` chooses the step, or without
    one the accuracy of its evaluation `validation`.

    Args: as for `number`.

    Returns:
      None if any of the runs is missing, lacks the number, or has no metric to
      choose a step by.
    """
    found: dict[str, float | None] = {}
    for node in nodes:
      folder = self.folder(node)
      if folder is None:
        return None
      best = config_lib.load(folder)['checkpoint']['best']
      by = best or 'validation/accuracy'
      if results.best_value(by, metrics.read(folder)) is None:
        return None
      [run, _], *_ = self.reported(node)
      found[run.name] = results.best_row(folder, by).get(metric)
    return _number(found, scale)

  def curve(
    self, nodes: Sequence[Node], metric: str, *, scale: float = 100.0
  ) -> list[tuple[float, Number]]:
    """Returns a metric during similar runs: (fraction of the steps, value).

    The list is empty while a run is missing. Steps that some runs lack are left
    out.
    """
    curves = {}
    for node in nodes:
      folder = self.folder(node)
      if folder is None:
        return []
      rows = [row for row in metrics.read(folder) if metric in row]
      [run, _], *_ = self.reported(node)
      curves[run.name] = {row['step']: row[metric] for row in rows}
    steps = set.intersection(*map(set, curves.values()))
    last = max(steps, default=1)
    return [
      (
        step / last,
        _number({name: c[step] for name, c in curves.items()}, scale),
      )
      for step in sorted(steps)
    ]

  def average_few_shot(
    self, nodes: Sequence[Node], *, scale: float = 100.0
  ) -> Number | None:
    """Returns the mean 5-shot accuracy over all data sets in the runs' configs.

    None if any of the runs is missing, or lacks one of the data sets.
    """
    folders = [self.folder(node) for node in nodes]
    if None in folders:
      return None
    names = {
      f'{name}/5shot/accuracy'
      for folder in folders
      for name, section in config_lib.load(folder)['evals'].items()
      if section['kind'] == 'few_shot'
    }
    found = [self.number(nodes, name, scale=scale) for name in sorted(names)]
    return across(found)


def across(found: Sequence[Number | None]) -> Number | None:
  """Returns the mean over data sets, run by run.

  Args:
    found: one for each data set, with values in the same order of seeds.

  Returns:
    One value for each run; None if a number is missing or if `found` is empty.
  """
  if not found or None in found:
    return None
  columns = zip(*(number.values for number in found), strict=True)
  runs = zip(*(number.runs for number in found), strict=True)
  return Number(
    tuple(statistics.fmean(column) for column in columns),
    tuple(' + '.join(dict.fromkeys(names)) for names in runs),
  )


def _number(found: Mapping[str, float | None], scale: float) -> Number | None:
  if not found or None in found.values():
    return None
  return Number(tuple(scale * x for x in found.values()), tuple(found))
