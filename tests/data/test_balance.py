"""Guards the count of the examples of each class, and its command."""

import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import __main__ as command
from vit_jax.data import balance


class Labelled(data.Source):
  """Records with given labels and without images."""

  def __init__(self, labels):
    self._labels = labels
    self.info = data.SourceInfo(
      'labelled', {'train': len(labels)}, ('a', 'b', 'c')
    )

  def read(self, split, index):
    return data.Record(b'', self._labels[index], f'{split}/{index}')


def test_literal_counts():
  view = data.View(Labelled([0, 2, 2, 0, 2, 2]), 'train[1:]')
  counts = data.class_balance(view)
  assert counts.tolist() == [1, 0, 4]
  assert counts.dtype == np.int64


def test_a_multi_label_example_counts_once_for_each_class():
  view = data.View(Labelled([(0, 1), (), (1, 1), (2,)]), 'train')
  assert data.class_balance(view).tolist() == [1, 2, 1]


def test_a_label_out_of_range_is_an_error():
  for wrong in (3, -1):
    view = data.View(Labelled([0, wrong]), 'train')
    with pytest.raises(ValueError, match=rf'label {wrong}.* \[0, 3\)'):
      data.class_balance(view)


@pytest.fixture
def run_command(monkeypatch, capsys):
  def run_command(**flags):
    defaults = {
      **dict(data='digits:01', split='train', data_dir='', image_key='image'),
      **dict(label_key='label', num_classes=0, count=False, classes=20),
    }
    for name, value in (defaults | flags).items():
      flag = type('Flag', (), {'value': value})
      monkeypatch.setattr(command, f'_{name.upper()}', flag)
    command.main()
    return capsys.readouterr().out.splitlines()

  return run_command


def test_command(run_command, monkeypatch):
  assert run_command(split='shuffled(train)[:9]') == [
    'digits:01: train (288), test (72)',
    'shuffled(train)[:9]: 9 examples; the first is train/233',
    "2 of 2 classes, with 4 ('1') to 5 ('0') examples.",
    '           5  0',
    '           4  1',
  ]
  assert run_command(split='shuffled(train)[:9]', classes=1)[3:] == [
    '           5  0',
    '... and 1 more classes (--classes=2 lists all).',
  ]
  monkeypatch.setattr(balance, '_RECORDS', 8)
  assert run_command(data='shapes', split='train[:9]')[2:] == [
    'classes not counted: that needs the labels of 9 examples to be read.',
    'Pass --count to count them.',
  ]
  lines = run_command(data='shapes', split='train[:9]', count=True)
  assert len(lines) == 3 + 5
