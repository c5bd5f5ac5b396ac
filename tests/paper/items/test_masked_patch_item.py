"""Guards: masked patch prediction has the right runs, claims and notes."""

import pytest

from tests.paper import fewshot, made
from tests.paper.items.test_inspection_items import Stub
from tests.paper.items.test_inspection_items import (
  _fake_picture as fake_picture,
)
from vit_jax.paper import items
from vit_jax.paper.claims import decision
from vit_jax.paper.design import Design
from vit_jax.paper.items import masked_patch_item
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Transfer, seeds, with_needs

ITEM = masked_patch_item.masked_patch()
# The pre-trainings of the table.
BEFORE = {
  start
  for node in ITEM.nodes
  for start in seeds(getattr(node, 'pretraining', node), 3)
}


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


def test_the_claim_needs_accuracy_well_above_the_most_frequent_colour():
  # The most frequent colour has 20, so the claim needs more than 40.
  for accuracy, answer in (
    *((30.0, 'no'), (39.9, 'undecided'), (42.0, 'yes')),
  ):
    found = made.answered(ITEM, _masked_results(80.0, 79.9, accuracy))
    assert found['predictable'] == answer
    assert found['beats_scratch'] == 'undecided'


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


def test_repeated_fine_tuning_counts_as_one_pretraining(monkeypatch, tmp_path):
  """The three fine-tuning runs of a pre-training count as one value."""
  fake_picture(monkeypatch, ())
  found = {'masked_patch': (80.0, 77.0, 76.0), 'supervised': (75.0, 76.0, 76.5)}

  def metrics(node, seed):
    start = getattr(node, 'pretraining', node)
    mean = found[start.objective][start.seed]
    return {'test/accuracy': (mean + 0.01 * seed) / 100}

  results = made.of_item(ITEM, metrics, seeds=3)
  [table] = ITEM.render(results, tmp_path).blocks
  masked, scratch = (
    table.cells[row, 'ImageNet'].ours
    for row in ('Masked patch prediction', 'From scratch')
  )
  # Nine values each would decide the claim.
  assert len(masked.values) == len(scratch.values) == 9
  nine = [[*masked.values], [-value for value in scratch.values]]
  assert decision.outcome(nine).above < 0.05 / 6
  claim = made.said(ITEM, results)['beats_scratch']
  assert claim.answer == 'undecided'
  assert '77.68 ± 2.08 (3 pre-trainings)' in claim.evidence


def test_the_miniature_explains_training_from_scratch(monkeypatch, tmp_path):
  fake_picture(monkeypatch, ())
  notes = ITEM.render(Stub({}, comparable=False), tmp_path).notes
  assert not any('has seen' in note for note in notes)
  assert any('these are 200 images' in note for note in notes)


def test_masked_patch_runs():
  start = 'ViT-B/16, JFT-300M, 14 epochs, masked_patch'
  others = ('ViT-B/16, ImageNet', 'ViT-B/16, JFT-300M, 7 epochs')
  short = f'{start}, 100k steps'
  on_imagenet = 'ViT-B/16, ImageNet, masked_patch'
  study = {
    node.name
    for node in with_needs(Design('paper', 3).nodes(ITEM))
    if getattr(node, 'pretraining', node) not in BEFORE
  }
  assert study == {
    f'{of}{seed}{to}'
    for of in (
      *(short, on_imagenet, f'{start}, 4x4 colours'),
      *(f'{start}, all pixels', f'{start}, 15% masked'),
    )
    for seed in ('', ', seed 1', ', seed 2')
    for to in ('', ' to ImageNet')
    # Targets and fractions are compared by few-shot accuracy.
    if not to or of in (short, on_imagenet)
  }
  assert [node.name for node in ITEM.nodes] == [
    *(start, f'{start} to ImageNet', 'ViT-B/16, ImageNet to ImageNet'),
    'ViT-B/16, ImageNet-21k to ImageNet',
    'ViT-B/16, JFT-300M, 7 epochs to ImageNet',
  ]
  assert {
    node.name
    for node in Design('paper', 3).nodes(ITEM)
    if node.name not in study
  } == {
    *(node.name for node in ITEM.nodes),
    *(f'{start}, seed {seed}' for seed in (1, 2)),
    *(
      f'{of}, seed {seed} to ImageNet'
      for of in (start, *others)
      for seed in (1, 2)
    ),
  }
  # Figure 3 has all of the runs that start from other pre-trainings.
  figure3 = Design('paper', 3).nodes(items.ITEMS['figure3'])
  assert {
    node
    for node in Design('paper', 3).nodes(ITEM)
    if 'masked_patch' not in node.name
  } <= {*figure3}
