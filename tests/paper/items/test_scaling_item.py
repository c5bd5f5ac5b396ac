"""Guards: Figure 8 has the right runs, relative compute and points."""

import pandas as pd
import pytest

from tests.paper import fewshot, made
from vit_jax.paper.design import Design
from vit_jax.paper.items import scaling_item
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining

ITEM = scaling_item.figure8()
PETS = 'few_shot_pets/5shot/accuracy'


def _node(label, *shape, model='ViT-L/32', seed=0):
  names = ('model.depth', 'model.width', 'model.mlp_dim', 'model.heads')
  return Pretraining(
    model,
    values.JFT,
    7,
    options=tuple(zip(names, shape, strict=True)),
    label=label,
    few_shot='several',
    seed=seed,
  )


# The first run of each point.
FIRST = {
  _node('all halved', 4, 512, 1024, 8),
  _node('all doubled', 16, 2048, 4096, 32),
  _node('depth 4', 4, 1024, 2048, 16),
  _node('depth 8', 8, 1024, 2048, 16),
  _node('depth 16', 16, 1024, 2048, 16),
  _node('depth 32', 32, 1024, 2048, 16),
  _node('depth 64', 64, 1024, 2048, 16),
  _node('depth 8', 8, 1024, 2048, 16, model='ViT-L/16'),
  _node('MLP 1024', 8, 1024, 1024, 16),
  _node('MLP 4096', 8, 1024, 4096, 16),
  _node('MLP 8192', 8, 1024, 8192, 16),
  _node('width 512', 8, 512, 2048, 8),
  _node('width 2048', 8, 2048, 2048, 32),
}


