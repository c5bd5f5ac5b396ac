"""Guards: arguments, checks, derived values and `config.json` of a config."""

import json
import re

import pytest
from ml_collections import config_dict

from vit_jax import config as config_lib

# Arguments of config files ---------------------------------------------------


def _parse(argument):
  return config_lib.parse_argument(
    argument,
    positional=('model', 'dataset'),
    options={'epochs': float, 'resolution': int, 'train': str},
    usage='Usage: MODEL,DATASET.',
  )


@pytest.mark.parametrize(
  'argument, expected',
  [
    ('B/16,pets', {'model': 'B/16', 'dataset': 'pets'}),
    (
      'B/16,pets,resolution=512,epochs=3',
      {'model': 'B/16', 'dataset': 'pets', 'resolution': 512, 'epochs': 3.0},
    ),
    # Options may be anywhere, and a trailing comma is ignored.
    (
      'train=all,B/16,epochs=0.5,pets,',
      {'model': 'B/16', 'dataset': 'pets', 'epochs': 0.5, 'train': 'all'},
    ),
    # Only a path may contain commas or an equals sign.
    (
      'B/16,folder:/a,b/c,train=all',
      {'model': 'B/16', 'dataset': 'folder:/a,b/c', 'train': 'all'},
    ),
    (
      'B/16,folder:/runs/lr=3',
      {'model': 'B/16', 'dataset': 'folder:/runs/lr=3'},
    ),
  ],
)
def test_arguments(argument, expected):
  assert _parse(argument) == expected


def test_a_path_that_exists_may_look_like_an_option(tmp_path):
  path = tmp_path / 'birds,epoch=3'
  with pytest.raises(ValueError, match="'epoch=3' in the config argument"):
    _parse(f'B/16,folder:{path},epochs=2')
  path.mkdir()
  found = _parse(f'B/16,folder:{path},epochs=2')
  assert (found['dataset'], found['epochs']) == (f'folder:{path}', 2)


@pytest.mark.parametrize(
  'argument, message',
  [
    (None, 'lacks MODEL, DATASET'),
    ('epochs=3,B/16', 'lacks DATASET'),
    ('B/16,pets,epoch=3', "['epoch=3'] left over; options are ['epochs'"),
    ('B/16,folder:/a,b,epoch=3', "'epoch=3' in the config argument"),
    ('B/16,pets,epochs=1,epochs=2', 'epochs= is given twice'),
    ('B/16,pets,resolution=38.4', "resolution='38.4' is not of type int"),
  ],
)
def test_argument_errors(argument, message):
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    _parse(argument)
  assert 'Usage: MODEL,DATASET.' in str(error.value)


# Checks ----------------------------------------------------------------------


def _config():
  config = config_lib.default()
  config.data.dataset = 'digits'
  config.total_steps = 100
  config.evals.test = config_lib.evaluation('test')
  return config


def test_unknown_keys_in_a_config_file():
  config = config_lib.default()
  for section, key in ((config, 'epoch'), (config.data, 'batchsize')):
    with pytest.raises(AttributeError, match=key):
      setattr(section, key, 3)
  config.evals.any_name = config_lib.evaluation('test')


@pytest.mark.parametrize(
  'key, value, remedy',
  [
    # All keys with a least value are in one table.
    ('seed', -1, 'at least 0'),
    ('data.prefetch', 0, 'at least 1'),
    ('evals.test.every', -2, 'at least -1'),
    # Those with a check of their own.
    ('seed', 2**32, 'below 2**32'),
    ('mixup_alpha', float('inf'), 'finite'),
    ('cutmix_share', float('nan'), 'at most 1'),
    ('polyak.decay', 1.0, '[0, 1)'),
    ('tuning.layer_decay', 0.0, '(0, 1]'),
    ('guard.nonfinite', 'go on', "['stop', 'skip']"),
    ('total_steps', 0, 'exactly one of the two'),
    ('epochs', 3.0, 'exactly one of the two'),
    ('data.dataset', None, '--config.data.dataset=SPEC'),
    ('init.checkpoint', None, '--config.init.checkpoint=WORKDIR'),
    ('image_size', (32,), '(height, width)'),
    ('image_size', (32, 'a'), '(height, width)'),
    ('checkpoint.best', 'test/acc', 'test/accuracy'),
  ],
)
def test_validation(key, value, remedy):
  config = _config()
  config_lib.validate(config)
  section, _, name = key.rpartition('.')
  (config[section] if section else config)[name] = value
  with pytest.raises(ValueError, match=re.escape(key)) as error:
    config_lib.validate(config)
  assert remedy in str(error.value)


