"""Guards: masked patch prediction has the right runs, claims and notes."""

import pytest

from tests.paper import fewshot, made
from tests.paper.items.test_inspection_items import Stub
from tests.paper.items.test_inspection_items import (
  _fake_picture as fake_picture,
)
from vit_jax.paper.design import Design
from vit_jax.paper.items import masked_patch_item
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer, seeds

ITEM = masked_patch_item.masked_patch()


def _masked_results(masked, scratch, accuracy, baseline=20.0, supervised=84.0):
  starts = seeds(
    Pretraining('ViT-B/16', values.JFT, 14, objective='masked_patch'), 3
  )
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
  return Stub({}, found, counts=Design('paper', 3).counts(ITEM))


def test_masked_patch_results_are_compared_with_the_papers(
  monkeypatch, tmp_path
):
  fake_picture(monkeypatch, ('ViT-B/16',))
  section = ITEM.render(_masked_results(80.0, 77.0, 60.0), tmp_path / 'f')
  table, picture = section.blocks
  assert (ITEM.name, picture.stem) == ('masked_patch', 'f/masked_patch')
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
  assert 'has already seen' in section.notes[0]
  assert not any('In miniature' in note for note in section.notes)


def test_claims_follow_the_numbers():
  found = made.said(ITEM, _masked_results(80.0, 77.0, 60.0))
  first = ('predictable', 'beats_scratch', 'behind_labels')
  assert [found[key].answer for key in first] == ['yes'] * 3
  assert 'more than 2 times as often' in found['predictable'].statement
  # The accuracy is 60.1 on average; twice that of the most frequent colour 40.
  assert 'Margin: +20.10 ' in found['predictable'].evidence
  for key, of in (
    ('beats_scratch', 'ViT-B/16, ImageNet 77.10 ± 0.10 (3 pre-trainings)'),
    ('behind_labels', 'ViT-B/16, JFT-300M, 7 epochs 84.10 ± 0.10 (3'),
  ):
    assert of in found[key].evidence
    assert 'masked_patch 80.10 ± 0.10 (3 pre-' in found[key].evidence
  found = made.answered(ITEM, _masked_results(80.0, 81.0, 35.0, supervised=79))
  assert [found[key] for key in first] == ['no'] * 3
  assert {*made.answered(ITEM, Stub({})).values()} == {'missing'}


@pytest.mark.parametrize('scale', ['paper', 'mini'])
def test_claims_on_how_to_mask_follow_the_numbers(scale):
  def answers(worse, less):
    """Other ways to mask are worse by `worse`, shorter runs by `less`."""

    def metrics(node, seed):
      start = getattr(node, 'pretraining', node)
      if start.objective != 'masked_patch':
        value = 0.7 if start.data == values.IMAGENET else 0.9
      else:
        value = 0.8
        if start.label in ('4x4 colours', 'all pixels', '15% masked'):
          value -= worse
        elif start.data == values.IMAGENET or (
          start.label == '100k steps' or start.epochs == 1.4
        ):
          value -= less
      value += start.seed / 1000 + seed / 1e6
      return {'test/accuracy': value, fewshot.IMAGENET: value}

    return made.answered(ITEM, made.of_item(ITEM, metrics, scale=scale))

  study = ('best_target', 'half_masked', 'diminishing', 'on_imagenet')
  found = answers(0.1, 0.02)
  assert [found[key] for key in study] == ['yes'] * 4
  # More than half of the gain of 0.1 is lost.
  found = answers(-0.1, 0.08)
  assert [found[key] for key in study] == ['no'] * 4


def test_each_run_is_compared_with_its_own_baseline():
  results = _masked_results(80.0, 77.0, 0.0)
  for start, accuracy, baseline in zip(
    seeds(ITEM.nodes[0], 3), (31.0, 51.0, 71.0), (15.0, 25.0, 35.0), strict=True
  ):
    results.found[start, 'validation/accuracy'] = accuracy
    results.found[start, 'validation/baseline_accuracy'] = baseline
  # Each run is right 1 point more than twice as often as its baseline.
  found = made.said(ITEM, results)['predictable']
  assert found.answer == 'yes'
  assert '1.00 ± 0.00 (3 pre-trainings)' in found.evidence
