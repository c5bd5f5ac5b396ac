"""Guards: the program reads every key of every config."""

import ast
import dataclasses
import functools
import importlib
import inspect
import io
import pathlib
import textwrap

import cv2
import jax
import ml_collections
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data import tfds_from_folder
from tests.tiny_run import SIZES
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import masked_patch, models, results, sharding
from vit_jax.models import axial_resnet, encoder, lora, resnet, vit
from vit_jax.runtime import profiling
from vit_jax.training import loop, losses, stages, start_up
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib

# Config file -> arguments that together give every key that the file can set.
ARGUMENTS = {
  'quickstart': [None],
  'pretrain': [
    'ViT-B/16,jft300m',
    'ViT-B/16,imagenet21k',
    'ViT-B/16,imagenet2012,optimizer=sgd,few_shot=digits',
  ],
  'masked_patch': ['ViT-B/16,imagenet2012,few_shot=digits'],
  'features': ['digits'],
  'finetune': ['ViT-B/16,imagenet2012,resolution=512,real=true'],
  'mini': [
    'ViT-B/16,jft300m',
    'ViT-B/16,imagenet2012,optimizer=sgd,subset=100',
    'ViT-B/16,cifar10',
  ],
  'midi': ['ViT-B/16,jft300m,of=digits', 'ViT-B/16,cifar10,of=digits'],
  'robustness': ['ViT-B/16,all'],
  'vtab': ['ViT-B/16,dtd'],
}


def test_all_config_files_are_listed():
  folder = pathlib.Path(__file__).parents[2] / 'configs'
  assert {p.stem for p in folder.glob('[!_]*.py')} == set(ARGUMENTS)