def test_a_replaced_section_needs_all_of_its_keys():
  config = _config()
  config.log = config_dict.ConfigDict({'tensorboard': False})
  with pytest.raises(
    ValueError, match=r'log\.every is missing.*config\.log\.update'
  ):
    config_lib.validate(config)


def _resolve(config, num_examples=100, num_classes=10):
  return config_lib.resolve(
    config, num_examples=num_examples, num_classes=num_classes
  )


def test_resolving_fills_in_values_that_depend_on_the_data():
  config = _config()
  config.total_steps, config.epochs = 0, 3.0
  config.data.batch_size = 8
  config.schedule.warmup_steps = -1
  result = _resolve(config)
  assert result.num_classes == 10
  assert result.data.num_examples == 100
  assert result.total_steps == 37  # 3 * 100 / 8 = 37.5
  assert result.schedule.warmup_steps == 3
  assert (config.num_classes, config.total_steps) == (None, 0)
  assert config.schedule.warmup_steps == -1


def test_epochs_count_examples_per_epoch_if_it_is_set():
  config = _config()
  config.total_steps, config.epochs = 0, 3.0
  config.data.batch_size = 8
  config.data.examples_per_epoch = 80
  result = _resolve(config)
  assert result.total_steps == 30
  assert result.data.num_examples == 100


def test_an_epoch_on_a_subset_may_have_the_size_of_the_whole_data():
  config = _config()
  config.total_steps, config.epochs = 0, 3.0
  config.data.batch_size = 8
  config.data.train_split = 'shuffled(train)[:10%]'
  config.data.examples_per_epoch = -1
  config_lib.validate(config)
  result = config_lib.resolve(
    config, num_examples=10, num_classes=10, whole=100
  )
  assert result.total_steps == 37  # 3 * 100 / 8 = 37.5
  assert result.data.examples_per_epoch == 100
  assert result.data.num_examples == 10
  with pytest.raises(ValueError, match=r'examples_per_epoch=-1 needs the size'):
    _resolve(config, num_examples=10)
  config.total_steps, config.epochs = 5, 0.0
  result = _resolve(config, num_examples=10)
  assert (result.total_steps, result.data.examples_per_epoch) == (5, 0)


def test_values_that_disagree_with_the_data_are_refused():
  config = _config()
  config.num_classes = 1000
  with pytest.raises(ValueError, match=r"num_classes=1000 .* 'digits' has 10 "):
    _resolve(config)
  config.num_classes = 0
  assert _resolve(config).num_classes == 10
  config.data.num_examples = 5
  with pytest.raises(
    ValueError, match=r"num_examples=5 in .* has 100 \(split 'train'\)"
  ):
    _resolve(config)
  config.data.num_examples = 0
  assert _resolve(config).data.num_examples == 100


def test_epochs_of_less_than_one_step_are_refused():
  config = _config()
  config.total_steps, config.epochs = 0, 1.0
  config.data.batch_size = 101
  with pytest.raises(
    ValueError, match=r'epochs=1.0 of 100 .*batch_size=101 is less than one'
  ):
    _resolve(config)


@pytest.mark.parametrize(
  'platform, implementation, dtype',
  [
    ('tpu', 'lanes', 'bfloat16'),
    ('gpu', 'cudnn', 'bfloat16'),
    ('cpu', 'plain', 'float32'),
    ('another accelerator', 'cudnn', 'bfloat16'),
  ],
)
def test_defaults_of_devices(platform, implementation, dtype):
  given = _config()
  resolved = config_lib.resolve(
    given, num_examples=100, num_classes=10, platform=platform
  )
  assert resolved.model.attention_implementation == implementation
  assert resolved.model.dtype == dtype


