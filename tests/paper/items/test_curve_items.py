"""Guards: Figures 4, 9 and 13 have the right runs, points and answers."""

import pathlib

import pandas as pd
import pytest

from tests.paper import fewshot
from vit_jax.inference_speed import store
from vit_jax.paper.claims import UNDECIDED
from vit_jax.paper.items import curve_items
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Claim, Picture
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
  """Returns the exaFLOPs of a run on all images, for the models below."""
  model, data, epochs = str(workdir).split('/run of ')[1].split(', ')
  assert (data, epochs) == ('JFT-300M', '7 epochs')
  return {
    'BiT-R50x1': 2e-7,
    'BiT-R50x2': 8e-7,
    'ViT-B/32': 9.6e-7,
    'ViT-B/16': 3.5e-6,
    'Axial-ViT-B/32': 2e-6,
    'Axial-ViT-B/16': 7e-6,
    'AxialResNet50': 5e-7,
  }[model]


def _early(best):
  """Returns metrics of a run that validates best at its first evaluation."""
  return {
    100: {'validation/accuracy': 0.5, fewshot.IMAGENET: best},
    200: {'validation/accuracy': 0.4, fewshot.IMAGENET: 0.01},
  }


def _figure4_runs(fewest, most, scale='paper'):
  """Returns the runs of Figure 4 with their metrics.

  Args:
    fewest: model -> accuracy with 9M images; 0.25 by default.
    most: model -> accuracy with all images; 0.25 by default.
    scale: 'paper' or 'mini'.
  """
  return {
    node: _early(
      {9_000_000: fewest, None: most}.get(node.images, {}).get(node.model, 0.25)
      + (node.seed - 1) / 100 * (node.model not in ('ViT-L/16', 'BiT-R152x2'))
    )
    for node in curve_items.figure4().nodes_at(scale)
  }


def test_figure_4_has_24_points_from_one_or_three_runs():
  nodes = curve_items.figure4().nodes
  assert len(nodes) == len({node.name for node in nodes}) == 56
  assert {
    (node.data, node.epochs, node.options, node.few_shot) for node in nodes
  } == {(values.JFT, 7, (), 'imagenet')}
  seeds = {}
  for node in nodes:
    seeds.setdefault((node.model, node.images), []).append(node.seed)
  for images in (9_000_000, 30_000_000, 90_000_000, None):
    assert seeds['ViT-L/16', images] == seeds['BiT-R152x2', images] == [0]
    for model in ('ViT-L/32', 'ViT-B/32', 'ViT-b/32', 'BiT-R50x1'):
      assert seeds[model, images] == [0, 1, 2]
  # The run on all images is Table 6's.
  assert Pretraining('ViT-L/32', values.JFT, 7) in nodes
  assert Pretraining('ViT-B/32', images=9_000_000).name == (
    'ViT-B/32, JFT-300M, 9M images'
  )


def test_figure_4_uses_early_stopping_and_answers_its_claims(tmp_path, drawn):
  runs = _figure4_runs(
    {'BiT-R50x1': 0.41, 'ViT-B/32': 0.31, 'ViT-L/32': 0.26, 'ViT-L/16': 0.2},
    {'BiT-R50x1': 0.55, 'ViT-B/32': 0.6, 'ViT-L/32': 0.66, 'ViT-b/32': 0.5},
  )
  results = fewshot.results(tmp_path, runs)
  section = curve_items.figure4().render(results, tmp_path / 'figures')
  [(figure, rows)] = drawn
  ours = rows[rows.source == 'ours'].set_index(['series', 'x'])
  assert len(ours) == 24
  row = ours.loc['BiT-R50x1', 9_000_000]
  assert row['mean'] == pytest.approx(41)
  assert row['std'] == pytest.approx(1)
  assert row['n'] == 3
  assert ours.loc['ViT-B/32', 300_000_000]['mean'] == pytest.approx(60)
  assert ours.loc['ViT-L/16', 9_000_000]['mean'] == pytest.approx(20)
  assert ours.loc['ViT-L/16', 9_000_000]['n'] == 1
  assert figure.axes[0].get_xlabel() == 'Number of JFT-300M images'
  picture, *said = section.blocks
  assert picture.stem == 'figures/figure4'
  assert [claim.answer for claim in said] == ['yes'] * 5
  assert 'BiT-R50x1 41.00 ± 1.00 (3 runs)' in said[0].evidence
  for claim in said[:2]:
    assert claim.evidence.endswith(
      'Compute of these runs: BiT-R50x1 50.2 exaFLOPs, ViT-B/32 56.1 exaFLOPs;'
      ' the ViT has 1.1 times that of the ResNet.'
    )
  # The claim covers all four models that have several runs.
  for model in ('ViT-L/32', 'ViT-B/32', 'ViT-b/32 25.00', 'BiT-R50x1'):
    assert model in said[3].evidence
  assert 'ViT-L/16' not in said[3].evidence


