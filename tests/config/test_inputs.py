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


def _settled_config(spec, **changes):
  config = pretrain.get_config(f'ViT-Ti/4,{spec}')
  config.update(changes)
  return inputs.settle(config, data.open_source(spec))


@pytest.mark.parametrize(
  'splits, measured',
  [
    (['train', 'val', 'validation', 'test'], 'test'),
    (['train', 'val', 'validation'], 'validation'),
    (['train', 'val'], 'val'),
  ],
)
def test_the_split_to_evaluate_on_is_chosen_by_its_name(
  tmp_path, splits, measured
):
  spec = _folder(tmp_path, [f'{s}/{c}/1.png' for s in splits for c in 'ab'])
  config = _settled_config(spec)
  assert {k: v.split for k, v in config.evals.items()} == {measured: measured}
  assert config.data.train_split == 'train'


def test_without_a_test_split_a_tenth_is_held_out(tmp_path):
  spec = _folder(
    tmp_path, [f'train/{c}/{i}.png' for i in range(20) for c in 'ab']
  )
  config = _settled_config(spec)
  [(name, section)] = config.evals.items()
  source = data.open_source(spec)
  trained = data.View(source, config.data.train_split)
  measured = data.View(source, section.split)
  assert name == 'held_out'
  assert (len(trained), len(measured)) == (36, 4)
  assert trained.shared(measured) == 0
  # The tenth is a part of the given training split, not of all data.
  config = pretrain.get_config(f'ViT-Ti/4,{spec},train=train[:50%]')
  config = inputs.settle(config, source)
  assert config.data.train_split == 'shuffled(train[:50%])[:90%]'
  assert config.evals.held_out.split == 'shuffled(train[:50%])[90%:]'


@pytest.mark.parametrize(
  'names, measured, said',
  [
    (['Train', 'Test', 'VAL'], ('test', 'Test'), "split 'Test'"),
    (['TRAIN', 'Val'], ('val', 'Val'), "split 'Val'"),
    # Runs that began when capitals counted held out a tenth of such a train.
    (['train', 'Test'], ('held_out', 'shuffled(train)[90%:]'), '(Test)'),
    (['train', 'valid', 'x'], ('held_out', 'shuffled(train)[90%:]'), '(valid,'),
  ],
)
def test_splits_in_capitals_are_found_or_suggested(
  tmp_path, monkeypatch, names, measured, said
):
  lines = []
  monkeypatch.setattr(
    inputs.logging, 'info', lambda text, *args: lines.append(text % args)
  )
  files = [f'{s}/{c}/{i}.png' for s in names for c in 'ab' for i in range(9)]
  spec = _folder(tmp_path, files)
  config = _settled_config(spec)
  assert [(k, v.split) for k, v in config.evals.items()] == [measured]
  assert len(lines) == 1
  assert said in lines[0]
  source = data.open_source(spec)
  inputs.check_classes(config, source)
  assert len(data.View(source, measured[1])) in (2, 18)


@pytest.mark.parametrize('kind', ['folder', 'classes'])
def test_a_tenth_of_class_folders_without_splits_is_held_out(
  tmp_path, monkeypatch, kind
):
  lines = []
  monkeypatch.setattr(
    inputs.logging, 'info', lambda text, *args: lines.append(text % args)
  )
  files = [f'{c}/{i}.png' for i in range(20) for c in 'ab']
  spec = _folder(tmp_path, files).replace('folder', kind, 1)
  config = _settled_config(spec)
  assert config.data.train_split == 'shuffled(train)[:90%]'
  assert config.evals.held_out.split == 'shuffled(train)[90%:]'
  held_out = data.View(data.open_source(spec), 'shuffled(train)[90%:]')
  # Files that runs with `classes:` have held out since it exists.
  assert [r.name.removeprefix(f'{tmp_path}/') for r in held_out] == [
    *('b/7.png', 'b/9.png', 'a/5.png', 'b/5.png'),
  ]
  assert len(lines) == 1
  assert 'tenth' in lines[0]


def test_best_checkpoint_uses_the_chosen_split(tmp_path):
  spec = _folder(
    tmp_path, [f'{s}/{c}/1.png' for s in ('train', 'val') for c in 'ab']
  )
  config = pretrain.get_config(f'ViT-Ti/4,{spec}')
  config.checkpoint.best = 'auto/accuracy'
  config_lib.validate(config)
  config = inputs.settle(config, data.open_source(spec))
  assert config.checkpoint.best == 'val/accuracy'
  config_lib.validate(config)


def test_a_split_from_the_command_line_is_kept(tmp_path):
  files = [f'{s}/{c}/1.png' for s in ('train', 'val', 'test') for c in 'ab']
  spec = _folder(tmp_path, files)
  config = pretrain.get_config(f'ViT-Ti/4,{spec}')
  config.evals.auto.split = 'val'
  config = inputs.settle(config, data.open_source(spec))
  assert {k: v.split for k, v in config.evals.items()} == {'val': 'val'}


