"""Compares with timm on one GPU: `python -m benchmarks.gpu_vs_timm`.

Times the training step of the same model in bfloat16, without dropout, at the
same batch and image size, on synthetic data on the device:

  ours    vit_jax's own step
  plain   the same step in plain Flax and optax, see plain_vit.py
  timm    timm's model, torch.compile, bfloat16 autocast, fused AdamW

They take turns. Each turn is a new process, which has the device to itself. The
last one needs torch and timm (`pip install -e '.[hf]'`), which may belong to
another interpreter:

  python -m benchmarks.gpu_vs_timm --batch_size=256
  python -m benchmarks.gpu_vs_timm --table     B/16 at 256, L/16 at 128 images
  python -m benchmarks.gpu_vs_timm --torch_python=/venvs/torch/bin/python
  python -m benchmarks.gpu_vs_timm --device=cpu --nocompile --depth=1 \\
    --models=ViT-Ti/16 --image_size=32 --batch_size=8 --steps=2

`times` is the step time over that of the first contender. MFU counts the same
operations for all three: those of the model as published.
"""

import sys

import jax
from absl import flags

from benchmarks import report
from benchmarks.measure import gpu_vs_timm, timing
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_MODELS = flags.DEFINE_list(
  'models', ['ViT-B/16', 'ViT-L/16'], 'Names of ViTs; timm has most of them.'
)
_CONTENDERS = flags.DEFINE_list(
  'contenders', ['ours', 'plain', 'timm'], 'Which of the three.'
)
_OURS = flags.DEFINE_string(
  'ours', '', 'KEY=VALUE[,KEY=VALUE...] of the config, only for ours.'
)
_TABLE = flags.DEFINE_bool(
  'table',
  False,
  'Measure ViT-B/16 at batch 256 and ViT-L/16 at batch 128, in place of'
  ' --models and --batch_size, and print a Markdown table of them, too.',
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Images a step.', 1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Side in pixels.', 1)
_DEPTH = flags.DEFINE_integer(
  'depth', 0, "Blocks of the model; 0 means the model's own depth.", 0
)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'bfloat16', ['bfloat16', 'float32'], 'Dtype of the computation.'
)
_DEVICE = flags.DEFINE_enum(
  'device', 'cuda', ['cuda', 'cpu'], 'The first GPU, or the CPU for a test.'
)
_COMPILE = flags.DEFINE_bool('compile', True, 'Whether torch compiles.')
_TORCH_PYTHON = flags.DEFINE_string(
  'torch_python', sys.executable, 'The interpreter that has torch and timm.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 2, 'Processes per contender.', 1)
_TURNS = flags.DEFINE_integer('turns', 3, 'Measurements in a process.', 1)
_STEPS = flags.DEFINE_integer('steps', 20, 'Steps of a measurement.', 1)
_WARMUP = flags.DEFINE_integer('warmup', 3, 'Untimed steps before them.', 1)
_PEAK = flags.DEFINE_float(
  'peak_tflops', None, 'Peak of the device, if it is not known.', 0
)

_COLUMNS = {
  'ms': ('step_ms.median', '.1f'),
  'spread': ('step_ms.spread', '.1%'),
  'images/s': ('images_per_sec', '.1f'),
  'MFU': ('mfu', '.1%'),
  'times': ('ratio', '.3f'),
  'compile s': ('compile_sec', '.1f'),
  'peak GiB': ('peak_gib', '.2f'),
}


# The pairs of --table.
_PAIRS = {'ViT-B/16': 256, 'ViT-L/16': 128}


def main():
  # This process only counts operations; the workers use the device.
  jax.config.update('jax_platforms', 'cpu')
  task = {
    'overrides': _OURS.value,
    'num_classes': 1000,
    'image_size': _IMAGE_SIZE.value,
    'depth': _DEPTH.value,
    'dtype': _DTYPE.value,
    'device': _DEVICE.value,
    'compile': _COMPILE.value,
    'turns': _TURNS.value,
    'steps': _STEPS.value,
    'warmup': _WARMUP.value,
  }
  pairs = dict.fromkeys(_MODELS.value, _BATCH_SIZE.value)
  if _TABLE.value:
    pairs = _PAIRS
  results = {}
  for model, batch_size in pairs.items():
    found = gpu_vs_timm.measure(
      model,
      _CONTENDERS.value,
      task | {'batch_size': batch_size},
      rounds=_ROUNDS.value,
      torch_python=_TORCH_PYTHON.value,
      peak_tflops=_PEAK.value,
    )
    results |= {f'{model} {name}': result for name, result in found.items()}
  report.publish(
    'gpu_vs_timm',
    results,
    _COLUMNS,
    setting=task | {'batch_sizes': pairs, 'rounds': _ROUNDS.value},
    title=(
      f'Training step at {_IMAGE_SIZE.value} px, {_DTYPE.value}, batch'
      f' {", ".join(map(str, pairs.values()))}, on'
      f' {next(iter(results.values()))["device_kind"]}'
    ),
    environment=timing.environment(devices=False),
  )
  if _TABLE.value:
    timing.say(gpu_vs_timm.markdown(results, pairs, _CONTENDERS.value))


if __name__ == '__main__':
  command_line.run(main)
