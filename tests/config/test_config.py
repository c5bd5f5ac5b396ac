"""Guards: arguments, checks, derived values and `config.json` of a config."""

import json
import re

import pytest
from ml_collections import config_dict

from vit_jax import config as config_lib
from vit_jax.config import completion
from vit_jax.plan import analysis

# Arguments of config files ---------------------------------------------------


USAGE = (
  'Usage: a.py:MODEL,DATASET[,epochs=3.0][,resolution=9][,train=SPLIT]'
  '[,tune=all|head][,exclude=FILE], with epochs=N, DATASET a spec.'
)


def _parse(argument):
  return config_lib.parse_argument(argument, USAGE)


def test_arguments():
  for argument, dataset, options in (
    ('B/16,pets', 'pets', {}),
    # Options may be anywhere, and a trailing comma is ignored.
    ('train=all,B/16,epochs=0.5,pets,', 'pets', dict(epochs=0.5, train='all')),
    # Only a path may contain an equals sign.
    ('B/16,a:/b=1,exclude=e,train=d', 'a:/b=1,exclude=e', dict(train='d')),
  ):
    assert _parse(argument) == {'model': 'B/16', 'dataset': dataset} | options


@pytest.mark.parametrize(
  'argument, message',
  [
    (None, 'lacks MODEL, DATASET'),
    ('B/16,pets,epoch=3', "['epoch=3'] left over; options are ['epochs'"),
    ('B/16,pets,epochs=1,epochs=2', 'has epochs= twice'),
    ('B/16,pets,resolution=38.4', "resolution='38.4' is not of type int"),
    ('B/16,pets,tune=lora', "choose one of ['all', 'head']"),
  ],
)
def test_argument_errors(argument, message):
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    _parse(argument)
  assert str(error.value).endswith(USAGE)


# Checks ----------------------------------------------------------------------


def _config(**changes):
  config = config_lib.default()
  config.data.dataset = 'digits'
  config.total_steps = 100
  config.evals.test = config_lib.evaluation('test')
  config.update_from_flattened_dict(changes)
  return config


def test_a_config_file_has_exactly_the_keys_of_the_table():
  config = _config()
  with pytest.raises(AttributeError, match='batchsize'):
    config.data.batchsize = 3
  with pytest.raises(TypeError, match='evry'):
    config_lib.evaluation('test', evry=3)
  with pytest.raises(TypeError, match='warmup_steps'):
    config_lib.schedule('linear', peak=1)
  config.log = config_dict.ConfigDict({'tensorboard': False})
  with pytest.raises(ValueError, match=r'log\.every .*config\.log\.update'):
    config_lib.validate(config)


@pytest.mark.parametrize(
  'key, value, remedy',
  [
    # Without a check of its own, a number is at least 0, in all sections.
    ('evals.test.batch_size', -1, 'at least 0'),
    ('cutmix_alpha', float('nan'), 'at least 0'),
    # A number or a word.
    *(
      ('checkpoint.every', value, "at least 1, or 'auto'")
      for value in (0, -3, 2.5, True, 'never', None)
    ),
    # Those with a check of their own.
    ('evals.test.every', -2, 'at least -1'),
    ('seed', 2**32, 'below 2**32'),
    ('tuning.layer_decay', 0.0, '(0, 1]'),
    ('guard.nonfinite', 'go on', "['stop', 'skip']"),
    ('dropout_rng', 'mt', "['threefry', 'rbg']"),
    ('data.unreadable', 'skip', "['error', 'skip-and-count']"),
    ('mesh.shard', 'params', "['none', 'optimizer', 'all']"),
    ('mesh.reduce_dtype', 'float16', "['auto', 'float32', 'bfloat16']"),
    ('loss.name', 'hinge', "['softmax', 'sigmoid', 'masked_patch', 'mae']"),
    ('loss.label_smoothing', 1.0, '[0, 1)'),
    ('loss.reduce', 'none', "['sum', 'mean']"),
    ('optimizer.name', 'adam', "'adamw', 'lamb', 'lars'"),
    ('optimizer.name', 'sgd', "'momentum'"),
    ('optimizer.mu_dtype', 'float16', "['float32', 'bfloat16']"),
    ('optimizer.b1', -0.5, 'at least 0'),
    ('sam.rho_end', -0.5, 'at least 0, or -1'),
    ('optimizer.weight_decay_params', 'biases', "['all', 'kernels']"),
    ('optimizer.clip_norm', -1.0, 'at least 0'),
    ('schedule.name', 'step', "'staircase']"),
    ('lora.alpha', 0.0, '(0, inf)'),
    ('evals.test.kind', 'probe', "'linear_probe']"),
    ('image_size', (32, 'a'), '(height, width)'),
    # Those that concern several keys, or that a plan leaves out.
    ('epochs', 3.0, 'exactly one of the two'),
    ('data.dataset', None, '--config.data.dataset=SPEC'),
    ('init.checkpoint', None, '--config.init.checkpoint=WORKDIR'),
    ('checkpoint.best', 'test/acc', 'test/accuracy'),
  ],
)
def test_validation(key, value, remedy):
  config = _config()
  config_lib.validate(config)
  section, _, name = key.rpartition('.')
  (config[section] if section else config)[name] = value
  place = section if remedy == "'momentum'" else key
  with pytest.raises(ValueError, match=re.escape(place)) as error:
    config_lib.validate(config)
  assert remedy in str(error.value)


