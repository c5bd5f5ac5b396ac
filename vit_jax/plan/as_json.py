"""Turns a plan into figures for JSON; `render` makes text for people."""

import re
from typing import Any

import jax

from vit_jax import config as config_lib
from vit_jax.plan import (
  analysis,
  collectives,
  compilers,
  compiling,
  devices,
  gpus,
  one_run,
  roofline,
)

# Nothing is corrected by default: all but one of the real runs are those that
# core-days are compared with.
CORRECTION = 1.0
_DAY = 86_400.0
MEMORY = (
  'parameters',
  'optimizer',
  'average',
  'batch',
  'padding',
  'temporaries',
  'outputs',
  'program',
)
# Numbered names of repeated blocks, and of XLA's own operations.
_BLOCK = re.compile(r'(block_?|unit_?|^[a-z-]+\.)\d+')
# The report names operations of unknown time if they write this many bytes.
_UNCOVERED_BYTES = 2**20
# Settings that affect memory and speed.
_SETTINGS = (
  'accumulation_steps',
  'dropout_rng',
  'mesh.data',
  'mesh.fsdp',
  'mesh.tensor',
  'mesh.shard',
  'mesh.gather',
  'mesh.partition',
  'model.attention_implementation',
  'model.dtype',
  'model.remat',
  'model.scan',
)


def figures(
  plan: one_run.Plan, correction: float = CORRECTION
) -> dict[str, Any]:
  """Returns all figures of a plan; unknown ones are None.

  Args:
    plan: the plan of one run.
    correction: real speed divided by the estimated speed.

  Returns:
    Figures by name. `hbm_gib` is per device. `step_ms`,
    `images_per_sec_per_core`, `mfu` and `core_days_raw` are the compiler's
    estimates; `step_ms_corrected`, `wall_days` and `core_days` are these
    estimates divided by `correction`. `core_days_range` is `core_days_raw`
    divided by the speeds that are known, see `analysis.RESTS_ON`. `hidden_ms`
    is the time of collectives that runs beside computation. Cores are
    TensorCores. `fix` has the same figures for the settings that fit;
    `search_ended` says why there are none, or no better ones. `error` says why
    the compiler failed. `libtpu` or `gpu_compiler` is the compiler's
    version, if it ran; `lock_difference` is a sentence if that is not the
    tested version. `method` says where the time comes from.
  """
  result = _analytic(plan)
  if plan.target:
    result |= _devices(plan.target)
  if plan.memory:
    result |= _memory(plan)
  if plan.compiled:
    result['compile_seconds'] = round(plan.compiled.seconds, 1)
    if _is_gpu(plan):
      result['gpu_compiler'] = gpus.plugin()
    else:
      result['libtpu'] = compilers.libtpu()
    result['lock_difference'] = compilers.difference(plan.target.platform)
  if plan.compiled and plan.compiled.estimate:
    result |= _speed(plan, correction)
  result['assumptions'] = assumptions(plan, correction)
  result['search_ended'] = plan.ended or None
  result['error'] = plan.error or None
  if plan.changes:
    result['changes'] = dict(plan.changes)
  if plan.fix:
    result['fix'] = figures(plan.fix, correction)
  result['tried'] = [
    {
      'changes': dict(one.candidate.changes),
      'hbm_gib': one.compiled.memory.total / compiling.GIB,
      'fits': one.compiled.fits,
      'compile_seconds': round(one.compiled.seconds, 1),
      'error': one.compiled.error or None,
    }
    for one in plan.tried
  ]
  return result


