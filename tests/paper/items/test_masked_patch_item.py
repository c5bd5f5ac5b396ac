"""Guards: masked patch prediction has the right runs, claims and notes."""

import pytest

from tests.paper import made
from tests.paper.items.test_inspection_items import Stub
from tests.paper.items.test_inspection_items import (
  _fake_picture as fake_picture,
)
from vit_jax.paper import claims, items
from vit_jax.paper.items import masked_patch_item
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer


def _masked_results(masked, scratch, accuracy, baseline=20.0, supervised=84.0):
  starts = [
    Pretraining('ViT-B/16', values.JFT, 14, seed=s, objective='masked_patch')
    for s in range(3)
  ]
  found = {}
  for i, start in enumerate(starts):
    found[Transfer(start, values.IMAGENET), 'test/accuracy'] = masked + i / 10
    found[start, 'validation/accuracy'] = accuracy + i / 10
    found[start, 'validation/baseline_accuracy'] = baseline
    again = Pretraining('ViT-B/16', values.IMAGENET, seed=i)
    found[Transfer(again, values.IMAGENET), 'test/accuracy'] = scratch + i / 10
    labelled = Transfer(
      Pretraining('ViT-B/16', values.JFT, 7, seed=i), values.IMAGENET
    )
    found[labelled, 'test/accuracy'] = supervised + i / 10
  return Stub({}, found)


def test_masked_patch_results_are_compared_with_the_papers(
  monkeypatch, tmp_path
):
  fake_picture(monkeypatch, ('ViT-B/16',))
  item = masked_patch_item.masked_patch()
  results = _masked_results(80.0, 77.0, 60.0)
  section = item.render(results, tmp_path / 'f')
  table, picture, colours, ahead, behind = section.blocks
  assert (item.name, picture.stem) == ('masked_patch', 'f/masked_patch')
  cells = {row: table.cells[row, 'ImageNet'] for row in table.rows}
  assert {row: cell.paper.printed for row, cell in cells.items()} == {
    'Masked patch prediction': '79.9',
    'From scratch': '77.91',
    'Supervised, ImageNet-21k': '83.97',
    'Supervised, JFT-300M': '84.15',
  }
  assert cells['Masked patch prediction'].ours.mean == pytest.approx(80.1)
  assert cells['From scratch'].ours.mean == pytest.approx(77.1)
  assert cells['Supervised, JFT-300M'].ours.mean == pytest.approx(84.1)
  assert cells['Supervised, ImageNet-21k'].ours is None
  assert colours.answer == 'yes'
  n = '(3 pre-trainings)'
  assert colours.evidence == (
    'In percent of the corrupted patches of held-out images: right predictions'
    f' 60.10 ± 0.10 {n}; the most frequent colour 20.00 ± 0.00 {n}. That is'
    f' 3.01 ± 0.01 {n} times as many.'
  )
  assert 'more than 2 times as many' in colours.statement
  assert ahead.answer == 'yes'
  assert f'80.10 ± 0.10 {n}, from scratch 77.10 ± 0.10 {n}' in ahead.evidence
  assert behind.answer == 'yes'
  assert f', supervised on JFT-300M 84.10 ± 0.10 {n}' in behind.evidence
  assert 'has seen' in section.notes[0]
  assert not any('In miniature' in note for note in section.notes)


def test_the_claim_needs_accuracy_well_above_the_most_frequent_colour(
  monkeypatch, tmp_path
):
  fake_picture(monkeypatch, ())
  item = masked_patch_item.masked_patch()
  # The most frequent colour has 20, so the claim needs more than 40.
  for accuracy, answer in (
    *((30.0, 'no'), (39.9, 'undecided'), (40.2, 'yes')),
  ):
    _, colours, scratch, supervised = item.render(
      _masked_results(80.0, 79.9, accuracy, supervised=79.0), tmp_path
    ).blocks
    assert supervised.answer == 'no'
    assert colours.answer == answer
    assert scratch.answer == 'undecided'
  _, *said = item.render(Stub({}), tmp_path).blocks
  assert [claim.answer for claim in said] == ['missing'] * 3


def test_each_run_is_compared_with_its_own_baseline(monkeypatch, tmp_path):
  fake_picture(monkeypatch, ())
  results = _masked_results(80.0, 77.0, 0.0)
  masked = masked_patch_item.masked_patch().nodes[:3]
  for start, accuracy, baseline in zip(
    masked, (31.0, 51.0, 71.0), (15.0, 25.0, 35.0), strict=True
  ):
    results.found[start, 'validation/accuracy'] = accuracy
    results.found[start, 'validation/baseline_accuracy'] = baseline
  item = masked_patch_item.masked_patch()
  _, colours, *_ = item.render(results, tmp_path).blocks
  # Each run is right 1 point more than twice as often as its baseline.
  assert colours.answer == 'yes'
  assert '51.00 ± 20.00' in colours.evidence


def test_repeated_fine_tuning_counts_as_one_pretraining(monkeypatch, tmp_path):
  """The three fine-tuning runs of a pre-training count as one value."""
  fake_picture(monkeypatch, ())
  item = masked_patch_item.masked_patch()
  found = {'masked_patch': (80.0, 77.0, 76.0), 'supervised': (75.0, 76.0, 76.5)}

  def metrics(node, seed):
    start = getattr(node, 'pretraining', node)
    mean = found[start.objective][start.seed]
    return {'test/accuracy': (mean + 0.01 * seed) / 100}

  results = made.results(item.nodes, metrics, seeds=3)
  table, _, ahead, _ = item.render(results, tmp_path).blocks
  assert len(table.cells['From scratch', 'ImageNet'].ours.values) == 9
  # Nine values each would decide the claim.
  assert (
    claims.compare(
      table.cells['Masked patch prediction', 'ImageNet'].ours,
      table.cells['From scratch', 'ImageNet'].ours,
    )
    == 'yes'
  )
  assert ahead.answer == claims.UNDECIDED
  assert '77.68 ± 2.08 (3 pre-trainings)' in ahead.evidence


def test_the_miniature_explains_training_from_scratch(monkeypatch, tmp_path):
  fake_picture(monkeypatch, ())
  results = Stub({})
  results.comparable = False
  notes = masked_patch_item.masked_patch().render(results, tmp_path).notes
  assert not any('has seen' in note for note in notes)
  assert any('200 if they are rendered scenes' in note for note in notes)


def test_masked_patch_runs():
  names = [node.name for node in masked_patch_item.masked_patch().nodes]
  start = 'ViT-B/16, JFT-300M, 14 epochs, masked_patch'
  seeds = ('', ', seed 1', ', seed 2')
  assert names == [
    *(f'{start}{seed}' for seed in seeds),
    *(f'{start}{seed} to ImageNet' for seed in seeds),
    *(f'ViT-B/16, ImageNet{seed} to ImageNet' for seed in seeds),
    'ViT-B/16, ImageNet-21k to ImageNet',
    *(f'ViT-B/16, JFT-300M, 7 epochs{seed} to ImageNet' for seed in seeds),
  ]
  # Figure 3 has all of the other runs.
  figure3 = items.ITEMS['figure3'].nodes
  assert set(masked_patch_item.masked_patch().nodes[6:]) <= set(figure3)