def test_figure_4_denies_claims_that_the_runs_contradict(tmp_path, drawn):
  runs = _figure4_runs(
    dict.fromkeys(('BiT-R50x1', 'BiT-R50x2'), 0.3)
    | {'ViT-B/32': 0.4, 'ViT-L/32': 0.5, 'ViT-b/32': 0.5},
    dict.fromkeys(('BiT-R50x1', 'BiT-R50x2'), 0.7)
    | {'ViT-B/32': 0.6, 'ViT-L/32': 0.6, 'ViT-b/32': 0.4},
    'mini',
  )
  results = fewshot.results(tmp_path, runs, comparable=False)
  section = curve_items.figure4().render(results, tmp_path / 'figures')
  assert [claim.answer for claim in section.blocks[1:]] == [
    *('no', 'no', 'no', 'no', 'yes')
  ]
  # In miniature, BiT-R50x2 has about the same compute as ViT-B/32.
  assert 'BiT-R50x2 30.00' in section.blocks[1].evidence
  assert 'BiT-R50x2 0.8 teraFLOPs, ViT-B/32 0.96' in section.blocks[2].evidence
  assert section.notes[0].startswith('ViT-L/16 and BiT-R152x2 are left out')
  [(figure, _)] = drawn
  assert figure.axes[0].get_xlabel() == (
    'JFT-300M images\n(pre-training images, in proportion)'
  )


def test_a_missing_seed_removes_its_point_from_figure_4(tmp_path, drawn):
  runs = _figure4_runs(
    {'BiT-R50x1': 0.41, 'ViT-B/32': 0.31, 'ViT-L/32': 0.26},
    {'BiT-R50x1': 0.55, 'ViT-B/32': 0.6, 'ViT-L/32': 0.66, 'ViT-b/32': 0.5},
  )
  del runs[Pretraining('ViT-L/32', values.JFT, 7, images=9_000_000, seed=2)]
  results = fewshot.results(tmp_path, runs)
  section = curve_items.figure4().render(results, tmp_path / 'figures')
  assert len(drawn[0][1]) == 23
  assert [claim.answer for claim in section.blocks[1:]] == [
    *('yes', 'yes', 'missing', 'missing', 'missing')
  ]


def test_figure_9_compares_three_heads_and_learning_rates():
  token, high, low = curve_items.figure9().nodes
  assert token == Pretraining('ViT-B/16', values.JFT, 7)
  # The head is linear, without a hidden layer before it.
  linear = (('model.pooling', 'gap'), ('model.representation_size', 0))
  assert high.options == linear
  assert low.options == (*linear, ('schedule.peak', 3e-4))
  assert high.name == 'ViT-B/16, JFT-300M, 7 epochs, GAP, lr 8e-4'
  assert low.name == 'ViT-B/16, JFT-300M, 7 epochs, GAP, lr 3e-4'


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
  picture, claim = section.blocks
  assert picture.stem == 'figures/figure9'
  assert claim.answer == UNDECIDED
  assert (
    'class token 60.00 (1 run); mean over patches 30.00 (1 run) at the same'
    ' learning rate, 70.00 (1 run) at the lower one.'
  ) in claim.evidence


