"""Guards: Figure 8 has the right runs, relative compute and points."""

import pandas as pd
import pytest

from tests.paper import fewshot
from vit_jax.paper.items import scaling_item
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining

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


def _render(tmp_path, runs, **options):
  folder = tmp_path / 'figures'
  folder.mkdir()
  results = fewshot.results(tmp_path, runs, **options)
  section = scaling_item.figure8().render(results, folder)
  rows = pd.read_csv(folder / 'figure8.csv')
  return section, rows.set_index(['panel', 'series'])


def test_figure_8_has_13_models_and_several_seeds_of_depths():
  nodes = scaling_item.figure8().nodes
  assert len(nodes) == len({node.name for node in nodes}) == 21
  assert {node for node in nodes if not node.seed} == FIRST
  assert {(node.label, node.seed) for node in nodes if node.seed} == {
    (f'depth {depth}', seed) for depth in (4, 8, 16, 32) for seed in (1, 2)
  }
  assert _node('depth 4', 4, 1024, 2048, 16, seed=2) in nodes
  assert _node('depth 4', 4, 1024, 2048, 16).name == (
    'ViT-L/32, JFT-300M, 7 epochs, depth 4'
  )


def test_points_show_accuracy_by_relative_compute(tmp_path):
  runs = {
    node: {
      9: {
        fewshot.IMAGENET: 0.4
        + dict(node.options)['model.depth'] / 100
        + (node.seed - 1) / 1000,
        PETS: 0.8,
      }
    }
    for node in scaling_item.figure8().nodes
  }
  section, rows = _render(tmp_path, runs)
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
    [0.44, 0.48, 0.56, 0.72, 1.039]
  )
  assert depth['n'].to_list() == [3, 3, 3, 3, 1]
  average = rows.loc[('Average 5shot', 'Depth'), 'mean'].to_list()
  assert average == pytest.approx([0.62, 0.64, 0.68, 0.76, 0.9195])
  picture, claim = section.blocks
  assert picture.stem == 'figures/figure8'
  assert claim.answer == 'yes'
  assert '4: 0.4400 ± 0.0010 (3 runs), 8: 0.4800' in claim.evidence
  assert '16 to 32 blocks +0.1600, 16 to 64 blocks +0.4790' in claim.evidence
  assert 'The paper prints neither the grid nor the heads' in section.notes[0]


def test_the_miniature_has_six_seeds_for_depths():
  item = scaling_item.figure8()
  nodes = item.nodes_at('mini')
  assert set(nodes) - set(item.nodes) == {
    _node(f'depth {depth}', depth, 1024, 2048, 16, seed=seed)
    for depth in (4, 8, 16, 32)
    for seed in (3, 4, 5)
  }
  assert len(nodes) == 21 + 12


def test_the_miniature_states_its_depths(tmp_path, monkeypatch):
  def exaflops(workdir):
    what = workdir.name.rpartition(', ')[2]
    blocks = {'depth 4': 1, 'depth 16': 3, 'depth 32': 4, 'depth 64': 5}
    return 2e-7 * blocks.get(what, 2)

  monkeypatch.setattr(scaling_item.cost, 'exaflops_of_run', exaflops)
  runs = {
    node: {
      9: {
        fewshot.IMAGENET: dict(node.options)['model.depth'] / 100
        + node.seed / 1000
      }
    }
    for node in scaling_item.figure8().nodes_at('mini')
  }
  section, rows = _render(tmp_path, runs, comparable=False)
  depth = rows.loc[('ImageNet 5shot', 'Depth'), 'mean'].to_list()
  assert depth == pytest.approx([0.0425, 0.0825, 0.1625, 0.3225, 0.64])
  # The compute is that of the runs' own models.
  compute = rows.loc[('ImageNet 5shot', 'Depth'), 'x'].to_list()
  assert compute == pytest.approx([0.5, 1, 1.5, 2, 2.5])
  assert section.blocks[1].answer == 'yes'
  assert '4, 8, 16, 32 and 64 blocks become 1, 2, 3, 4' in section.notes[-1]


def test_a_run_with_a_missing_metric_appears_in_one_panel_only(tmp_path):
  nodes = [_node('width 512', 8, 512, 2048, 8)]
  nodes.append(_node('MLP 1024', 8, 1024, 1024, 16))
  runs = {node: {9: {fewshot.IMAGENET: 0.4}} for node in nodes}
  runs[nodes[1]] = {9: {PETS: 0.6}}
  _, rows = _render(tmp_path, runs)
  assert rows['mean'].to_dict() == {
    ('ImageNet 5shot', 'Width'): 0.4,
    ('Average 5shot', 'Width'): 0.4,
    ('Average 5shot', 'Width MLP'): 0.6,
  }


def test_depths_with_a_missing_seed_are_missing(tmp_path):
  runs = {
    _node(f'depth {depth}', depth, 1024, 2048, 16, seed=seed): {
      9: {fewshot.IMAGENET: 0.5}
    }
    for depth in (4, 16, 32)
    for seed in range(3)
    if (depth, seed) != (32, 1)
  }
  section, rows = _render(tmp_path, runs)
  assert len(rows.loc['ImageNet 5shot']) == 2
  assert section.blocks[1].answer == 'missing'


def test_without_runs_figure_8_is_empty_and_its_claim_missing(tmp_path):
  section, rows = _render(tmp_path, {})
  assert rows.empty
  assert [claim.answer for claim in section.blocks[1:]] == ['missing']
  assert (tmp_path / f'{section.blocks[0].stem}.png').exists()
