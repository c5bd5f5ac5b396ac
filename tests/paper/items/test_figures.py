"""Guards: figures have the right points, axes and error bars of their runs."""

import pytest

from tests.paper import made
from vit_jax.inference_speed import store
from vit_jax.pages import drawing
from vit_jax.paper import cost, items
from vit_jax.paper.items.figures import figure3, figure5, figure12
from vit_jax.paper.items.tables import table5, table6
from vit_jax.paper.numbers import IMAGENET, JFT
from vit_jax.paper.runs import Pretraining, Transfer


@pytest.fixture
def drawn(monkeypatch):
  """Collects each figure and its rows, instead of writing its files."""
  kept = []
  monkeypatch.setattr(
    drawing,
    'save',
    lambda figure, stem, rows, *, mark: kept.append((figure, rows)),
  )
  return kept


def _ours(drawn):
  [(_, rows)] = drawn
  return rows[rows.source == 'ours']


def _fine_tuned(table):
  """Returns metrics that have a table's numbers on ImageNet and more."""

  def metrics(node, seed):
    if not isinstance(node, Transfer):
      return {}
    start = node.pretraining
    mean = table(start, node.task)
    return {'test/accuracy': (mean + 0.01 * seed + 0.02 * start.seed) / 100}

  return metrics


# Figures 3 and 5. -------------------------------------------------------------


def _table_5(start, task):
  row = table5.PAPER.row(f'{start.data}: {task}')
  return row.get(start.model, 80.0 if start.model == 'BiT-R50x1' else 82.0)


def test_figure_3_draws_lines_over_the_data_sets(drawn, tmp_path):
  gone = Transfer(Pretraining('BiT-R50x1', IMAGENET), IMAGENET)
  whole = _fine_tuned(_table_5)
  results = made.of_item(
    figure3.ITEM,
    lambda node, seed: None if node == gone else whole(node, seed),
  )
  figure3.ITEM.render(results, tmp_path)
  ours = _ours(drawn)
  point = ours.set_index(['series', 'x']).loc[('ViT-L/16', JFT)]
  # A point is the mean over pre-trainings, each with two runs.
  assert point['mean'] == pytest.approx(87.12 + 0.005 + 0.02)
  assert (point['std'], point['n']) == (pytest.approx(0.02), 3)
  bits = ours[ours.series == 'BiT-R50x1']
  assert {*bits.x} == {'ImageNet-21k', JFT}
  # Data sets are from the smallest to the largest.
  [axes] = drawn[0][0].axes
  # Ours are drawn after the paper's.
  lines = {line.get_label(): [*line.get_xdata()] for line in axes.lines}
  assert lines['ViT-L/16'] == [0, 1, 2]
  assert lines['ViT-H/14'] == lines['BiT-R50x1'] == [1, 2]


def test_figure_5_has_table_6_in_two_panels(drawn, tmp_path):
  rows_of = {start: row for row, start in table6.STARTS.items()}

  def table_6(start, task):
    first = Pretraining(start.model, epochs=start.epochs)
    return table6.PAPER[rows_of[first], task].value

  results = made.of_item(figure5.ITEM, _fine_tuned(table_6))
  figure5.ITEM.render(results, tmp_path)
  ours = _ours(drawn)
  [(figure, rows)] = drawn
  assert (rows.source == 'paper').sum() == len(ours) == 2 * 18
  x = ours[ours.label == 'ViT-L/16, 14 epochs'].x
  assert [*x] == pytest.approx([1566.7] * 2, abs=0.05)
  imagenet = ours[ours.panel == IMAGENET].set_index('label')
  found = imagenet.loc['R50+ViT-B/32, 7 epochs', ['mean', 'std', 'n']]
  assert [*found] == pytest.approx([84.925, 0.02, 3], abs=1e-6)
  assert imagenet.loc['R50+ViT-B/16, 7 epochs', 'n'] == 1  # In no claim.
  # Our averages are the paper's; seeds raise them by at most 0.025.
  both = rows[rows.panel == 'Average-5'].groupby('label')['mean']
  assert (both.max() - both.min()).max() < 0.03
  for axes in figure.axes:
    assert len([t for t in axes.texts if t.get_text()]) == 18
  # In miniature, the compute of runs without files isn't known, and the paper's
  # points would be in another unit.
  drawn.clear()
  figure5.ITEM.render(
    made.of_item(figure5.ITEM, _fine_tuned(table_6), scale='mini'), tmp_path
  )
  assert drawn[0][1].empty


