"""Guards: Figures 4, 9 and 13 have the right runs, points and answers."""

import dataclasses
import pathlib

import pandas as pd
import pytest

from tests.paper import fewshot, made
from vit_jax.inference_speed import store
from vit_jax.paper.design import Design
from vit_jax.paper.items import curve_items
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Picture
from vit_jax.paper.runs import Pretraining


@pytest.fixture
def drawn(monkeypatch):
  """Collects each figure and its rows, instead of writing its files."""
  kept = []
  monkeypatch.setattr(
    curve_items.drawing,
    'save',
    lambda figure, stem, rows, *, mark: kept.append((figure, rows)),
  )
  # The configs of these runs do not describe their models.
  monkeypatch.setattr(curve_items.cost, 'exaflops_of_run', _exaflops)
  return kept


def _exaflops(workdir):
  """Returns the exaFLOPs of a run of Figure 13, for the models below."""
  model, data, epochs = str(workdir).split('/run of ')[1].split(', ')
  assert (data, epochs) == ('JFT-300M', '28 epochs')
  return {
    'BiT-R50x1': 2e-7,
    'BiT-R50x2': 8e-7,
    'ViT-B/32': 9.6e-7,
    'ViT-B/16': 3.5e-6,
    'Axial-ViT-B/32': 2e-6,
    'Axial-ViT-B/16': 7e-6,
    'AxialResNet50': 5e-7,
  }[model]


# Model -> accuracies with 9, 90 and 300 million images, as in Figure 4. The
# first three are in claims at both scales.
FIGURE_4 = {
  'ViT-B/32': (0.31, 0.54, 0.6),
  'ViT-L/32': (0.26, 0.5, 0.66),
  'BiT-R50x2': (0.42, 0.5, 0.56),
  'BiT-R50x1': (0.41, 0.5, 0.55),
  'ViT-L/16': (0.2, 0.6, 0.7),
  'BiT-R152x2': (0.45, 0.55, 0.6),
}


def _early(best):
  """Returns metrics of a run that validates best at its first evaluation."""
  return {
    100: {'validation/accuracy': 0.5, fewshot.IMAGENET: best},
    200: {'validation/accuracy': 0.4, fewshot.IMAGENET: 0.01},
  }


def _figure4(node, sign=1):
  """Returns metrics; with sign=-1 they contradict all claims of Figure 4."""
  found = dict(
    zip(
      (9_000_000, 90_000_000, None),
      FIGURE_4.get(node.model, (0.25, 0.25, 0.25)),
      strict=True,
    )
  )
  mean = found.get(node.images, 0.25)
  return _early(0.5 + sign * (mean - 0.5) + (node.seed - 1) / 500)


@pytest.mark.parametrize(
  ('scale', 'resnet', 'shown'),
  [('paper', 'BiT-R50x1', 24), ('mini', 'BiT-R50x2', 26)],
)
def test_figure_4_has_seeds_of_the_runs_that_claims_need(scale, resnet, shown):
  item = curve_items.figure4()
  nodes = Design(scale, 3).nodes(item)
  assert len(item.shown_at(scale)) == shown
  assert len({node.name for node in nodes}) == len(nodes) == shown + 2 * 14
  assert {
    (node.data, node.epochs, node.options, node.few_shot) for node in nodes
  } == {(values.JFT, 7, (), 'imagenet')}
  ends = (9_000_000, None)
  models = ('ViT-B/32', resnet, 'ViT-L/16', 'BiT-R152x2')
  for seed in (1, 2):
    assert {(n.model, n.images) for n in nodes if n.seed == seed} == {
      *((model, n) for model in models for n in (*ends, 90_000_000)),
      *(('ViT-L/32', n) for n in ends),
    }


def test_figure_4_uses_early_stopping(tmp_path, drawn):
  item = curve_items.figure4()
  results = fewshot.of_item(tmp_path, item, _figure4)
  section = item.render(results, tmp_path / 'figures')
  [(figure, rows)] = drawn
  ours = rows[rows.source == 'ours'].set_index(['series', 'x'])
  assert len(ours) == 24
  row = ours.loc['BiT-R50x1', 9_000_000]
  assert row['mean'] == pytest.approx(41)
  assert row['std'] == pytest.approx(0.2)
  assert row['n'] == 3
  assert ours.loc['ViT-B/32', 300_000_000]['mean'] == pytest.approx(60)
  # No claim needs this point: it has a single run.
  assert ours.loc['ViT-L/16', 30_000_000]['mean'] == pytest.approx(24.8)
  assert ours.loc['ViT-L/16', 30_000_000]['n'] == 1
  assert figure.axes[0].get_xlabel() == 'Number of JFT-300M images'
  [picture] = section.blocks
  assert picture.stem == 'figures/figure4'
  found = made.said(item, results)
  assert 'BiT-R50x1, JFT-300M, 7 epochs, 9M images 41.00 ± 0.20 (3 pre' in (
    found['resnet_first_small'].evidence
  )