def _macs(depth, width, mlp, patch=32):
  """Returns the multiply-adds of a ViT at 224 px, with 1,000 classes."""
  patches = (224 // patch) ** 2
  tokens = patches + 1
  block = (
    4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * (mlp)
  )
  return patches * 3 * patch**2 * width + depth * block + 1000 * width


def _render(tmp_path, results):
  folder = tmp_path / 'figures'
  folder.mkdir()
  section = ITEM.render(results, folder)
  rows = pd.read_csv(folder / 'figure8.csv')
  return section, rows.set_index(['panel', 'series'])


def _blocks(node):
  return dict(node.options)['model.depth']


@pytest.mark.parametrize('scale', ['paper', 'mini'])
def test_figure_8_has_13_models_and_several_seeds_of_those_in_claims(scale):
  nodes = Design(scale, 3).nodes(ITEM)
  assert len(nodes) == len({node.name for node in nodes}) == 29
  assert {*ITEM.shown_at(scale)} == FIRST
  assert {node for node in nodes if not node.seed} == FIRST
  for seed in (1, 2):
    assert {(n.model, n.label) for n in nodes if n.seed == seed} == {
      *(('ViT-L/32', f'depth {blocks}') for blocks in (4, 8, 16, 32, 64)),
      *(('ViT-L/32', f'width {width}') for width in (512, 2048)),
      ('ViT-L/16', 'depth 8'),
    }
  assert _node('depth 4', 4, 1024, 2048, 16, seed=2) in nodes
  assert _node('depth 4', 4, 1024, 2048, 16).name == (
    'ViT-L/32, JFT-300M, 7 epochs, depth 4'
  )


def _counted(node):
  """Counts as `cost.exaflops`, which takes seconds for all these models."""
  blocks, width, mlp, _ = dict(node.options).values()
  return _macs(blocks, width, mlp, int(node.model.partition('/')[2]))


def test_points_show_accuracy_by_relative_compute(tmp_path, monkeypatch):
  monkeypatch.setattr(scaling_item.cost, 'exaflops', _counted)

  def metrics(node):
    few_shot = 0.4 + _blocks(node) / 100 + (node.seed - 1) / 1000
    return {9: {fewshot.IMAGENET: few_shot, PETS: 0.8}}

  section, rows = _render(tmp_path, fewshot.of_item(tmp_path, ITEM, metrics))
  base = _macs(8, 1024, 2048)
  expected = {
    'All': [_macs(4, 512, 1024), base, _macs(16, 2048, 4096)],
    'Depth': [_macs(depth, 1024, 2048) for depth in (4, 8, 16, 32, 64)],
    'Patch size': [base, _macs(8, 1024, 2048, patch=16)],
    'Width MLP': [_macs(8, 1024, mlp) for mlp in (1024, 2048, 4096, 8192)],
    'Width': [_macs(8, 512, 2048), base, _macs(8, 2048, 2048)],
  }
  assert {series for _, series in rows.index} == {*expected}
  for series, macs in expected.items():
    for panel in ('ImageNet 5shot', 'Average 5shot'):
      assert rows.loc[(panel, series), 'x'].to_list() == pytest.approx(
        [found / base for found in macs], rel=1e-3
      )
  depth = rows.loc[('ImageNet 5shot', 'Depth')]
  assert depth['mean'].to_list() == pytest.approx(
    [0.44, 0.48, 0.56, 0.72, 1.04]
  )
  assert depth['n'].to_list() == [3, 3, 3, 3, 3]
  # No claim is about the MLP: of its points, only the base has several runs.
  width = rows.loc[('ImageNet 5shot', 'Width MLP')]
  assert width['n'].to_list() == [1, 3, 1, 1]
  assert width['mean'].to_list() == pytest.approx([0.479, 0.48, 0.479, 0.479])
  average = rows.loc[('Average 5shot', 'Depth'), 'mean'].to_list()
  assert average == pytest.approx([0.62, 0.64, 0.68, 0.76, 0.92])
  [picture] = section.blocks
  assert picture.stem == 'figures/figure8'
  assert (
    'The paper does not print the depths, widths and MLP sizes'
    in section.notes[0]
  )


# Label of a run -> accuracy that agrees with the claims; 0.5 for all others.
AGREES = {
  **{'depth 4': 0.4, 'depth 16': 0.54, 'depth 32': 0.55, 'depth 64': 0.56},
  **{'width 512': 0.48, 'width 2048': 0.52},
}


@pytest.mark.parametrize(
  ('sign', 'scale', 'answer'),
  [(1, 'paper', 'yes'), (1, 'mini', 'yes'), (-1, 'paper', 'no')],
)
def test_claims_follow_the_numbers(sign, scale, answer, tmp_path):
  def metrics(node):
    mean = AGREES.get(node.label, 0.5) + 0.05 * (node.model == 'ViT-L/16')
    found = 0.5 + sign * (mean - 0.5) + node.seed / 1000
    # At the paper's scale, claims are about ImageNet; in miniature, about the
    # average over data sets.
    if scale == 'paper':
      return {9: {fewshot.IMAGENET: found, PETS: 0.3}}
    return {9: {fewshot.IMAGENET: 0.3, PETS: found}}

  results = fewshot.of_item(tmp_path, ITEM, metrics, scale=scale)
  assert made.answered(ITEM, results) == dict.fromkeys(
    ('depth', 'diminishing', 'width', 'patches'), answer
  )


@pytest.mark.parametrize(('scale', 'depths'), [('midi', '1, 2, 4, 8')])
def test_the_miniature_states_its_depths(tmp_path, monkeypatch, scale, depths):
  def exaflops(workdir):
    what = workdir.name.rpartition(', ')[2]
    blocks = {'depth 4': 1, 'depth 16': 3, 'depth 32': 4, 'depth 64': 5}
    return 2e-7 * blocks.get(what, 2)

  monkeypatch.setattr(scaling_item.cost, 'exaflops_of_run', exaflops)

  def metrics(node):
    return {9: {fewshot.IMAGENET: _blocks(node) / 100 + node.seed / 1000}}

  results = fewshot.of_item(tmp_path, ITEM, metrics, scale=scale)
  section, rows = _render(tmp_path, results)
  depth = rows.loc[('ImageNet 5shot', 'Depth'), 'mean'].to_list()
  assert depth == pytest.approx([0.041, 0.081, 0.161, 0.321, 0.641])
  # The compute is that of the runs' own models.
  compute = rows.loc[('ImageNet 5shot', 'Depth'), 'x'].to_list()
  assert compute == pytest.approx([0.5, 1, 1.5, 2, 2.5])
  assert f'4, 8, 16, 32 and 64 blocks become {depths}' in section.notes[-1]


def test_points_and_claims_with_a_missing_seed_are_missing(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(scaling_item.cost, 'exaflops', _counted)
  gone = _node('depth 32', 32, 1024, 2048, 16, seed=1)
  results = fewshot.of_item(
    tmp_path,
    ITEM,
    lambda node: {9: {fewshot.IMAGENET: 0.5 + node.seed / 1000}},
    left_out=[gone],
  )
  _, rows = _render(tmp_path, results)
  assert len(rows.loc[('ImageNet 5shot', 'Depth')]) == 4
  found = made.answered(ITEM, results)
  assert [key for key in found if found[key] == 'missing'] == ['depth']