@pytest.mark.parametrize(
  ('compute', 'weights'),
  [
    (20.0, {'a': 0.5, 'b': 0.5}),
    (40.0, {'b': 1.0}),
    (40 * 2**0.25, {'b': 0.75, 'c': 0.25}),
    (9.0, None),
    (81.0, None),
  ],
)
def test_accuracies_are_interpolated_in_the_logarithm_of_compute(
  compute, weights
):
  points = dict(zip((10.0, 40.0, 80.0), _sums('abc'), strict=True))
  found = figure5.interpolate(points, compute)
  assert (found and _weights(found)) == (weights and pytest.approx(weights))


def test_the_slope_is_that_of_least_squares():
  found = _weights(
    figure5.slope(dict(zip((10.0, 20.0, 80.0), _sums('abc'), strict=True)))
  )
  values = {'a': 1.0, 'b': 3.0, 'c': 7.0}  # 2 points per doubling.
  assert sum(found[k] * v for k, v in values.items()) == pytest.approx(2)


def _sums(models):
  return [figure5.AVERAGE5(Pretraining(m)) for m in models]


def _weights(sum_):
  return {mean.start.model: weight for weight, mean in sum_.terms if weight}


@pytest.mark.parametrize(
  ('more', 'sentence'), [(0.0, 'more than 4.2 times'), (1.2, 'need 1.')]
)
def test_the_ratio_of_compute_is_where_the_lead_ends(more, sentence):
  """By Table 6, four ViTs are ahead as far as there are larger ResNets."""
  rows = {start: row for row, start in table6.STARTS.items()}
  [claim] = [
    c for c in figure5.ITEM.claims('paper') if c.key == 'half_the_compute'
  ]

  def value(mean):
    better = more * mean.start.model.startswith('BiT-')
    return better + figure5.average5(table6.PAPER.row(rows[mean.start]))

  evidence = made.decided(claim, value).evidence
  assert sentence in evidence.partition('At equal accuracy')[2]


# Figures 4, 8 and 9, by files of runs. ----------------------------------------


def _written(folder, name, metrics, *, scale='paper', left_out=()):
  item = items.ITEMS[name]
  nodes = [n for n in item.nodes(scale, 2) if n not in left_out]
  runs = {node: metrics(node) for node in nodes}
  counts = item.counts(scale, 2)
  return made.written(folder, runs, scale=scale, counts=counts)


def test_figure_4_uses_early_stopping(tmp_path, drawn):
  def metrics(node):
    """Validates best at the first evaluation."""
    best = 0.4 + 0.1 * node.seed + 0.05 * (node.images is None)
    return {
      100: {'validation/accuracy': 0.5, made.FEW_SHOT: best},
      200: {'validation/accuracy': 0.4, made.FEW_SHOT: 0.01},
    }

  gone = Pretraining('ViT-L/32', epochs=7, images=9_000_000, seed=1)
  results = _written(tmp_path, 'figure4', metrics, left_out=[gone])
  items.ITEMS['figure4'].render(results, tmp_path / 'figures')
  ours = _ours(drawn).set_index(['series', 'x'])
  assert len(ours) == 24 - 1
  row = ours.loc['BiT-R50x1', 9_000_000]
  assert (row['mean'], row['n']) == (pytest.approx(45), 2)
  assert ours.loc['ViT-B/32', 300_000_000]['mean'] == pytest.approx(50)
  # No claim needs this point: it has a single run.
  assert ours.loc['ViT-L/16', 30_000_000]['n'] == 1