class Reads:
  """Records which leaves of a config are read, except to check or save them."""

  def __init__(self, monkeypatch):
    self._paths = {}  # id of a section -> its path with a dot at the end.
    self._watched = []  # Keeps those ids from being used again.
    self._blind = False
    self.leaves = set()
    for module, name in (
      (config_lib, 'validate'),
      (config_lib, 'check_same_run'),
      (config_lib, 'save'),
      (config_lib, 'to_json'),
      (start_up, '_write_parameters'),
      (results, 'missing_evaluations'),
    ):
      function = getattr(module, name)
      monkeypatch.setattr(module, name, self._without_noting_reads(function))
    cls = ml_collections.ConfigDict
    for name in ('keys', 'values', 'items', 'to_dict'):
      function = getattr(cls, name)
      monkeypatch.setattr(cls, name, self._refusing_whole_configs(function))
    get, copy = cls.__getitem__, cls.copy_and_resolve_references

    def get_and_note(section, key):
      value = get(section, key)
      path = self._paths.get(id(section))
      is_section = isinstance(value, cls)
      if path is not None and not is_section and not self._blind:
        self.leaves.add(path + key)
      return value

    def copy_and_watch(section, *args):
      result = copy(section, *args)
      if id(section) in self._paths:
        self.watch(result, self._paths[id(section)])
      return result

    monkeypatch.setattr(cls, '__getitem__', get_and_note)
    monkeypatch.setattr(cls, 'copy_and_resolve_references', copy_and_watch)

  def _without_noting_reads(self, function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
      self._blind = True
      try:
        return function(*args, **kwargs)
      finally:
        self._blind = False

    return wrapped

  def _refusing_whole_configs(self, function):
    """Refuses to iterate over a whole config, which would hide unread keys."""

    @functools.wraps(function)
    def wrapped(section, *args, **kwargs):
      watched = id(section) in self._paths and not self._blind
      if watched and 'model' in section:
        # An `assert` would print the config, and so read all of its keys.
        raise AssertionError(f'{function.__name__}() of a whole config')
      return function(section, *args, **kwargs)

    return wrapped

  def watch(self, section, path=''):
    self._watched.append(section)
    blind, self._blind = self._blind, True
    self._paths[id(section)] = path
    for key, value in section.items():
      if isinstance(value, ml_collections.ConfigDict):
        self.watch(value, f'{path}{key}.')
    self._blind = blind

  def unread(self, config):
    self._blind = True
    return sorted(config_lib.flatten(config).keys() - self.leaves)


@pytest.fixture
def reads(monkeypatch):
  return Reads(monkeypatch)


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
  """A checkpoint to start from, so that all keys of `init` are read."""
  sizes = _shrink(config_lib.default(), '').model.to_dict() | {'dtype': None}
  model = models.build(sizes.pop('name'), num_classes=2, **sizes)
  shapes = jax.eval_shape(
    lambda: step_lib.init_params(model, jax.random.key(0), (8, 8, 1))
  )
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  workdir = tmp_path_factory.mktemp('weights')
  checkpoints = checkpoint_lib.Checkpoints(workdir, keep=1, keep_every=0)
  checkpoints.save(1, {'params': params})
  checkpoints.close()
  return str(workdir)


def _shrink(config, weights):
  """Shrinks any config to two small steps that read the same keys."""
  config.image_size, config.channels = (8, 8), 1
  config.model.name = 'ViT-B/4'
  config.model.update(SIZES)
  if 'patch_size' in config.model:
    config.model.patch_size = (4, 4)
  config.data.batch_size = 8
  config.data.dataset = 'digits:01'
  config.data.train_split = 'train[:8]'
  for key in ('num_examples', 'examples_per_epoch'):
    if config.data[key]:
      config.data[key] = 8
  if config.num_classes:
    config.num_classes = 2
  for evaluation in config.evals.values():
    evaluation.split = 'test[:8]'
    if evaluation.kind in config_lib.FEATURES:
      evaluation.train_split = 'train[8:16]'
    if evaluation.kind == 'knn':
      evaluation.k = (1, 2)
    evaluation.preprocess = 'resize'
    evaluation.dataset = evaluation.label_key = ''
  config.total_steps, config.epochs = 0, 2.0
  config.schedule.warmup_steps = 1
  config.init.checkpoint = weights
  config.log.tensorboard = False
  config.mesh.data = 1
  return config


def _write_multi_label_data(folder):
  """Writes a TFDS data set like ImageNet-21k: lists of labels without names."""
  features = {
    'image': tfds.features.Image(),
    'labels': tfds.features.Sequence(tfds.features.Scalar(np.int64)),
  }
  png = cv2.imencode('.png', np.zeros((8, 8, 3), np.uint8))[1].tobytes()
  examples = [
    {'image': io.BytesIO(png), 'labels': list(range(i % 3))} for i in range(16)
  ]
  tfds_from_folder.write_examples(
    {'train': examples[:8], 'test': examples[8:]}, features, folder, 'several'
  )


@pytest.mark.parametrize(
  'name, argument', [(n, a) for n, list_ in ARGUMENTS.items() for a in list_]
)
def test_every_key_is_read(name, argument, reads, weights, tmp_path):
  module = importlib.import_module(f'vit_jax.configs.{name}')
  config = module.get_config(argument)
  if 'stages' in config:
    for stage in config.stages.values():
      _shrink(stage, weights)
    config.stages.finetune.init.checkpoint = 'stage:pretrain'
  else:
    _shrink(config, weights)
  if argument and 'imagenet21k' in argument:
    _write_multi_label_data(tmp_path)
    config.data.dataset = 'tfds:several'
    config.data.data_dir = str(tmp_path)
  reads.watch(config)
  train = stages.run if 'stages' in config else loop.train_and_evaluate
  train(config, tmp_path / 'run')
  assert reads.unread(config) == []


def test_a_key_that_nothing_reads_is_reported(reads, weights, tmp_path):
  config = _shrink(config_lib.default(), weights)
  config.evals.test = config_lib.evaluation('test[:8]')
  config.evals.few = config_lib.few_shot('train[8:16]', 'test[:8]')
  config.evals.near = config_lib.knn('train[8:16]', 'test[:8]', k=(3,))
  config.evals.probe = config_lib.linear_probe('train[8:16]', 'test[:8]')
  expected = []
  for section in (
    *('', 'data', 'evals.test', 'evals.few', 'evals.near', 'evals.probe'),
    *('init', 'polyak', 'checkpoint'),
  ):
    holder = config[section] if section else config
    with holder.unlocked():
      holder.unread = 1
    expected.append(f'{section}.unread'.removeprefix('.'))
  with config.unlocked():
    config.log.unread = 1
  expected.append('log.unread')
  reads.watch(config)
  loop.train_and_evaluate(config, tmp_path / 'run')
  assert reads.unread(config) == sorted(expected)


# Section -> the functions that take its keys as arguments. They must refuse
# unknown keys, and use each of their own.
CONSUMERS = {
  'model': [vit.ViT, resnet.BiT, axial_resnet.AxialResNet],
  'loss': [*losses.LOSSES.values(), masked_patch.build],
  'optimizer': list(optimizer_lib.OPTIMIZERS.values()),
  'schedule': list(optimizer_lib.SCHEDULES.values()),
  'lora': [lora.init],
  'mesh': [sharding.build, sharding.make_mesh],
  'profile': [profiling.Profiler.__init__],
}


@pytest.mark.parametrize('section', CONSUMERS)
def test_an_unknown_key_of_a_section_is_refused(section, weights, tmp_path):
  config = _shrink(config_lib.default(), '')
  with config.unlocked():
    config[section].unread = 1
  config.lora.rank = 2
  with pytest.raises((TypeError, ValueError), match='unread'):
    loop.train_and_evaluate(config, tmp_path / 'run')


@pytest.mark.parametrize('section', CONSUMERS)
def test_every_argument_of_a_section_is_used(section):
  for function in CONSUMERS[section]:
    if inspect.isclass(function):
      fields = {f.name for f in dataclasses.fields(function)}
      names = {f'self.{name}' for name in fields - {'name', 'parent'}}
    else:
      names = {
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.name != 'self'
      }
    source = textwrap.dedent(inspect.getsource(function))
    if function is vit.ViT:  # Its encoder and `quantized` read the rest.
      source += inspect.getsource(encoder).replace('options.', 'self.')
      source += inspect.getsource(vit.quantized).replace('model.', 'self.')
    used = {
      ast.unparse(node)
      for node in ast.walk(ast.parse(source))
      if isinstance(node, ast.Name | ast.Attribute)
    }
    assert names - used == set(), function