def test_figure_9_in_miniature_averages_three_runs(tmp_path, drawn):
  nodes = curve_items.figure9().nodes_at('mini')
  runs = {
    node: {
      step: {fewshot.IMAGENET: step / 100 + node.seed / 10} for step in (10, 20)
    }
    for node in nodes
    if (node.label, node.seed) != ('GAP, lr 3e-4', 1)
  }
  # A resumed run can have logged further steps.
  runs[nodes[0]][5] = {fewshot.IMAGENET: 0.0}
  results = fewshot.results(tmp_path, runs, comparable=False)
  curve_items.figure9().render(results, tmp_path / 'figures')
  [(_, rows)] = drawn
  ours = rows[rows.source == 'ours'].set_index(['series', 'x'])
  assert ours['mean'].to_dict() == pytest.approx(
    {
      (label, epoch): accuracy
      for label in ('CLS-Token, lr=8e-4', 'GAP, lr=8e-4')
      for epoch, accuracy in ((3.5, 20), (7, 30))
    }
  )
  assert set(ours['n']) == {3}
  assert ours['std'].to_list() == pytest.approx([10] * 4)


@pytest.mark.parametrize('comparable', [True, False])
def test_figure_9_states_that_its_miniature_has_a_linear_head(
  tmp_path, drawn, comparable
):
  results = fewshot.results(tmp_path, {}, comparable=comparable)
  section = curve_items.figure9().render(results, tmp_path / 'figures')
  lacks = 'In miniature, the class token has a linear head' in (
    section.blocks[0].caption
  )
  assert lacks == (not comparable)


def _figure13(tmp_path, *, comparable=True):
  item = curve_items.figure13()
  runs = {
    node: {7: {fewshot.IMAGENET: 0.5 + place / 100}}
    for place, node in enumerate(item.nodes)
  }
  results = fewshot.results(tmp_path, runs, comparable=comparable)
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
  assert section.blocks[0].caption.endswith('speed of Figure 12: a GPU.')
  assert section.blocks[1].answer == UNDECIDED
  assert (
    'Axial-ViT-B/32 52.00 (1 run), ViT-B/32 50.00 (1 run), Axial-ViT-B/16 53.00'
    in section.blocks[1].evidence
  )
  assert section.missing == [
    'Not measured yet: the speed of ViT-B/16, Axial-ViT-B/32, Axial-ViT-B/16,'
    ' BiT-R50x1. Figure 12 measures it.'
  ]


def test_miniature_speeds_use_the_miniatures_image_size(tmp_path, drawn):
  models = [node.model for node in curve_items.figure13().nodes]
  speeds = {(model, size): size for model in models for size in (24, 224)}
  _measure(tmp_path, 'figure12.json', 'mini', speeds)
  section = _figure13(tmp_path, comparable=False)
  assert _speeds(drawn) == dict.fromkeys(models, 24)
  [(figure, rows)] = drawn
  assert set(rows.source) == {'ours'}
  left = rows[rows.panel == 'left'].set_index('series').x
  assert left['AxialResNet50'] == pytest.approx(0.5)
  assert figure.axes[0].get_xlabel() == 'Pre-training compute (teraFLOPs)'
  assert section.missing == []


def test_without_a_measurement_there_are_no_speeds(tmp_path, drawn):
  section = _figure13(tmp_path)
  assert 'the speed of ViT-B/32, ViT-B/16, Axial' in section.missing[0]
  assert section.blocks[0].caption.endswith('inference speed of Figure 12.')


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


def test_speeds_of_the_other_scale_are_left_out(tmp_path, drawn):
  speeds = {('ViT-B/16', size): 99.0 for size in (24, 224)}
  _measure(tmp_path, 'figure12.json', 'mini', speeds)
  assert 'ViT-B/16' in _figure13(tmp_path).missing[0]
  assert _speeds(drawn) == {}


@pytest.mark.parametrize('name', ['figure4', 'figure9', 'figure13'])
def test_without_runs_figures_are_empty_and_claims_missing(tmp_path, name):
  item = getattr(curve_items, name)()
  folder = tmp_path / 'figures'
  folder.mkdir()
  section = item.render(fewshot.results(tmp_path, {}), folder)
  assert section.name == item.name == name
  picture, *said = section.blocks
  assert isinstance(picture, Picture)
  assert all(isinstance(claim, Claim) for claim in said)
  assert {claim.answer for claim in said} <= {'missing'}
  assert pathlib.Path(tmp_path, picture.stem + '.png').exists()
  rows = pd.read_csv(tmp_path / f'{picture.stem}.csv')
  assert 'ours' not in set(rows.source)
