"""Figure 12: speed and memory of inference by image size (Appendix D.5).

It needs no runs: a file of `vit_jax.inference_speed`, in WORKDIR/measured, has
the speeds of the local device, which Figure 13 shows, too. A device is one
sample, so the answers to the claims are 'seen once' or 'not seen'. The paper
says neither which models are similar nor how much is comparable or clear. These
are choices, which were made before any measurement was looked at.
"""

import contextlib
import itertools
import math
import pathlib
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

from vit_jax.inference_speed import networks, store
from vit_jax.paper import answers, plots
from vit_jax.paper.item import Item, Part
from vit_jax.paper.report import Claim, Missing, Number
from vit_jax.paper.runs import Results

# In WORKDIR/measured.
FILE = 'figure12.json'


def _command(*words: str) -> list[str]:
  return ['-m', 'vit_jax.inference_speed', *words]


def measure(results: Results, folder: pathlib.Path, data: str) -> None:
  """Measures the local device, in a separate process.

  At the paper's scale, a CPU would take days, so the TPU compiler, if it is
  installed, estimates a TPU v3 core instead.

  Raises:
    ValueError: measuring failed, or there is neither accelerator nor compiler.
  """
  words = [f'--to={folder / FILE}']
  if results.scale != 'paper':
    words = ['--mini', *words]
  elif _on_cpu():
    words = ['--device=v3', *words]
  command = _command(*words)
  result = subprocess.run([sys.executable, *command], check=False)
  if result.returncode:
    raise ValueError(
      f'figure12: {shlex.join(["python", *command])} ended with exit code'
      f' {result.returncode}; its output says why. The same command continues'
      ' where it ended.'
    )


def _on_cpu() -> bool:
  """Asks another process whether JAX has a CPU only: this takes no device."""
  found = subprocess.run(
    [sys.executable, '-c', 'import jax; print(jax.default_backend())'],
    capture_output=True,
    text=True,
    check=False,
  )
  # Where JAX fails, measuring says why.
  return found.stdout.split()[-1:] == ['cpu']


def read(folder: pathlib.Path, scale: str) -> store.Measured | None:
  """Returns the measurements, None if there are none of this scale.

  Args:
    folder: WORKDIR/measured.
    scale: one of `SCALES`.

  Raises:
    ValueError: the file is damaged.
  """
  measured = store.read(folder / FILE)
  there = measured and measured.settings.scale == timed(scale)
  return measured if there else None


def progress(scale: str, folder: pathlib.Path) -> tuple[int, int]:
  """Returns how many measurements are done, and how many exist."""
  pairs, measured = networks.pairs((), (), timed(scale)), read(folder, scale)
  return sum(bool(measured and measured.find(*p)) for p in pairs), len(pairs)


def timed(scale: str) -> str:
  """Returns the scale that is timed: all but the paper's time miniatures."""
  return 'paper' if scale == 'paper' else 'mini'


def described(settings: store.Settings) -> str:
  """Returns how the numbers were found."""
  how = 'Speed is measured'
  if settings.correction is not None:
    how = "Speed is the TPU compiler's estimate"
  return (
    f'{how} for one {settings.unit}, in {settings.dtype}, at the fastest batch'
    ' size. A batch fits if, by the compiler, its program takes at most'
    f' {settings.memory_bytes / 2**30:.2f} GiB.'
  )


def missing(folder: pathlib.Path, scale: str) -> str:
  """Returns what to do if nothing is measured yet."""
  words = ['--mini'] if timed(scale) == 'mini' else []
  command = shlex.join(['python', *_command(*words, f'--to={FILE}')])
  return (
    f'Speeds are not measured yet at the scale {timed(scale)!r}. The item'
    ' figure12 measures them on this machine. To measure on another machine,'
    f' run {command} there, and copy the file to {folder / FILE} here.'
  )


# Answers to the claims. -------------------------------------------------------

# Scale -> ViTs with the ResNets that are similar: the operations of a forward
# pass at the size of pre-training are within this factor of each other.
SIMILAR_FACTOR = 1.6
SIMILAR = {
  'paper': (
    ('ViT-B/32', 'BiT-R50x1'),
    ('ViT-L/32', 'BiT-R50x2'),
    ('ViT-B/16', 'BiT-R50x2'),
    ('ViT-H/14', 'BiT-R152x4'),
  ),
  'mini': (
    ('ViT-B/32', 'BiT-R50x2'),
    ('ViT-L/32', 'BiT-R152x4'),
    ('ViT-B/16', 'BiT-R152x4'),
  ),
}
# The two ViTs with the most operations.
LARGEST = ('ViT-L/16', 'ViT-H/14')
_VITS = tuple(name for name in networks.MODELS if name.startswith('ViT'))
# Speeds within this factor are comparable.
_COMPARABLE = 2.0
# Batches that are larger by this factor are clearly larger.
_CLEARLY = 1.5
# More than the number of pixels, the second power of the side, by more than the
# errors of two speeds. By their operations, the largest models have 2.22
# between the largest sizes of the paper.
_BEGINS = 2.1
# Half-way from the second power to the fourth.
_BELOW = 3.0
_OF_EACH = (
  'for each pair, on the geometric mean over sizes. Similar are models whose'
  ' operations at the size of pre-training differ by a factor of'
  f' {SIMILAR_FACTOR:g} at most.'
)
_SPEED = (
  'The speed of ViTs is comparable to that of similar ResNets (D.5, Figure 12).'
)
_MEMORY = (
  'Large ViTs are clearly more memory-efficient than ResNets: larger batches'
  ' fit into the memory (D.5, Figure 12).'
)
_GROWTH = (
  "In theory, a ViT's time for an image grows with the fourth power of the"
  " image's side. This begins to show only for the largest models at the"
  ' largest sizes (D.5, Figure 12).'
)
# Whether a claim holds, and the numbers behind that.
_Tested = tuple[bool, str]