def test_an_explicit_split_is_kept():
  config = pretrain.get_config('ViT-Ti/4,digits,eval=train[90%:]')
  assert inputs.settle(config, data.open_source('digits')) == config


@pytest.mark.parametrize(
  'files, message',
  [
    (
      ['train/a/1.png', 'train/b/1.png', 'test/b/1.png', 'test/c/1.png'],
      "1 of 3 classes have no image in 'test': a. Is a folder misspelt",
    ),
    (
      ['train/a/1.png', 'test/a/1.png', 'test/b/1.png', 'test/c/1.png'],
      "2 of 3 classes have no image in 'train': b, c. ",
    ),
  ],
)
def test_class_folders_that_look_like_a_mistake(
  tmp_path, caplog, files, message
):
  spec = _folder(tmp_path, files)
  config = _settled_config(spec)
  source = data.open_source(spec)
  inputs.check_classes(config, source)
  assert message in caplog.text
  caplog.clear()
  config.loss = config_lib.masked_patch()  # Learns no classes.
  inputs.check_classes(config, source)
  assert not caplog.text


def test_one_class_folder_is_refused(tmp_path):
  spec = _folder(tmp_path, ['train/a/1.png', 'test/a/1.png'])
  with pytest.raises(ValueError, match="has one class, 'a'"):
    inputs.check_classes(_settled_config(spec), data.open_source(spec))


@pytest.mark.parametrize(
  'train, test, message',
  [
    ('train[:50%]', 'test', "no image in 'train[:50%]': b"),
    (
      'train',
      'train[50%:]',
      "no image in 'train[50%:]': a",
    ),
    ('shuffled(train[:50%])[:90%]', 'test', "have no image in 'shuffled"),
    ('shuffled(train)[:50%]', 'shuffled(train)[50%:]', ''),
    ('train+test', 'train[25%:75%]', ''),
  ],
)
def test_slices_of_sorted_classes(tmp_path, caplog, train, test, message):
  files = [f'train/{c}/{i}.png' for c in 'ab' for i in range(4)]
  spec = _folder(tmp_path, [*files, 'test/a/1.png', 'test/b/1.png'])
  config = _settled_config(spec)
  config.data.train_split, config.evals.test.split = train, test
  source = data.open_source(spec)
  inputs.check_classes(config, source)
  assert message in caplog.text if message else not caplog.text


def test_unused_splits_may_lack_classes(tmp_path):
  files = [f'{s}/{c}/1.png' for s in ('train', 'test') for c in 'ab']
  spec = _folder(tmp_path, [*files, 'extra/a/1.png'])
  inputs.check_classes(_settled_config(spec), data.open_source(spec))


def test_an_empty_class_is_reported(tmp_path, caplog):
  files = [f'train/{c}/{i}.png' for c in 'ab' for i in range(10)]
  spec = _folder(tmp_path, files)
  (tmp_path / 'train/c').mkdir()
  inputs.check_classes(_settled_config(spec), data.open_source(spec))
  assert (
    "1 of 3 classes have no image in 'shuffled(train)[:90%]': c." in caplog.text
  )


def test_exif_orientation_is_applied_to_folders_by_default():
  config = config_lib.default()
  for dataset, value, upright in (
    ('folder:/a', None, True),
    ('classes:/a', None, True),
    ('tfds:imagenet2012', None, False),
    ('folder:/a', False, False),
    ('tfds:a', True, True),
  ):
    config.data.dataset, config.data.exif_orientation = dataset, value
    assert inputs.parse_preprocess(config, 'resize').upright == upright
  config.data.exif_orientation = None
  assert inputs.parse_preprocess(config, 'resize', 'folder:/b').upright


def test_max_pixels_follows_the_config():
  config = config_lib.default()
  assert inputs.parse_preprocess(config, 'resize').max_pixels == 2**27
  config.data.max_pixels = 10**6
  assert inputs.parse_preprocess(config, 'resize').max_pixels == 10**6
  # A run that is older than the key does not have it.
  with config.unlocked():
    del config.data.max_pixels
  assert inputs.parse_preprocess(config, 'resize').max_pixels == 2**27


def test_how_jpegs_are_decoded():
  config = config_lib.default()
  assert inputs.parse_preprocess(config, 'resize').jpeg_dct == 'fast'
  config.data.jpeg_dct = 'accurate'
  assert inputs.parse_preprocess(config, 'resize').jpeg_dct == 'accurate'
  # A run that is older than the key does not have it.
  with config.unlocked():
    del config.data.jpeg_dct
  assert inputs.parse_preprocess(config, 'resize').jpeg_dct == 'accurate'