# Derived values --------------------------------------------------------------


def _resolve(config, num_examples=100, **known):
  return config_lib.resolve(
    config, num_examples=num_examples, num_classes=10, **known
  )


@pytest.mark.parametrize(
  'per_epoch, examples, whole, steps',
  [
    (None, 100, 0, 37),  # 3 * 100 / 8 = 37.5
    (80, 100, 0, 30),
    # A subset has as many steps as the whole data.
    (-1, 10, 100, 37),
  ],
)
def test_the_data_decide_the_length_of_a_run(per_epoch, examples, whole, steps):
  config = _config(total_steps=0, epochs=3.0)
  config.data.batch_size, config.data.examples_per_epoch = 8, per_epoch
  config.schedule.warmup_steps = -1
  before = config.to_json_best_effort()
  config_lib.validate(config)
  result = _resolve(config, num_examples=examples, whole=whole)
  assert (result.total_steps, result.schedule.warmup_steps) == (steps, 3)
  assert (result.num_classes, result.data.num_examples) == (10, examples)
  assert config.to_json_best_effort() == before


@pytest.mark.parametrize(
  'changes, error',
  [
    ({'num_classes': 1000}, r"num_classes=1000 .* 'digits' has 10 .*to 0"),
    ({'data.num_examples': 5}, r"num_examples=5 .* 100 \(split 'train'\)"),
    (
      {'total_steps': 0, 'epochs': 1.0, 'data.batch_size': 101},
      r'epochs=1.0 of 100 .*batch_size=101 is less than one .*batch_size=0',
    ),
    (
      {'total_steps': 0, 'epochs': 1.0, 'data.examples_per_epoch': -1},
      r'examples_per_epoch=-1 needs the size',
    ),
  ],
)
def test_values_that_disagree_with_the_data_are_refused(changes, error):
  with pytest.raises(ValueError, match=error):
    _resolve(_config(**changes))


def test_defaults_of_devices():
  for platform, implementation, dtype in (
    ('tpu', 'lanes', 'bfloat16'),
    ('cpu', 'plain', 'float32'),
    ('another accelerator', 'cudnn', 'bfloat16'),
  ):
    model = _resolve(_config(), platform=platform).model
    assert model.attention_implementation == implementation
    assert model.dtype == dtype


def test_rates_and_warm_ups_by_the_batch_and_the_epoch():
  config = _config(**{'data.batch_size': 8})
  config.schedule = config_lib.schedule(
    'cosine', peak=0.5, peak_batch=16, warmup_epochs=2.5, warmup_start=1e-3
  )
  config_lib.validate(config)
  expected = config_lib.schedule(
    # 2.5 * 100 / 8 = 31.25
    'cosine', peak=0.25, warmup_steps=31, warmup_start=1e-3
  )  # fmt: skip
  result = _resolve(config)
  assert result.schedule == expected
  assert _resolve(result) == result
  config.num_classes, config.data.num_examples = 10, 100
  assert analysis.resolve(config, 'tpu').schedule == expected
  for key, value in (('warmup_steps', -1), ('peak', -1.0)):
    wrong = config.copy_and_resolve_references()
    wrong.schedule[key] = value
    with pytest.raises(ValueError, match=f'not go with schedule.{key}=-1'):
      config_lib.validate(wrong)
  # The length of an epoch is unknown.
  config.data.num_examples = None
  unknown = config.copy_and_resolve_references()
  completion.fill_in(unknown)
  assert unknown.schedule.warmup_epochs == 2.5


def test_the_section_of_an_optimizer():
  with pytest.raises(ValueError, match=r"optimizer='adm' .*'adamw', 'lamb'"):
    config_lib.optimizer('adm')
  with pytest.raises(TypeError, match=r"\['beta1'\]: .*'b1', 'b2'"):
    config_lib.optimizer('adamw', beta1=0.9)
  # A number without a value can be given one later, but no other type.
  config = _config()
  config.optimizer = config_lib.optimizer('sgd')
  config_lib.validate(config)
  assert config.optimizer.momentum is None
  config.optimizer.momentum = 0.5
  config_lib.validate(config)
  with pytest.raises(TypeError, match='momentum'):
    config.optimizer.momentum = 'much'


