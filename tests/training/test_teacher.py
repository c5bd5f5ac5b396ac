"""Guards: runs that learn from a frozen teacher."""

import json
import shutil

import jax
import numpy as np
import pytest

from tests import tiny_run
from tests.models import naive
from vit_jax import checkpoint, interop, models, sharding
from vit_jax import config as config_lib
from vit_jax.training import evaluate, train
from vit_jax.training import program as program_lib
from vit_jax.workdir import metrics

SPEC = 'ViT-Ti/4:width=32,depth=1,heads=4,mlp_dim=48,gelu=exact'


def _teacher(path, *, seed=0, classes=2, side=8, channels=1):
  """Writes a file with random weights."""
  model = models.parse(SPEC, num_classes=classes)
  images = np.zeros((1, side, side, channels), np.float32)
  params = naive.random_params(model, images, seed=seed, scale=1.0)
  interop.save_npz(path, params, model, image_size=side)
  return str(path)


def _config(teacher, **changes):
  return tiny_run.tiny_config(
    {'total_steps': 8, 'checkpoint.every': 4, 'log.every': 2}
    | {'distill.teacher': teacher},
    **changes,
  )


@pytest.fixture(scope='module')
def learned(tmp_path_factory):
  """The teacher, and the work directory of an uninterrupted run."""
  folder = tmp_path_factory.mktemp('learned')
  teacher = _teacher(folder / 'teacher.npz')
  train.train_and_evaluate(_config(teacher), folder / 'run')
  return teacher, folder / 'run'


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
  learned, tmp_path, monkeypatch
):
  teacher, expected = learned
  with monkeypatch.context() as patch:
    tiny_run.die_at(patch, 6)
    with pytest.raises(tiny_run.Death):
      train.train_and_evaluate(_config(teacher), tmp_path / 'run')
  assert checkpoint.latest_step(tmp_path / 'run') == 4
  # Another file with other weights is refused, the same at another place not.
  other = _teacher(tmp_path / 'other.npz', seed=1)
  with pytest.raises(ValueError, match=r'teacher: weights: ".*now, ".*then'):
    train.train_and_evaluate(_config(other), tmp_path / 'run')
  for name in ('teacher.npz', 'teacher.npz.json'):
    shutil.copy(teacher.replace('teacher.npz', name), tmp_path)
  moved = _config(str(tmp_path / 'teacher.npz'))
  train.train_and_evaluate(moved, tmp_path / 'run')
  tiny_run.assert_same_state(tmp_path / 'run', expected)
  assert tiny_run.rows_but_times(tmp_path / 'run') == tiny_run.rows_but_times(
    expected
  )


def test_nothing_of_the_teacher_is_saved(learned, tmp_path):
  _, workdir = learned
  config = _config('', num_classes=2, model__dtype='float32')
  alone = program_lib.Program(config, sharding.build(**config.mesh)).shapes
  for folder, tree in (('checkpoints', alone), ('final', alone.params)):
    found = tiny_run.saved_state(workdir / folder).values()
    assert sorted(x.shape for x in found) == sorted(
      x.shape for x in jax.tree.leaves(tree)
    )
  spec = config_lib.load(workdir)['distill']['model']
  model, given = (models.parse(x, num_classes=2) for x in (spec, SPEC))
  assert model == given
  assert {'train/agreement', 'train/label_loss', 'train/distillation_loss'} < (
    metrics.read(workdir)[-1].keys()
  )
  # What is finished needs no teacher any more, nor do evaluations.
  (gone := tmp_path / 'gone').mkdir()
  shutil.copytree(workdir, gone / 'run')
  path = gone / 'run' / config_lib.FILE
  content = json.loads(path.read_text())
  content['distill']['teacher'] = str(gone / 'teacher.npz')
  path.write_text(json.dumps(content))
  config = _config(str(gone / 'teacher.npz'))
  assert train.train_and_evaluate(config, gone / 'run')['step'] == 8
  config.evals.test = config_lib.evaluation('test')
  config.init.checkpoint, config.init.new_head = str(gone / 'run'), False
  found = evaluate.evaluate_only(config, gone / 'evaluated')
  assert found['test/count'] == 72


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'classes': 3}, r'3 classes.*2 classes'),
    ({'channels': 3}, r'3 channels.*1 channels'),
    (None, r'distill\.teacher is not set'),  # A recipe may leave it open.
  ],
)
def test_a_teacher_of_other_data(tmp_path, monkeypatch, changes, message):
  teacher = changes and _teacher(tmp_path / 'teacher.npz', **changes)
  monkeypatch.setattr(program_lib.Program, 'compile', None)
  with pytest.raises(ValueError, match=message):
    train.train_and_evaluate(_config(teacher), tmp_path / 'run')


# In the gate, losses/test_distillation.py compares the teacher's logits on
# meshes, sharding/test_gradients.py gradients and updates, and processes/ runs.
@pytest.mark.slow
def test_a_mesh_learns_what_one_device_learns(tmp_path):
  # The images of the teacher's file are larger.
  teacher = _teacher(tmp_path / 'teacher.npz', side=16)
  mesh = {'data': 1, 'fsdp': 4, 'tensor': 2, 'gather': 'micro_batch'}
  for name, sizes in (('one', {'data': 1}), ('many', mesh)):
    config = _config(teacher, log__every=1, total_steps=3, accumulation_steps=2)
    config.mixup_alpha, config.polyak.decay, config.lora.rank = 0.4, 0.9, 2
    # Adam would take full steps where a gradient is only a rounding error.
    config.optimizer = config_lib.optimizer('sgd', momentum=0.9, clip_norm=1.0)
    config.mesh.update(sizes)
    train.train_and_evaluate(config, tmp_path / name)
  one, many = (
    tiny_run.saved_state(tmp_path / name) for name in ('one', 'many')
  )
  assert one.keys() == many.keys()
  for name, x in one.items():
    scale = np.abs(x).max()
    assert np.abs(many[name] - x).max() <= 1e-5 * max(scale, 1e-2), name
  for a, b in zip(
    *(metrics.read(tmp_path / name) for name in ('one', 'many')), strict=True
  ):
    for key in ('loss', 'distillation_loss', 'label_loss', 'agreement'):
      expected = pytest.approx(a[f'train/{key}'], rel=1e-5, abs=1e-6)
      assert b[f'train/{key}'] == expected
    assert a['train/distillation_loss'] > 0.01


@pytest.mark.gate
def test_a_student_comes_to_agree_with_its_teacher(tmp_path):
  changes = {'data.dataset': 'digits', 'data.batch_size': 64, 'log.every': 5}
  config = tiny_run.tiny_config(changes | {'total_steps': 150})
  config.schedule = config_lib.schedule('cosine', peak=1e-2, warmup_steps=10)
  train.train_and_evaluate(config, tmp_path / 'teacher')
  config.evals.test = config_lib.evaluation('test')
  config.total_steps, config.seed = 50, 1
  config.distill.teacher = str(tmp_path / 'teacher')
  config.distill.kind, config.distill.weight = 'hard', 1.0
  found = train.train_and_evaluate(config, tmp_path / 'student')
  assert found['train/agreement'] > 0.6
  # It has used no labels.
  assert found['test/accuracy'] > 0.5
