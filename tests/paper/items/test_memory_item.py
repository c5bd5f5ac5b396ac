"""Guards: memory of training is shown as the compiler stated it, or missing."""

import pytest

from tests.paper.cost.test_training_memory import Compiler
from vit_jax.paper import items
from vit_jax.paper.cost import training_memory
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Claim, Picture, Table
from vit_jax.paper.runs import Results
from vit_jax.plan import devices

ITEM = items.ITEMS['training_memory']
PAPER, MINI = Results([], {}), Results([], {}, comparable=False)
# ResNets take more.
LESS = {resnet: (1.0, 0.25) for _, resnet in training_memory.PAIRS}
COUNT = len(training_memory.MODELS)


def _section(tmp_path, needs=None, results=PAPER):
  if needs is not None:
    training_memory.measure(
      results.scale, tmp_path / 'measured', Compiler(needs)
    )
  return ITEM.render(results, tmp_path / 'figures')


def test_table_picture_and_answer(tmp_path):
  section = _section(tmp_path, LESS)
  table, picture, claim = section.blocks
  assert isinstance(table, Table)
  assert isinstance(picture, Picture)
  shown = {
    place: page_parts.cell_text(table, *place).ours for place in table.cells
  }
  assert shown['ViT-B/32', 'GiB an image'] == '0.1250'
  assert shown['BiT-R50x1', 'GiB an image'] == '0.2500'
  assert shown['ViT-B/32', 'Parameters (millions)'] == '88.0000'
  assert isinstance(claim, Claim)
  assert claim.answer == 'seen once'
  assert 'not a claim of the paper' in claim.statement
  assert 'ViT-B/32 0.1250, BiT-R50x1 0.2500, 0.50 times' in claim.evidence
  assert 'in 5 of 5 pairs' in claim.evidence
  assert page_parts.status(section).word == 'complete'
  assert section.measured == (COUNT, COUNT)
  assert 'libtpu 0.0.1, jax 0.12.0' in section.notes[0]
  assert 'ViT-B/32 32 and 64' in section.notes[1]
  rows = (tmp_path / 'figures/training_memory.csv').read_text().splitlines()
  assert len(rows) == 1 + COUNT


@pytest.mark.parametrize('there', [True, False])
def test_a_missing_model_leaves_the_question_open(tmp_path, monkeypatch, there):
  monkeypatch.setattr(devices, 'have_compiler', lambda: there)
  section = _section(tmp_path, LESS | {'BiT-R152x4': (15.0, 0.5)})
  assert section.blocks[-1].answer == 'missing'
  assert section.blocks[-1].evidence == 'Not compiled: BiT-R152x4.'
  [missing] = section.missing
  expected = 'two batches that leave room: BiT-R152x4. The command'
  assert expected in missing if there else missing == training_memory.INSTALL
  assert page_parts.status(section).word == 'partly there'


def test_a_miniature_is_not_asked(tmp_path):
  section = _section(tmp_path, {}, MINI)
  assert [type(block) for block in section.blocks] == [Table, Picture]
  cell = section.blocks[0].cells['ViT-B/32', 'GiB an image']
  assert cell.ours.mean == pytest.approx(0.0005)
  assert 'configs/mini.py' in section.notes[0]
  assert 'the page does not ask' in section.notes[-1]
