"""Guards views of a source, and errors of data specs."""

import pytest

from vit_jax import data


class Numbers(data.Source):
  """A source whose record i of a split is (split, i)."""

  info = data.SourceInfo('numbers', {'train': 10, 'test': 4}, ('a', 'b', 'c'))

  def read(self, split, index):
    return data.Record(b'', index, split)


def _records(split):
  view = data.View(Numbers(), split)
  return [(view[i].name, view[i].label) for i in range(len(view))]


def test_view_of_a_sum_of_slices():
  assert _records('train[8:]+test[1:3]+train[:2]') == [
    ('train', 8),
    ('train', 9),
    ('test', 1),
    ('test', 2),
    ('train', 0),
    ('train', 1),
  ]


@pytest.mark.parametrize('index', [-1, 4])
def test_an_index_out_of_bounds_is_an_error(index):
  with pytest.raises(IndexError, match=f'has 4 records, and no record {index}'):
    data.View(Numbers(), 'test')[index]


@pytest.mark.parametrize(
  'spec',
  ['', 'digit', 'imagenet2012', 'folder', 'folder:', 'tfds:', 'numbers:10'],
)
def test_unknown_or_incomplete_specs_list_the_choices(spec, monkeypatch):
  monkeypatch.setitem(data.SOURCES, 'numbers', Numbers)
  assert data.open_source('numbers').info == Numbers.info
  with pytest.raises(ValueError, match='is unknown or incomplete') as error:
    data.open_source(spec)
  assert repr(spec) in str(error.value)
  kinds = str(error.value).partition('one of ')[2].partition('.')[0].split(', ')
  assert kinds == [*data.SOURCES]
  assert 'docs/data.md' in str(error.value)


@pytest.mark.parametrize('kind', ['digits', 'shapes', 'folder', 'classes'])
def test_names_are_known_without_a_read(kind, tmp_path):
  spec = kind
  if kind in ('folder', 'classes'):
    for name in ('a\n/1.png', 'b/deep/2.png'):
      path = tmp_path / ('test/' * (kind == 'folder') + name)
      path.parent.mkdir(parents=True)
      path.write_bytes(b'')
    spec = f'{kind}:{tmp_path}'
  source = data.open_source(spec)
  view = data.View(source, 'test' if kind != 'classes' else 'train')
  for index in (0, 1):
    assert view.name(index) == view[index].name
