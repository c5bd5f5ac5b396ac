"""Figures 3 and 5 with their claims; Figure 5 in miniature has its own axis."""

import json

import pandas as pd
import pytest

from tests.paper import made
from vit_jax.paper import items, numbers, values
from vit_jax.paper.report import Claim, Picture
from vit_jax.paper.runs import Pretraining, Transfer

FIGURE_3, FIGURE_5 = items.ITEMS['figure3'], items.ITEMS['figure5']


def _papers(node, seed):
  """Table 6's numbers, a little apart."""
  rows = dict(zip(numbers.ROWS_6, numbers.TABLE_6.rows, strict=True))
  if not isinstance(node, Transfer):
    return {}
  start = node.pretraining
  mean = numbers.TABLE_6[rows[start.model, start.epochs], node.task].value
  return {'test/accuracy': (mean + 0.01 * seed) / 100}


def _figure_3(node, seed):
  """BiT is ahead from ImageNet, by a point, and behind from all else."""
  if not isinstance(node, Transfer):
    return {}
  start = node.pretraining
  row = numbers.TABLE_5.row(f'{start.data}: ImageNet')
  if start.model in row:
    mean = row[start.model]
  else:
    ahead = 1 if start.data == values.IMAGENET else -1
    mean = max(row.values()) + ahead
  return {'test/accuracy': (mean + 0.01 * seed) / 100}


def test_figure_3_has_its_claims_below_it(tmp_path):
  results = made.results(FIGURE_3.nodes, _figure_3)
  picture, *said = FIGURE_3.render(results, tmp_path).blocks
  assert isinstance(picture, Picture)
  assert all(isinstance(claim, Claim) for claim in said)
  assert [claim.answer for claim in said] == ['yes'] * 4
  assert 'ViT-B/16 77.91 ± 0.01 (2 runs)' in said[0].evidence


def test_figure_3_lacks_a_claim_about_bit_without_one_of_them(tmp_path):
  gone = Transfer(Pretraining('BiT-R50x1', values.IMAGENET), values.IMAGENET)
  results = made.results(
    FIGURE_3.nodes,
    lambda node, seed: None if node == gone else _figure_3(node, seed),
  )
  _, *said = FIGURE_3.render(results, tmp_path).blocks
  assert [claim.answer for claim in said] == ['yes', 'yes', 'missing', 'yes']


def test_figure_5_of_the_papers_numbers_has_its_claims_below_it(tmp_path):
  results = made.results(FIGURE_5.nodes, _papers)
  picture, *said = FIGURE_5.render(results, tmp_path).blocks
  assert "the paper's models" in picture.caption
  assert [claim.answer for claim in said] == ['yes'] * 3
  rows = pd.read_csv(tmp_path / 'figure5.csv')
  ours = rows[(rows.source == 'ours') & (rows.label == 'ViT-L/16, 14 epochs')]
  assert ours.x.astype(float).tolist() == pytest.approx([1566.7] * 2, abs=0.05)
  assert (rows.source == 'paper').sum() == 36


def test_figure_5_in_miniature_has_the_compute_of_its_own_runs(
  tmp_path, monkeypatch
):
  def workdir(name):
    """All runs have the same model, and steps by their epochs."""
    folder = tmp_path / name.replace('/', '_')
    folder.mkdir(exist_ok=True)
    model = {'name': 'ViT-B/16', 'width': 4, 'depth': 1, 'heads': 1}
    config = {
      'model': model | {'mlp_dim': 8, 'patch_size': [8, 8]},
      'num_classes': 5,
      'image_size': [16, 16],
      'channels': 3,
      'data': {'batch_size': 10_000},
      'total_steps': 2000 if '14 epochs' in name else 1000,
    }
    (folder / 'config.json').write_text(json.dumps(config))
    return folder

  labels = []
  figure5 = items.figure_items.plots.figure5

  def spy(*args, **options):
    labels.append(options['x_label'])
    return figure5(*args, **options)

  monkeypatch.setattr(items.figure_items.plots, 'figure5', spy)
  results = made.results(
    FIGURE_5.nodes, _papers, comparable=False, workdir=workdir
  )
  picture, *_ = FIGURE_5.render(results, tmp_path).blocks
  assert labels == ['Pre-training compute (teraFLOPs)']
  assert 'the models that were run' in picture.caption
  rows = pd.read_csv(tmp_path / 'figure5.csv')
  assert set(rows.source) == {'ours'}
  compute = rows.set_index('label').x.astype(float)
  # 4 patches of 192 numbers, 5 tokens, the head: 3,932 multiply-adds; 6 times
  # that for 1e7 images.
  macs = 4 * 192 * 4 + (5 * 4 * 4 * 4 + 5 * 2 * 4 * 8 + 2 * 5 * 5 * 4) + 4 * 5
  expected = macs * 6 * 1e7 / 1e12
  assert compute['ViT-L/16, 7 epochs'].tolist() == pytest.approx([expected] * 2)
  assert compute['ViT-L/16, 14 epochs'].tolist() == (
    pytest.approx([2 * expected] * 2)
  )


def test_figure_5_in_miniature_needs_its_runs(tmp_path):
  results = made.results(FIGURE_5.nodes, _papers, comparable=False)
  _, *said = FIGURE_5.render(results, tmp_path).blocks
  assert [claim.answer for claim in said] == ['missing'] * 3
  assert pd.read_csv(tmp_path / 'figure5.csv').empty