# The config of a work directory ----------------------------------------------


def test_save_and_load(tmp_path):
  assert config_lib.load(tmp_path) is None
  config_lib.save(_config(), tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ['config.json']
  loaded = config_lib.flatten(config_lib.load(tmp_path))
  assert loaded['image_size'] == [224, 224]
  assert loaded['evals.test.split'] == 'test'


def test_a_damaged_config(tmp_path):
  (tmp_path / 'config.json').write_text('{"seed": 1')
  with pytest.raises(ValueError, match=r'config\.json is damaged'):
    config_lib.load(tmp_path)


def test_an_empty_work_directory_accepts_any_config(tmp_path):
  config_lib.check_same_run(_config(), tmp_path)
  config_lib.check_same_run(_config(), tmp_path / 'not there')


def test_the_work_directory_of_another_run_is_refused(tmp_path):
  config_lib.save(_config(), tmp_path)
  config_lib.check_same_run(_config(), tmp_path)
  config = _config()
  config.seed = 1
  config.image_size = (32, 32)
  config.data.dataset = 'digits:01'
  config.optimizer = config_lib.sgd()
  config.log.every = 1
  with pytest.raises(ValueError, match='holds a run with another') as error:
    config_lib.check_same_run(config, tmp_path)
  lines = str(error.value).splitlines()
  assert '  image_size: [224, 224] in config.json, [32, 32] now' in lines
  assert "  optimizer.momentum: '(absent)' in config.json, 0.9 now" in lines
  assert not any('log.every' in line for line in lines)
  assert '--allow_config_change' in lines[-1]


@pytest.mark.parametrize(
  'key, value',
  [
    ('mesh.data', 4),
    ('evals.test.split', 'test[:10]'),
    ('evals.other', config_lib.evaluation('train')),
    ('checkpoint.every', 7),
    ('data.dataset', 'folder:/moved'),
    ('data.dataset', 'classes:/images'),
  ],
)
def test_keys_that_may_change_between_launches(tmp_path, key, value):
  config = _config()
  config.data.dataset = 'folder:/images'
  config_lib.save(config, tmp_path)
  section, _, name = key.rpartition('.')
  config[section][name] = value
  config_lib.check_same_run(config, tmp_path)


def test_runs_saved_without_newer_keys_go_on_with_their_defaults(tmp_path):
  config = _config()
  saved = config.to_dict()
  del saved['cutmix_alpha'], saved['cutmix_share']
  del saved['model']['stochastic_depth']
  saved['data']['uneven_classes'] = 'accept'  # There is no such key any more.
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  config_lib.check_same_run(config, tmp_path)
  config.cutmix_alpha = 1.0
  with pytest.raises(ValueError, match=r'cutmix_alpha: .*absent.* 1.0 now'):
    config_lib.check_same_run(config, tmp_path)


def test_runs_saved_without_jpeg_dct_decoded_accurately(tmp_path):
  config = _config()
  for dataset, refused in (('folder:/a', True), ('digits:01', False)):
    config.data.dataset, config.data.jpeg_dct = dataset, 'fast'
    saved = config.to_dict()
    del saved['data']['jpeg_dct']
    (tmp_path / 'config.json').write_text(json.dumps(saved))
    if refused:
      with pytest.raises(ValueError, match=r"jpeg_dct: 'accurate' in .* 'fa"):
        config_lib.check_same_run(config, tmp_path)
      config.data.jpeg_dct = 'accurate'
    config_lib.check_same_run(config, tmp_path)


def test_a_moved_data_set_must_have_the_same_size(tmp_path):
  config = _config()
  config.data.dataset = 'folder:/images'
  config_lib.save(_resolve(config, num_examples=100), tmp_path)
  config.data.dataset = 'folder:/moved'
  with pytest.raises(ValueError, match=r'num_examples: 100 in .*, 99 now'):
    config_lib.check_same_run(_resolve(config, num_examples=99), tmp_path)