def of_measured(measured: store.Measured | None, scale: str) -> list[Claim]:
  """Returns the answers to the three claims, which need all measurements.

  Args:
    measured: the measurements of a device; None: there are none.
    scale: 'paper' or 'mini', the scale of the measured models.
  """
  lacking = [
    f'{model} at {size} px'
    for model in networks.MODELS
    for size in networks.SIZES[scale]
    if measured is None or measured.find(model, size) is None
  ]
  found = []
  for statement, test in (
    *((_SPEED, _speed), (_MEMORY, _memory), (_GROWTH, _growth)),
  ):
    answer = answers.MISSING
    if lacking:
      said = f'Not measured yet: {len(lacking)} speeds, such as {lacking[0]}.'
    else:
      said = f'{measured.settings.device}: too few models fit the memory.'
      with contextlib.suppress(statistics.StatisticsError):  # A mean of none.
        holds, numbers = test(measured)
        answer = answers.SEEN if holds else answers.NOT_SEEN
        said = f'{measured.settings.device}, one sample: {numbers}'
    found.append(Claim(statement, answer, said))
  return found


def _speed(measured: store.Measured) -> _Tested:
  pairs = SIMILAR[measured.settings.scale]
  ratios, said = _ratios(measured, pairs, 'images_per_second')
  return all(1 / _COMPARABLE <= ratio <= _COMPARABLE for ratio in ratios), (
    f'images a second, {said} Comparable is a factor of {_COMPARABLE:g} at'
    f' most, {_OF_EACH}'
  )


def _memory(measured: store.Measured) -> _Tested:
  pairs = SIMILAR[measured.settings.scale]
  large = [pair for pair in pairs if not pair[0].startswith('ViT-B')]
  ratios, said = _ratios(measured, large, 'largest_batch')
  return min(ratios) >= _CLEARLY, (
    f'largest batch, {said} Clearly is a factor of {_CLEARLY:g} at least,'
    f' {_OF_EACH}'
  )


def _ratios(
  measured: store.Measured, pairs: Sequence[tuple[str, str]], field: str
) -> tuple[list[float], str]:
  """Returns each pair's ratio of a field, and these in words.

  It is a geometric mean over the sizes at which both models fit the memory.
  """
  found = []
  for pair in pairs:
    both = [
      [getattr(measured.find(model, size), field) for model in pair]
      for size in networks.SIZES[measured.settings.scale]
    ]
    ratios = (vit / resnet for vit, resnet in both if vit and resnet)
    found.append(statistics.geometric_mean(ratios))
  each = (
    f'{vit} by {resnet} {ratio:.2f}'
    for (vit, resnet), ratio in zip(pairs, found, strict=True)
  )
  return found, f'ViT by ResNet: {"; ".join(each)}.'


def _growth(measured: store.Measured) -> _Tested:
  """Compares the power of the side that the time of an image grows with."""
  sizes = networks.SIZES[measured.settings.scale]
  last, others = {}, {}
  for model in _VITS:
    for low, high in itertools.pairwise(sizes):
      fast, slow = (
        measured.find(model, size).images_per_second for size in (low, high)
      )
      if fast and slow:
        largest = model in LARGEST and high == sizes[-1]
        power = math.log(fast / slow) / math.log(high / low)
        (last if largest else others)[model, high] = power
  begins = statistics.fmean(last.values())
  model, size = max(others, key=others.get)
  models = ' and '.join(name for name, _ in last)
  return begins > _BEGINS and others[model, size] < _BELOW, (
    'power of the side by which the time of an image grows, between'
    f' neighbouring sizes: {begins:.2f} for {models} up to {sizes[-1]} px; at'
    f' most {others[model, size]:.2f} elsewhere ({model} up to {size} px). The'
    ' number of pixels grows with the power 2. The claim needs more than'
    f' {_BEGINS:g} for the former, and less than {_BELOW:g} elsewhere.'
  )


# Figure 12. -------------------------------------------------------------------

_TITLE = 'Inference speed and largest batch by input size'


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  folder = pictures.parent / 'measured'
  measured = read(folder, results.scale)
  title, caption = _TITLE, 'Models that do not fit the memory are not drawn.'
  if measured:
    title = f'{_TITLE}: {measured.settings.device}'
    caption += f' {described(measured.settings)}'
  points = [
    (entry.model, entry.size, Number((float(found),), ('',)), panel)
    for entry in (measured.entries if measured else ())
    # The axial models are Figure 13's, in the same file.
    if 'Axial' not in entry.model
    for panel, found in (
      ('left', entry.images_per_second),
      ('right', entry.largest_batch),
    )
    if found  # The y axis is logarithmic.
  ]
  yield plots.picture(
    *('figure12', title, caption, points, pictures, results),
    x_label='Input size (px)',
    y_label=('Peak speed (images/s)', 'Largest batch that fits'),
    panels={'left': '', 'right': ''},
    log_y=True,
    x_ticks=networks.SIZES[timed(results.scale)],
  )
  yield from of_measured(measured, timed(results.scale))
  if not measured:
    yield Missing(missing(folder, results.scale))


ITEM = Item(
  'figure12',
  _TITLE,
  _blocks,
  measure=measure,
  measured=progress,
)