def _analytic(plan: one_run.Plan) -> dict[str, Any]:
  found, flat = plan.analysis, config_lib.flatten(plan.config)
  tuned = found.tuned
  unknown = dict.fromkeys(
    (
      *('topology', 'device', 'devices', 'chips', 'cores'),
      *('hbm_gib', 'hbm', 'hbm_usable_gib', 'fits', 'compile_seconds'),
      *('step_ms', 'step_ms_corrected', 'images_per_sec', 'wall_days'),
      *('images_per_sec_per_core', 'mfu', 'shares', 'core_days'),
      *('core_days_raw', 'core_days_range', 'fix', 'changes'),
      *('search_ended', 'error'),
      *('libtpu', 'backend', 'runtime', 'lock_difference'),
      *('gpu_compiler', 'method', 'device_days'),
    )
  )
  return {
    'config': plan.run.name,
    **unknown,
    'jax': jax.__version__,
    'model': found.model,
    'params': found.params,
    'trained_params': tuned.trained if tuned else found.params,
    'optimizer_gib': tuned and tuned.optimizer_bytes / compiling.GIB,
    'optimizer_gib_of_all': (
      tuned and tuned.optimizer_bytes_of_all / compiling.GIB
    ),
    'forward_gmacs': found.forward_macs / 1e9,
    'backward_gmacs': found.backward_macs / 1e9,
    'tokens': found.tokens,
    'image_size': list(found.image_size),
    'batch_size': found.batch_size,
    'total_steps': found.total_steps,
    'epochs': found.epochs,
    'total_exaflops': found.total_exaflops,
    'paper_core_days': found.paper_core_days,
    'settings': {key: flat[key] for key in _SETTINGS if key in flat},
  }


def _devices(target: devices.AnyTarget) -> dict[str, Any]:
  return {
    'topology': str(target),
    'device': target.device,
    'devices': target.devices,
    'chips': target.chips,
    'cores': target.cores,
    'hbm_usable_gib': target.chip.hbm_usable_bytes / compiling.GIB,
  }


def _memory(plan: one_run.Plan) -> dict[str, Any]:
  parts = {name: getattr(plan.memory, name) / compiling.GIB for name in MEMORY}
  return {
    'hbm_gib': plan.memory.total / compiling.GIB,
    'hbm_source': 'compiler' if plan.compiled else 'lower bound',
    'hbm': parts,
    'fits': plan.fits,
  }


def _speed(plan: one_run.Plan, correction: float) -> dict[str, Any]:
  estimate, target, found = plan.compiled.estimate, plan.target, plan.analysis
  seconds = estimate.seconds
  peak = target.chip.peak_flops * target.devices
  raw_days = seconds * found.total_steps / _DAY
  units = target.cores or target.devices
  return {
    'method': roofline.METHOD if _is_gpu(plan) else "the compiler's cycles",
    'correction': correction,
    'step_ms': 1e3 * seconds,
    'step_ms_corrected': 1e3 * seconds / correction,
    'images_per_sec': found.batch_size / seconds,
    'images_per_sec_per_core': found.batch_size / seconds / units,
    'mfu': found.step_flops / seconds / peak,
    'shares': {
      name: part / seconds for name, part in estimate.by_class.items()
    },
    'collectives': [
      {
        'kind': one.kind,
        'bytes': one.bytes,
        'times': one.times,
        'devices': one.group_size,
        'ms': 1e3 * one.seconds,
      }
      for one in sorted(estimate.collectives, key=lambda c: -c.seconds)[:5]
    ],
    'hidden_ms': 1e3 * estimate.hidden_seconds,
    'heaviest': _heaviest(estimate),
    'wall_days': raw_days / correction,
    'device_days': target.devices * raw_days / correction,
    'core_days': target.cores and target.cores * raw_days / correction,
    'core_days_raw': target.cores and target.cores * raw_days,
    'core_days_range': target.cores
    and [
      target.cores * raw_days / speed for speed in analysis.REAL_SPEED[::-1]
    ],
  }


def _is_gpu(plan: one_run.Plan) -> bool:
  return isinstance(plan.target, gpus.Target)


