"""Guards: the commands and import paths that users rely on stay."""

import ast
import contextlib
import importlib
import inspect
import itertools
import pathlib
import sys

import pytest

import vit_jax.inspect
from vit_jax import inspection

ROOT = pathlib.Path(__file__).parents[2]

# `test_fenced.py` asks each for its help.
COMMANDS = (
  *('vit_jax.main', 'vit_jax.plan', 'vit_jax.convert', 'vit_jax.reproduce'),
  *('vit_jax.sweep', 'vit_jax.sweep.table', 'vit_jax.compare', 'vit_jax.vtab'),
  *('vit_jax.inspect', 'vit_jax.accounting', 'vit_jax.inference_speed'),
  *('vit_jax.masked_patch', 'vit_jax.data', 'vit_jax.topology'),
  *('vit_jax.predict', 'vit_jax.features', 'vit_jax.knn'),
  *('vit_jax.export', 'vit_jax.prepare_data', 'vit_jax.dedup'),
)

# Documented import path -> the parameters that callers pass.
FUNCTIONS = {
  'vit_jax.models.build': ('name', 'num_classes'),
  'vit_jax.models.names': (),
  'vit_jax.models.layers.tokens': ('model', 'params', 'images', 'names'),
  'vit_jax.interop.load': ('path', 'model', 'image_size', 'new_head'),
  'vit_jax.interop.load_huggingface': ('folder', 'model', 'image_size'),
  'vit_jax.interop.load_npz': ('path', 'model', 'image_size'),
  'vit_jax.interop.save_npz': ('path', 'params', 'model'),
  'vit_jax.config.default': (),
  'vit_jax.config.resolve': (
    'config',
    'num_examples',
    'num_classes',
  ),
  'vit_jax.config.validate': ('config',),
  'vit_jax.training.train.train_and_evaluate': ('config', 'workdir'),
  'vit_jax.training.evaluate.evaluate_only': ('config', 'workdir'),
  'vit_jax.data.open_source': (),
  'vit_jax.data.pipeline.train_batches': (),
  'vit_jax.data.pipeline.eval_batches': (),
  'vit_jax.results.best_row': ('workdir', 'metric'),
  'vit_jax.results.final_metrics': ('workdir',),
  'vit_jax.compare.load_runs': (),
  'vit_jax.compare.load_curves': (),
  'vit_jax.evaluators.predictions.read': ('path',),
  'vit_jax.load': ('checkpoint', 'image_size', 'preprocess', 'batch_size'),
  'vit_jax.predict.Predictor.predict': ('images',),
  'vit_jax.predict.Predictor.features': ('images', 'layer'),
  'vit_jax.predict.Predictor.attention': ('images',),
  'vit_jax.predict.Predictions.top': ('k',),
  'vit_jax.inspect.attention_weights': ('model', 'params', 'images'),
}

# The training code must not import these rooms, so that it can be read alone.
ABOVE_TRAINING = (
  *('paper', 'plan', 'sweep', 'inspection', 'compare', 'reproduce'),
)


def test_no_file_hides_a_module_of_python_from_a_program_beside_it():
  mains = {file.parent for file in (ROOT / 'vit_jax').rglob('__main__.py')}
  places = [ROOT / name for name in ('vit_jax', 'configs', 'launch')]
  hiding = [
    str(file.relative_to(ROOT))
    for folder in {*mains, *places, ROOT / 'benchmarks', ROOT}
    for file in folder.iterdir()
    if file.stem in sys.stdlib_module_names
  ]
  assert hiding == []


@pytest.mark.parametrize('path', FUNCTIONS)
def test_every_documented_function_is_there(path):
  package, *names = path.split('.')
  function = importlib.import_module(package)
  for name in names:
    package += f'.{name}'
    with contextlib.suppress(ModuleNotFoundError):
      importlib.import_module(package)
    function = getattr(function, name)
  assert inspect.getdoc(function)
  parameters = inspect.signature(function).parameters
  assert set(FUNCTIONS[path]) <= set(parameters)


def test_inspect_is_inspection():
  assert vit_jax.inspect is inspection


def test_the_documented_functions_are_those_of_the_api_page():
  text = (ROOT / 'docs' / 'api.md').read_text()
  documented = {
    line.partition(':: ')[2]
    for line in text.splitlines()
    if line.startswith(('.. autofunction:: ', '.. automethod:: '))
  }
  assert documented == set(FUNCTIONS)


@pytest.mark.parametrize('name', ['configs', 'launch'])
def test_configs_and_launch_are_packages_of_vit_jax(name):
  package = importlib.import_module(f'vit_jax.{name}')
  assert pathlib.Path(package.__file__).parent == ROOT / name


def imported(file: pathlib.Path) -> set[str]:
  """Returns the full names of the modules and objects that a file imports."""
  found = set()
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      found |= {node.module, *(f'{node.module}.{a.name}' for a in node.names)}
  return found


def _needed(start: str) -> set[str]:
  """Returns the files in vit_jax/ that a folder imports, and its own files."""
  package = ROOT / 'vit_jax'
  files, queue = set(), list((package / start).rglob('*.py'))
  while queue:
    file = queue.pop()
    if file in files:
      continue
    files.add(file)
    for name in imported(file):
      parts = name.split('.')
      if parts[0] != 'vit_jax':
        continue
      # Importing a module runs the __init__.py of each package above it.
      for length in range(1, len(parts) + 1):
        place = ROOT.joinpath(*parts[:length])
        for candidate in (place.with_suffix('.py'), place / '__init__.py'):
          if candidate.is_file():
            queue.append(candidate)
  return {str(file.relative_to(package)) for file in files}


def test_training_needs_no_paper_plan_or_sweep():
  rooms = {
    pathlib.PurePath(name).parts[0].removesuffix('.py')
    for name in _needed('training')
  }
  assert 'data' in rooms
  assert rooms & set(ABOVE_TRAINING) == set()


@pytest.mark.parametrize(
  'where, files',
  [
    (
      'the loss is computed',
      ['main.py', 'training/train.py', 'training/opening.py']
      + ['training/program.py', 'training/step.py', 'training/gradients.py'],
    ),
    (
      'a row is decoded',
      ['main.py', 'training/train.py', 'data/pipeline.py']
      + ['data/batches/rows.py', 'data/ops/preprocess.py']
      + ['data/ops/decoding.py'],
    ),
    (
      'a metric is written',
      ['main.py', 'training/train.py', 'training/recording.py']
      + ['workdir/metrics.py'],
    ),
  ],
)
def test_the_way_that_the_docs_show_a_reader_is_the_imports(where, files):
  """docs/code.md lists these files in this order."""
  for file, following in itertools.pairwise(files):
    module = 'vit_jax.' + following.removesuffix('.py').replace('/', '.')
    assert module in imported(ROOT / 'vit_jax' / file), (where, file)