@pytest.mark.parametrize(
  ('scale', 'sign', 'answer'), [('paper', 1, 'yes'), ('mini', -1, 'no')]
)
def test_the_claims_of_figure_4_follow_the_numbers(
  scale, sign, answer, tmp_path
):
  item = curve_items.figure4()
  results = fewshot.of_item(
    tmp_path, item, lambda node: _figure4(node, sign), scale=scale
  )
  found = made.said(item, results)
  assert [claim.answer for claim in found.values()] == [answer] * 7
  # In miniature, BiT-R50x2 has about the same compute as ViT-B/32.
  resnet = {'paper': 'BiT-R50x1', 'mini': 'BiT-R50x2'}[scale]
  assert f'{resnet} is ahead of ViT-B/32' in (
    found['resnet_first_small'].statement
  )


def test_a_missing_seed_removes_its_point_from_figure_4(tmp_path, drawn):
  item = curve_items.figure4()
  gone = Pretraining('ViT-L/32', values.JFT, 7, images=9_000_000, seed=2)
  results = fewshot.of_item(tmp_path, item, _figure4, left_out=[gone])
  item.render(results, tmp_path / 'figures')
  assert len(drawn[0][1]) == 23
  found = made.answered(item, results)
  assert {key for key, answer in found.items() if answer == 'missing'} == {
    *('larger_needs_data', 'data_help')
  }
  assert set(found.values()) == {'yes', 'missing'}


def test_figure_9_compares_three_heads_and_learning_rates():
  token, high, low = curve_items.figure9().nodes
  assert token == Pretraining('ViT-B/16', values.JFT, 7)
  # The head is linear, without a hidden layer before it.
  linear = (('model.pooling', 'gap'), ('model.representation_size', 0))
  assert high.options == linear
  assert low.options == (*linear, ('schedule.peak', 3e-4))
  assert high.name == 'ViT-B/16, JFT-300M, 7 epochs, GAP, lr 8e-4'
  assert low.name == 'ViT-B/16, JFT-300M, 7 epochs, GAP, lr 3e-4'
  # In miniature, they need more steps to learn positions.
  assert curve_items.figure9().shown_at('mini') == tuple(
    dataclasses.replace(node, epochs=28) for node in (token, high, low)
  )


def test_figure_9_shows_accuracy_by_epoch(tmp_path, drawn):
  token, high, low = curve_items.figure9().nodes
  curves = {token: (0.3, 0.5, 0.6), high: (0.1, 0.2, 0.3), low: (0.4, 0.5, 0.7)}
  runs = {
    node: {
      step: {fewshot.IMAGENET: value}
      for step, value in zip((500, 1000, 2000), found, strict=True)
    }
    for node, found in curves.items()
  }
  results = fewshot.results(tmp_path, runs)
  section = curve_items.figure9().render(results, tmp_path / 'figures')
  [(_, rows)] = drawn
  found = {
    series: list(zip(part['x'], part['mean'], strict=True))
    for series, part in rows.groupby('series', sort=False)
  }
  assert found == {
    'CLS-Token, lr=8e-4': [(1.75, 30), (3.5, 50), (7, 60)],
    'GAP, lr=8e-4': [(1.75, 10), (3.5, 20), (7, 30)],
    'GAP, lr=3e-4': [(1.75, 40), (3.5, 50), (7, 70)],
  }
  [picture] = section.blocks
  assert picture.stem == 'figures/figure9'
  # A single run of each does not decide the claim.
  assert made.answered(curve_items.figure9(), results) == {
    'lower_rate': 'seen once'
  }


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize(
  ('token', 'high', 'low', 'answer'),
  [
    (0.6, 0.3, 0.59, 'yes'),
    # Nearer to the mean over patches at the same rate.
    (0.6, 0.3, 0.4, 'no'),
    (0.2, 0.3, 0.29, 'no'),
  ],
)
def test_the_claim_of_figure_9_follows_the_numbers(
  token, high, low, answer, scale, tmp_path
):
  item = curve_items.figure9()
  means = {'': token, 'GAP, lr 8e-4': high, 'GAP, lr 3e-4': low}

  def metrics(node):
    # The claim is about the end of the runs.
    end = {fewshot.IMAGENET: means[node.label] + node.seed / 1000}
    return {1: {fewshot.IMAGENET: 0.5}, 2: end}

  results = fewshot.of_item(tmp_path, item, metrics, scale=scale)
  assert made.answered(item, results) == {'lower_rate': answer}