def _heaviest(estimate, count: int = 6) -> list[dict[str, Any]]:
  """Returns the slowest operations; equal ones of all blocks are merged."""
  groups: dict[tuple[str, str], list[float]] = {}
  for row in estimate.rows:
    name = _BLOCK.sub(r'\1*', row.op_name or row.name)
    group = groups.setdefault((name, row.op_class), [0.0, 0])
    group[0] += row.seconds
    group[1] += row.times
  heaviest = sorted(groups.items(), key=lambda item: -item[1][0])[:count]
  return [
    {'op': name, 'class': op_class, 'times': times, 'ms': 1e3 * seconds}
    for (name, op_class), (seconds, times) in heaviest
  ]


def assumptions(plan: one_run.Plan, correction: float) -> list[str]:
  """Returns sentences on the assumptions behind the figures."""
  if plan.target is None or plan.memory is None:
    return []
  sentences = []
  if plan.compiled is None:
    sentences.append(
      'Not compiled: the run would not fit even with a small part of the'
      ' activations that JAX keeps for the backward pass.'
    )
  else:
    sentences += plan.compiled.assumptions
  estimate = plan.compiled and plan.compiled.estimate
  if not estimate:
    return sentences
  hidden = f'{1e3 * estimate.hidden_seconds:.1f} ms a step.'
  if _is_gpu(plan):
    sentences += _of_roofline(correction, hidden)
  else:
    sentences += _of_cycles(correction, hidden)
  sentences.append(
    'The time of the run is that of its steps, without evaluation, checkpoints,'
    ' waiting for data or restarts.'
  )
  if estimate.overlapped_bytes:
    sentences.append(
      'Asynchronous copies'
      f' ({estimate.overlapped_bytes / compiling.GIB:.2f} GiB a step) take no'
      ' time.'
    )
  sentences += [
    sentence[0].upper() + sentence[1:].removesuffix('.') + '.'
    for sentence in estimate.assumptions
  ]
  listed = ', '.join(
    f'{name} ({size / 2**20:.0f} MiB)'
    for name, size in estimate.uncovered.most_common(4)
    if size >= _UNCOVERED_BYTES
  )
  if listed:
    sentences.append(f'The time of {listed} is unknown and counts as zero.')
  return sentences


def _of_cycles(correction: float, hidden: str) -> list[str]:
  """Returns what a TPU's times rest on.

  Args:
    correction: see `figures`.
    hidden: the time of collectives that computation hides, in words.
  """
  corrected = [
    'Days, core-days and the step time beside them are the estimate divided by'
    f' {correction:g}. Images a second, MFU, step_ms in tables and JSON, and'
    ' core_days_raw are not.'
  ]
  return [
    analysis.RESTS_ON,
    *(corrected if correction != 1 else ()),
    f"Collectives use {collectives.LINK_EFFICIENCY:g} of the links' bandwidth."
    f' Computation that the compiler puts beside asynchronous ones hides'
    f' {hidden}',
  ]


def _of_roofline(correction: float, hidden: str) -> list[str]:
  """Returns what a GPU's times rest on; see `_of_cycles`."""
  if correction == 1:
    real = roofline.MEASURED
  else:
    real = (
      'Days and the step time beside them are the roofline divided by'
      f' {correction:g}.'
    )
  return [
    'Times are a roofline, not measured: for every kernel the larger of its'
    " bytes over the memory's bandwidth and its products over the peak. A real"
    f' step takes longer. {real}',
    'Of a loop over blocks, model.scan, the roofline counts several times too'
    ' much.',
    "Collectives use all of NVLink's bandwidth. Computation that the compiler"
    f' puts beside asynchronous ones hides {hidden}',
    f'JAX allocates {gpus.memory_fraction():g} of the memory of a GPU, which is'
    ' what is usable. XLA_PYTHON_CLIENT_MEM_FRACTION sets this share.',
    "Without a GPU, the compiler cannot try which library's products are"
    ' fastest; it takes those of cuBLAS.',
  ]