def test_figure_8_shows_accuracy_by_relative_compute(
  tmp_path, monkeypatch, drawn
):
  def cost_of(depth=8, width=1024, mlp=2048, patch=32):
    return depth * width * mlp / patch

  def counted(node):
    """Replaces `cost.exaflops`, which takes seconds for all these models."""
    blocks, width, mlp, _ = dict(node.options).values()
    return cost_of(blocks, width, mlp, int(node.model.partition('/')[2]))

  def metrics(node):
    blocks = dict(node.options)['model.depth']
    few_shot = 0.4 + blocks / 100 + (node.seed - 0.5) / 1000
    return {9: {made.FEW_SHOT: few_shot, made.PETS: 0.8}}

  monkeypatch.setattr(cost, 'exaflops', counted)
  results = _written(tmp_path, 'figure8', metrics)
  items.ITEMS['figure8'].render(results, tmp_path / 'figures')
  rows = _ours(drawn).set_index(['panel', 'series'])
  base = cost_of()
  expected = {
    'All': [cost_of(4, 512, 1024), base, cost_of(16, 2048, 4096)],
    'Depth': [cost_of(depth) for depth in (4, 8, 16, 32, 64)],
    'Patch size': [base, cost_of(patch=16)],
    'Width MLP': [cost_of(mlp=mlp) for mlp in (1024, 2048, 4096, 8192)],
    'Width': [cost_of(width=512), base, cost_of(width=2048)],
  }
  assert {series for _, series in rows.index} == {*expected}
  for series, costs in expected.items():
    for panel in ('ImageNet 5shot', 'Average 5shot'):
      x = [*rows.loc[[(panel, series)], 'x']]
      assert x == pytest.approx([found / base for found in costs])
  depth = rows.loc[[('ImageNet 5shot', 'Depth')]]
  assert [*depth['mean']] == pytest.approx([0.44, 0.48, 0.56, 0.72, 1.04])
  assert [*depth['n']] == [2] * 5
  average = [*rows.loc[[('Average 5shot', 'Depth')], 'mean']]
  assert average == pytest.approx([0.62, 0.64, 0.68, 0.76, 0.92])
  # No claim is about the MLP: of its points, only the base has several runs.
  assert [*rows.loc[[('ImageNet 5shot', 'Width MLP')], 'n']] == [1, 2, 1, 1]


def test_figure_9_shows_accuracy_by_epoch(tmp_path, drawn):
  item = items.ITEMS['figure9']
  starts = item.shown('paper')
  curves = ((0.3, 0.5, 0.6), (0.1, 0.2, 0.3), (0.4, 0.5, 0.7))
  runs = {
    start: {
      step: {made.FEW_SHOT: value}
      for step, value in zip((500, 1000, 2000), curve, strict=True)
    }
    for start, curve in zip(starts, curves, strict=True)
  }
  item.render(made.written(tmp_path, runs), tmp_path / 'figures')
  found = {
    series: [*zip(part['x'], part['mean'], strict=True)]
    for series, part in _ours(drawn).groupby('series', sort=False)
  }
  assert found == {
    'CLS-Token, lr=8e-4': [(1.75, 30), (3.5, 50), (7, 60)],
    'GAP, lr=8e-4': [(1.75, 10), (3.5, 20), (7, 30)],
    'GAP, lr=3e-4': [(1.75, 40), (3.5, 50), (7, 70)],
  }
  # The head is linear, without a hidden layer before it.
  linear = {'model.pooling': 'gap', 'model.representation_size': 0}
  assert [dict(start.options) for start in starts] == [
    *({}, linear, linear | {'schedule.peak': 3e-4})
  ]


# Figure 13. -------------------------------------------------------------------


@pytest.mark.parametrize('size', [0, 64, 224])
def test_figure_13_shows_models_by_compute_and_speed(tmp_path, drawn, size):
  if size:
    settings = store.Settings('a gpu', 'paper', 'device', 1, 'float32')
    entry = store.Entry('ViT-B/32', size, 11.0, 8, 64)
    path = tmp_path / 'measured' / figure12.FILE
    store.add(path, store.Measured(settings), entry)
  item = items.ITEMS['figure13']
  means = {n.model: 0.5 + i / 100 for i, n in enumerate(item.shown('paper'))}
  results = made.of_item(
    item, lambda node, seed: {made.FEW_SHOT: means[node.model]}, count=1
  )
  section = item.render(results, tmp_path / 'figures')
  ours = _ours(drawn).set_index(['series', 'panel'])
  left, right = (ours.xs(panel, level='panel') for panel in ('left', 'right'))
  assert left['mean'].to_dict() == pytest.approx(means)
  # These follow from the sizes of the models and agree with Table 6.
  for model, exaflops in (
    *(('ViT-B/32', 56), ('BiT-R50x1', 50)),
    *(('Axial-ViT-B/32', 108), ('Axial-ViT-B/16', 426)),
  ):
    assert left.x[model] == pytest.approx(exaflops, rel=0.02)
  measured = right.x[right.x.notna()].to_dict()
  assert measured == ({'ViT-B/32': 11} if size == 224 else {})
  assert ('a gpu' in section.blocks[0].caption) == (size == 224)
  [missing] = section.missing
  assert (' ViT-B/32,' in missing) == (size != 224)
