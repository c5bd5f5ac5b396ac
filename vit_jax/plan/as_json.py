"""A plan in numbers for JSON; `render` has it for people."""

import re
from typing import Any

import jax

from vit_jax import config as config_lib
from vit_jax.plan import collectives, compilers, compiling, devices, one_run

# Real speed is 0.59 to 1.05 of the compiler's estimate, where both are known:
# ViT-S/16 on eight v3 cores, the paper's L/16 and H/14.
CORRECTION = 0.85
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
# Names of parts that repeat, with their numbers; and of operations of XLA.
_BLOCK = re.compile(r'(block_?|unit_?|^[a-z-]+\.)\d+')
# Bytes of operations of unknown time that are worth a word.
_UNCOVERED_BYTES = 2**20
# What may be changed to make a run fit, and changes its speed.
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
  """All that a plan knows; None for what is unknown.

  Args:
    plan: of one run.
    correction: real speed, divided by the estimate's.

  Returns:
    Among others `hbm_gib`, on each device; `step_ms`,
    `images_per_sec_per_core`, `mfu` and `core_days_raw`, as the compiler
    estimates; `step_ms_corrected`, `wall_days` and `core_days`, corrected.
    Cores are TensorCores. `fix`: the same of the settings that fit;
    `search_ended`: why there are none, or no better ones. `error`: why the
    compiler failed. `libtpu`: the version of the compiler, of what was
    compiled; `lock_difference`: a sentence if it is not the tested one.
  """
  result = _analytic(plan)
  if plan.target:
    result |= _devices(plan.target)
  if plan.memory:
    result |= _memory(plan)
  if plan.compiled:
    result['compile_seconds'] = round(plan.compiled.seconds, 1)
    result['libtpu'] = compilers.libtpu()
    result['lock_difference'] = compilers.difference()
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
  unknown = dict.fromkeys(
    (
      *('topology', 'device', 'devices', 'chips', 'cores'),
      *('hbm_gib', 'hbm', 'hbm_usable_gib', 'fits', 'compile_seconds'),
      *('step_ms', 'step_ms_corrected', 'images_per_sec', 'wall_days'),
      *('images_per_sec_per_core', 'mfu', 'shares', 'core_days'),
      *('core_days_raw', 'fix', 'changes', 'search_ended', 'error'),
      *('libtpu', 'backend', 'runtime', 'lock_difference'),
    )
  )
  return {
    'config': plan.run.name,
    **unknown,
    'jax': jax.__version__,
    'model': found.model,
    'params': found.params,
    'forward_gmacs': found.forward_macs / 1e9,
    'tokens': found.tokens,
    'image_size': list(found.image_size),
    'batch_size': found.batch_size,
    'total_steps': found.total_steps,
    'epochs': found.epochs,
    'total_exaflops': found.total_exaflops,
    'paper_core_days': found.paper_core_days,
    'settings': {key: flat[key] for key in _SETTINGS if key in flat},
  }


def _devices(target: devices.Target) -> dict[str, Any]:
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
    # Whether the compiler said so; else it is the least that it can be.
    'hbm_source': 'compiler' if plan.compiled else 'lower bound',
    'hbm': parts,
    'fits': plan.fits,
  }


def _speed(plan: one_run.Plan, correction: float) -> dict[str, Any]:
  estimate, target, found = plan.compiled.estimate, plan.target, plan.analysis
  seconds = estimate.seconds
  peak = target.chip.peak_flops * target.devices
  raw_days = seconds * found.total_steps / _DAY
  return {
    'correction': correction,
    'step_ms': 1e3 * seconds,
    'step_ms_corrected': 1e3 * seconds / correction,
    'images_per_sec': found.batch_size / seconds,
    'images_per_sec_per_core': found.batch_size / seconds / target.cores,
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
    'heaviest': _heaviest(estimate),
    'wall_days': raw_days / correction,
    'core_days': target.cores * raw_days / correction,
    'core_days_raw': target.cores * raw_days,
  }


def _heaviest(estimate, count: int = 6) -> list[dict[str, Any]]:
  """The operations that take longest, those of all blocks as one."""
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
  """Sentences: what the figures rest on."""
  if plan.target is None or plan.memory is None:
    return []
  said = []
  if plan.compiled is None:
    said.append(
      'Not compiled: even a small part of the activations that JAX keeps for'
      ' the backward pass would not fit.'
    )
  else:
    said += plan.compiled.assumptions
  estimate = plan.compiled and plan.compiled.estimate
  if not estimate:
    return said
  said += [
    f"Days and core-days, and the step beside them, are the compiler's"
    f' estimate divided by {correction:g}: real speed was 0.59 to 1.05 of it'
    ' where both are known. Of the estimate itself are images a second, MFU,'
    ' step_ms in tables and JSON, and core_days_raw.',
    'Collectives are not hidden behind computation, at'
    f' {collectives.LINK_EFFICIENCY:g} of the links.',
    'The run is its steps alone: no evaluation, checkpoints, waiting for data'
    ' or restarts.',
  ]
  if estimate.overlapped_bytes:
    said.append(
      'Copies beside the computation'
      f' ({estimate.overlapped_bytes / compiling.GIB:.2f} GiB a step) take no'
      ' time.'
    )
  said += [
    sentence[0].upper() + sentence[1:].removesuffix('.') + '.'
    for sentence in estimate.assumptions
  ]
  listed = ', '.join(
    f'{name} ({size / 2**20:.0f} MiB)'
    for name, size in estimate.uncovered.most_common(4)
    if size >= _UNCOVERED_BYTES
  )
  if listed:
    said.append(f'No time is known for {listed}: counted as none.')
  return said
