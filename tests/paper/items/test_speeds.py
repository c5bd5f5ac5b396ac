"""Guards: Figure 12 is drawn from files, which a separate process measures."""

import itertools
import pathlib
import types

import pytest

from vit_jax import accounting
from vit_jax.inference_speed import networks, store
from vit_jax.pages import drawing
from vit_jax.paper.items.figures import figure12
from vit_jax.paper.page import texts
from vit_jax.paper.runs import Results

SPEED, MEMORY, GROWTH = range(3)
LARGEST = ('ViT-L/16', 'ViT-H/14')


def test_measurements_become_figure_12(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(drawing, 'save', lambda *args, mark: drawn.append(args))
  settings = store.Settings('a cpu', 'mini', 'device', 2**30, 'float32')
  found = store.Measured(settings)
  for entry in (
    store.Entry('ViT-B/32', 40, 1000.0, 8, 200),
    store.Entry('ViT-B/32', 24, 2000.0, 8, 400),
    store.Entry('Axial-ViT-B/32', 24, 1000.0, 8, 200),
  ):
    found = store.add(tmp_path / 'measured' / figure12.FILE, found, entry)
  results = Results([], {}, scale='mini')
  section = figure12.ITEM.render(results, tmp_path / 'figures')
  [picture, *claims] = section.blocks
  assert picture.title.endswith(': a cpu')
  # Two models are not enough for an answer.
  assert [claim.answer for claim in claims] == ['missing'] * 3
  total = len(networks.pairs((), (), 'mini'))
  details = f'0 of 3 claims, 3 of {total} measurements'
  assert texts.status(section).details == details
  [(figure, _, rows)] = drawn
  # The axial models are Figure 13's.
  assert [(r.panel, r.series, r.x, r.mean, r.n) for r in rows.itertuples()] == [
    *(('left', 'ViT-B/32', 40, 1000, 1), ('right', 'ViT-B/32', 40, 200, 1)),
    *(('left', 'ViT-B/32', 24, 2000, 1), ('right', 'ViT-B/32', 24, 400, 1)),
  ]
  # Lines go from small to large images.
  for axes in figure.axes:
    assert [*axes.lines[0].get_xdata()] == [24, 40]
  # Other models' files are left out.
  section = figure12.ITEM.render(Results([], {}), tmp_path / 'figures')
  assert section.missing


@pytest.mark.parametrize(
  ('scale', 'platform', 'expected'),
  [
    ('mini', 'cpu', ['--mini', '--to=a b/figure12.json']),
    ('paper', 'gpu', ['--to=a b/figure12.json']),
    ('paper', 'cpu', ['--device=v3', '--to=a b/figure12.json']),
  ],
)
def test_speed_is_measured_in_another_process(
  monkeypatch, scale, platform, expected
):
  ran = []

  def run(command, **_):
    if command[1] == '-c':  # Asks which platform JAX has.
      return types.SimpleNamespace(returncode=0, stdout=f'{platform}\n')
    ran.append(command[2:])
    return types.SimpleNamespace(returncode=code)

  monkeypatch.setattr(figure12.subprocess, 'run', run)
  results, folder, code = Results([], {}, scale=scale), pathlib.Path('a b'), 0
  figure12.ITEM.measure(results, folder, '')
  assert ran == [['vit_jax.inference_speed', *expected]]
  code = 3
  with pytest.raises(ValueError, match=r"'--to=a b/.*' ended with exit code 3"):
    figure12.ITEM.measure(results, folder, '')


# Claims. ----------------------------------------------------------------------


def _answers(speed, batch=lambda model: 100, scale='paper', left_out=()):
  """Returns the claims that follow from speeds by model and size."""
  found = store.Measured(
    store.Settings('a device', scale, 'core', 2**30, 'float32'),
    tuple(
      store.Entry(model, size, speed(model, size), 8, batch(model))
      for model, size in networks.pairs((), (), scale)
      if (model, size) not in left_out
    ),
  )
  return figure12.of_measured(found, scale)


def _by_pixels(model, size):
  del model
  return 1e9 / size**2


@pytest.mark.slow  # It counts the operations of all models at both scales.
@pytest.mark.parametrize('scale', networks.SCALES)
def test_similar_models_have_about_the_same_operations(scale):
  size = networks.PRETRAINING_SIZE[scale]
  macs = {
    name: accounting.forward_macs(networks.build(name, scale), (size, size))
    for name in networks.MODELS
  }
  resnets = [name for name in macs if name.startswith('BiT')]
  found = {
    (vit, resnet)
    for vit, resnet in itertools.product({*macs} - {*resnets}, resnets)
    if 1 / 1.6 < macs[vit] / macs[resnet] < 1.6
  }
  assert found == {*figure12.SIMILAR[scale]}
  vits = sorted({*macs} - {*resnets}, key=macs.get)
  assert vits[-2:] == [*figure12.LARGEST]


@pytest.mark.parametrize('scale', networks.SCALES)
@pytest.mark.parametrize(
  ('factor', 'speed', 'memory'),
  [
    *((1.9, 'seen once', 'seen once'), (0.6, 'seen once', 'not seen')),
    *((2.1, 'not seen', 'seen once'), (0.4, 'not seen', 'not seen')),
  ],
)
def test_speeds_and_batches_of_similar_models(scale, factor, speed, memory):
  found = _answers(
    lambda m, size: _by_pixels(m, size) * (factor if m == 'ViT-L/32' else 1),
    lambda m: int(100 * factor) if m[:5] in ('ViT-L', 'ViT-H') else 100,
    scale,
  )
  assert (found[SPEED].answer, found[MEMORY].answer) == (speed, memory)
  for claim in found[:2]:
    assert f' {factor:.2f}' in claim.evidence


@pytest.mark.parametrize(
  ('largest', 'elsewhere', 'answer'),
  [
    *((2.2, 2.0, 'seen once'), (3.9, 2.9, 'seen once')),
    # It does not begin; it is not only there.
    *((2.05, 1.9, 'not seen'), (3.9, 3.1, 'not seen')),
  ],
)
def test_the_fourth_power_is_only_of_the_largest(largest, elsewhere, answer):
  def speed(model, size):
    time = 1.0
    for low, high in itertools.pairwise(networks.SIZES['paper']):
      power = 1.5
      if model in LARGEST and high == 512:
        power = largest
      elif (model, high) == ('ViT-H/14', 384):
        power = elsewhere
      time *= (high / low) ** power if high <= size else 1
    return 1e6 / time

  claim = _answers(speed)[GROWTH]
  assert claim.answer == answer
  for part in (f'{largest:.2f} for', f'{elsewhere:.2f} elsewhere (ViT-H/14'):
    assert part in claim.evidence


def test_claims_without_their_measurements_are_missing():
  for claim in figure12.of_measured(None, 'mini'):
    assert claim.answer == 'missing'
  found = _answers(_by_pixels, left_out=[('BiT-R50x1', 384)])
  assert [c.answer for c in found] == ['missing'] * 3
  assert 'BiT-R50x1 at 384 px' in found[SPEED].evidence


def test_models_that_never_fit_leave_their_claims_open():
  found = _answers(
    lambda m, size: None if m == 'ViT-H/14' else _by_pixels(m, size),
    lambda m: 0 if m == 'ViT-H/14' else 100,
  )
  assert [c.answer for c in found] == ['missing', 'missing', 'not seen']