# The config of a work directory ----------------------------------------------


def test_the_work_directory_of_another_run_is_refused(tmp_path):
  config_lib.check_same_run(_config(), tmp_path)
  config_lib.save(_config(), tmp_path)
  assert config_lib.load(tmp_path)['image_size'] == [224, 224]
  config_lib.check_same_run(_config(), tmp_path)
  config = _config(seed=1, image_size=(32, 32))
  config.optimizer = config_lib.optimizer('sgd', momentum=0.9)
  with pytest.raises(ValueError, match='holds a run with another') as error:
    config_lib.check_same_run(config, tmp_path)
  lines = str(error.value).splitlines()
  assert '  image_size: [224, 224] in config.json, [32, 32] now' in lines
  assert "  optimizer.momentum: '(absent)' in config.json, 0.9 now" in lines
  assert '--allow_config_change' in lines[-1]


@pytest.mark.parametrize(
  'key, value, may',
  [
    ('mesh.data', 4, True),
    ('evals.other', config_lib.evaluation('train'), True),
    # The digests of the data tell whether they are the same elsewhere.
    ('data.dataset', 'classes:/moved,exclude=/moved.json', True),
    ('data.num_examples', 99, False),
  ],
)
def test_keys_that_may_change_between_launches(tmp_path, key, value, may):
  config = _config(**{'data.dataset': 'folder:/images,exclude=/e.json'})
  config_lib.save(_resolve(config), tmp_path)
  config = _resolve(config)
  section, _, name = key.rpartition('.')
  config[section][name] = value
  if may:
    return config_lib.check_same_run(config, tmp_path)
  with pytest.raises(ValueError, match=f'  {key}: '):
    config_lib.check_same_run(config, tmp_path)


def test_runs_may_be_older_or_newer_than_a_key(tmp_path, caplog):
  config = _config()
  saved = config.to_dict()
  del saved['cutmix_alpha'], saved['data']['jpeg_dct']
  del saved['loss']['reduce']
  # These are gone.
  saved['data'] |= {'max_pixels': 1, 'prefetch': 3, 'quality': False}
  saved['guard']['report_after'] = 7.0
  saved['model']['gone'] = saved['gone'] = 1  # No longer exist.
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  config_lib.check_same_run(config, tmp_path)
  assert "'model.gone': 1" in caplog.text
  assert 'quality' not in caplog.text
  loaded = config_lib.load(tmp_path)
  assert (loaded['data']['jpeg_dct'], loaded['cutmix_alpha']) == ('fast', 0.0)
  assert loaded['loss'] == config_lib.softmax().to_dict()
  config.cutmix_alpha = 1.0
  with pytest.raises(ValueError, match=r'cutmix_alpha: 0.0 in .* 1.0 now'):
    config_lib.check_same_run(config, tmp_path)


@pytest.mark.parametrize(
  'name, renamed',
  [
    ('adam', {'beta1': 'b1', 'beta2': 'b2', 'moment_dtype': 'mu_dtype'}),
    ('sgd', {'moment_dtype': 'accumulator_dtype'}),
  ],
)
def test_names_of_older_runs(tmp_path, name, renamed):
  config = _config()
  config.optimizer = config_lib.optimizer(
    {'adam': 'adamw'}.get(name, name), weight_decay=0.1
  )
  key = list(renamed.values())[-1]
  config.optimizer[key] = 'bfloat16'
  older = config.to_dict()
  section = older['optimizer']
  for old, new in renamed.items():
    section[old] = section.pop(new)
  section['name'] = name
  gone = ('eps_root', 'nesterov')
  older['optimizer'] = {k: v for k, v in section.items() if k not in gone}
  older['schedule'] = {
    k: older['schedule'][k] for k in ('name', 'peak', 'warmup_steps', 'end')
  }
  del older['sam']
  (tmp_path / 'config.json').write_text(json.dumps(older))
  config_lib.check_same_run(config, tmp_path)
  loaded = config_lib.load(tmp_path)
  assert loaded == json.loads(config_lib.to_json(config))
  config.optimizer[key] = 'float32'
  with pytest.raises(ValueError, match=f"{key}: 'bfloat16' in .*'float32' now"):
    config_lib.check_same_run(config, tmp_path)


def test_a_config_of_another_program_stays_as_it_is(tmp_path):
  (tmp_path / 'config.json').write_text('{"architectures": ["Other"]}')
  assert config_lib.load(tmp_path) == {'architectures': ['Other']}
