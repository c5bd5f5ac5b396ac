"""Guards: splits, checks of classes, and decoding follow from the data."""

import cv2
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import inputs
from vit_jax.configs import pretrain


def _folder(root, files):
  for file in files:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))
  return f'folder:{root}'


def _chosen(spec, argument='', **changes):
  config = pretrain.get_config(f'ViT-Ti/4,{spec}{argument}')
  config.update_from_flattened_dict(changes)
  config_lib.validate(config)
  config = config_lib.choose_evaluation(config, data.open_source(spec))
  config_lib.validate(config)
  return config


@pytest.mark.parametrize(
  'names, evals',
  [
    (['train', 'val', 'validation', 'test'], {'test': 'test'}),
    (['train', 'val', 'validation'], {'validation': 'validation'}),
    (['TRAIN', 'Val'], {'val': 'Val'}),
    (['train', 'valid'], {'held_out': 'shuffled(train)[90%:]'}),
  ],
)
def test_the_split_to_evaluate_on_is_chosen_by_its_name(tmp_path, names, evals):
  spec = _folder(tmp_path, [f'{s}/{c}/1.png' for s in names for c in 'ab'])
  config = _chosen(spec, **{'checkpoint.best': 'auto/accuracy'})
  assert {k: v.split for k, v in config.evals.items()} == evals
  assert config.checkpoint.best == f'{next(iter(evals))}/accuracy'
  # One from the command line is kept.
  config = _chosen(spec, **{'evals.auto.split': names[1]})
  assert [v.split for v in config.evals.values()] == [names[1]]
  assert config.data.train_split == 'train'


def test_without_a_test_split_a_tenth_is_held_out(tmp_path):
  files = [f'{c}/{i}.png' for i in range(20) for c in 'ab']
  spec = _folder(tmp_path, files)
  config = _chosen(spec)
  source = data.open_source(spec)
  trained = data.View(source, config.data.train_split)
  measured = data.View(source, config.evals.held_out.split)
  assert (len(trained), trained.shared(measured)) == (36, 0)
  # Files that runs have held out since `classes:` exists.
  held_out = [r.name.removeprefix(f'{tmp_path}/') for r in measured]
  assert held_out == ['b/7.png', 'b/9.png', 'a/5.png', 'b/5.png']
  # The tenth is a part of the given training split, not of all data.
  config = _chosen(spec, ',train=train[:50%]')
  assert config.data.train_split == 'shuffled(train[:50%])[:90%]'
  assert config.evals.held_out.split == 'shuffled(train[:50%])[90%:]'


def test_a_chosen_split_gets_a_clean_evaluation(tmp_path):
  files = [f'{s}/{c}/1.png' for s in ('train', 'val') for c in 'ab']
  spec = _folder(tmp_path, files)
  evals = _chosen(spec, ',clean=t').evals
  assert {name: (e.dataset, e.split) for name, e in evals.items()} == {
    'val': ('', 'val'),
    'val_clean': (f'{spec},exclude=t', 'val'),
  }
  with pytest.raises(ValueError, match='leave out clean='):
    _chosen(_folder(tmp_path / 'other', ['train/a/1.png']), ',clean=t')


def test_a_config_is_completed_in_one_place(tmp_path):
  spec = _folder(tmp_path, [f'{c}/{i}.png' for i in range(20) for c in 'ab'])
  config = pretrain.get_config(f'ViT-Ti/4,{spec}')
  config, view = _complete(config)
  assert (config.num_classes, config.data.num_examples) == (2, len(view))
  assert config.total_steps == int(36 * config.epochs / config.data.batch_size)


@pytest.mark.parametrize(
  'files, train, test, message',
  [
    # A folder that looks like a mistake.
    ('train/a train/b test/b test/c', '', '', "no image in 'test': a. Is a fo"),
    ('train/a train/b test/a test/b extra/a', '', '', ''),
    # Slices of classes in order.
    ('train/a train/b test/a', 'train[:50%]', 'train', "'train[:50%]': b"),
    ('train/a train/b', 'shuffled(train)[:50%]', 'shuffled(train)[50%:]', ''),
    ('train/a train/b', 'shuffled(train[:50%])[:90%]', 'train', "'shuffled"),
  ],
)
def test_classes_without_an_image_are_named(
  tmp_path, caplog, files, train, test, message
):
  files = [f'{name}/{i}.png' for name in files.split() for i in range(4)]
  spec = _folder(tmp_path, files)
  config = _chosen(spec)
  if test:
    config.data.train_split = train
    [section] = config.evals.values()
    section.split = test
  _complete(config)
  assert message in caplog.text if message else not caplog.text
  caplog.clear()
  config.loss = config_lib.masked_patch()  # Learns no classes.
  _complete(config)
  assert not caplog.text


def _complete(config):
  return config_lib.complete(config, data.open_source(config.data.dataset))


def test_one_class_folder_is_refused(tmp_path):
  spec = _folder(tmp_path, ['train/a/1.png', 'test/a/1.png'])
  with pytest.raises(ValueError, match="has one class, 'a'"):
    _complete(_chosen(spec))


def test_photographs_of_the_user_are_rotated():
  config = config_lib.default()
  for dataset, value, upright in (
    ('mix:folder:/a@0.5+classes:/b@0.5', None, True),
    ('tfds:imagenet2012', None, False),
    ('folder:/a', False, False),
  ):
    config.data.dataset, config.data.exif_orientation = dataset, value
    assert inputs.parse_preprocess(config, 'resize').upright == upright


def test_other_data_have_the_usual_names_of_columns(monkeypatch):
  config = config_lib.default()
  config.data.image_key, config.data.dataset = 'photo', 'tfds:a,exclude=e'
  keys = []
  monkeypatch.setattr(
    data, 'open_source', lambda spec, **options: keys.append(options)
  )
  for spec in ('tfds:a,exclude=e', 'tfds:a', 'tfds:b'):
    inputs.open_source(config, spec)
  assert [k['image_key'] for k in keys] == ['photo', 'photo', 'image']