def _figure13(tmp_path, *, scale='paper', count=1):
  item = curve_items.figure13()
  means = {n.model: 0.5 + place / 100 for place, n in enumerate(item.nodes)}
  results = fewshot.of_item(
    tmp_path,
    item,
    lambda node: {7: {fewshot.IMAGENET: means[node.model] + node.seed / 1000}},
    scale=scale,
    count=count,
  )
  return item.render(results, tmp_path / 'figures')


def _measure(tmp_path, name, scale, speeds, device='a GPU'):
  """Writes a file of Figure 12; speeds: (model, size) -> images per second."""
  path = tmp_path / 'measured' / name
  unit = 'core' if device.endswith('Core') else 'device'
  found = store.Measured(store.Settings(device, scale, unit, 1, 'float32'))
  for (model, size), speed in speeds.items():
    found = store.add(path, found, store.Entry(model, size, speed, 8, 64))


def _speeds(drawn):
  [(_, rows)] = drawn
  ours = rows[(rows.source == 'ours') & (rows.panel == 'right')]
  return ours[ours.x.notna()].set_index('series').x.to_dict()


def test_figure_13_shows_six_models_by_compute_and_speed(tmp_path, drawn):
  _measure(
    tmp_path,
    'figure12.json',
    'paper',
    {
      ('ViT-B/32', 224): 1000.0,
      ('ViT-B/16', 384): 7.0,
      ('AxialResNet50', 224): 20.0,
      ('ViT-H/14', 224): 5.0,
    },
  )
  section = _figure13(tmp_path)
  [(figure, rows)] = drawn
  ours = rows[rows.source == 'ours'].set_index(['series', 'panel'])
  left = ours.xs('left', level='panel')
  assert left['mean'].round(2).to_dict() == {
    **{'ViT-B/32': 0.5, 'ViT-B/16': 0.51, 'Axial-ViT-B/32': 0.52},
    **{'Axial-ViT-B/16': 0.53, 'AxialResNet50': 0.54, 'BiT-R50x1': 0.55},
  }
  # These follow from the sizes of the models and agree with Table 6.
  for model, exaflops in (
    ('ViT-B/32', 56),
    ('Axial-ViT-B/32', 108),
    ('Axial-ViT-B/16', 426),
    ('BiT-R50x1', 50),
  ):
    assert left.x[model] == pytest.approx(exaflops, rel=0.02)
  assert _speeds(drawn) == {'ViT-B/32': 1000, 'AxialResNet50': 20}
  assert figure.axes[1].get_xlabel() == 'Peak speed (images/s/device)'
  assert section.blocks[0].stem == 'figures/figure13'
  assert section.blocks[0].caption.endswith('as for Figure 12: a GPU.')
  assert section.missing == [
    'The speed of ViT-B/16, Axial-ViT-B/32, Axial-ViT-B/16, BiT-R50x1 is not'
    ' measured yet. The item figure12 measures these speeds.'
  ]


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize(
  ('small', 'base', 'answer'),
  [(0.52, 0.54, 'yes'), (0.52, 0.48, 'no'), (0.48, 0.54, 'no')],
)
def test_the_claim_of_figure_13_needs_both_axial_models_ahead(
  small, base, answer, scale, tmp_path
):
  item = curve_items.figure13()
  axial = {'Axial-ViT-B/32': small, 'Axial-ViT-B/16': base}
  results = fewshot.of_item(
    tmp_path,
    item,
    lambda node: {
      7: {fewshot.IMAGENET: axial.get(node.model, 0.5) + node.seed / 1000}
    },
    scale=scale,
  )
  assert made.answered(item, results) == {'axial': answer}


def test_speeds_of_the_papers_device_replace_missing_measurements(
  tmp_path, drawn
):
  v3 = {('ViT-B/16', 224): 11.0}
  _measure(tmp_path, 'figure12_v3.json', 'paper', v3, 'TPU v3 TensorCore')
  # This file has no speed at 224 px yet.
  _measure(tmp_path, 'figure12.json', 'paper', {('ViT-B/16', 64): 99.0})
  section = _figure13(tmp_path)
  assert _speeds(drawn) == {'ViT-B/16': 11}
  assert section.blocks[0].caption.endswith('Figure 12: TPU v3 TensorCore.')


@pytest.mark.parametrize('name', ['figure4', 'figure9', 'figure13'])
def test_without_runs_figures_are_empty_and_claims_missing(tmp_path, name):
  item = getattr(curve_items, name)()
  folder = tmp_path / 'figures'
  folder.mkdir()
  results = fewshot.results(tmp_path, {})
  section = item.render(results, folder)
  assert section.name == item.name == name
  [picture] = section.blocks
  assert isinstance(picture, Picture)
  assert set(made.answered(item, results).values()) == {'missing'}
  assert pathlib.Path(tmp_path, picture.stem + '.png').exists()
  rows = pd.read_csv(tmp_path / f'{picture.stem}.csv')
  assert 'ours' not in set(rows.source)
