"""Short HLO programs, and a device on which their times are round numbers."""

import dataclasses

import pytest

from vit_jax.plan import chips, estimate, hlo

# In a microsecond the device does 1000 cycles or 1 MFLOP, and moves 100 kB of
# memory, 10 kB over links or 1 kB over the network (at 0.6 of their bandwidth).
CHIP = chips.Chip(
  device_kind='TPU test',
  clock_mhz=1000,
  peak_flops=1e12,
  hbm_usable_gib=1.0,
  hbm_bytes_per_second=100e9,
  interconnect_bytes_per_second=10e9 / 0.6,
  torus_dimensions=2,
  network_bytes_per_second=1e9 / 0.6,
)
# The same rates, but the compiler states no cycles.
GPU = dataclasses.replace(CHIP, clock_mhz=None, torus_dimensions=1)

CYCLES = ', backend_config={"window_config":{"estimated_cycles":"%d"}}'


def run(lines, computations='', chip=CHIP):
  """Estimates a program of these entry lines and other computations."""
  text = f"""HloModule test, num_partitions=8

{computations}
ENTRY %main (x: f32[1000]) -> f32[1000] {{
  %x = f32[1000]{{0}} parameter(0)
  %zero = s32[] constant(0)
  %bf16 = bf16[500,10]{{1,0}} parameter(1)
  %big = f32[100,1000]{{1,0}} parameter(2)
{lines}
  ROOT %root = (f32[1000]{{0}}) tuple(%x)
}}
"""
  return estimate.estimate(hlo.parse(text), chip)


def microseconds(found):
  """Returns the microseconds of each class that takes time."""
  return {
    name: pytest.approx(seconds * 1e6)
    for name, seconds in found.by_class.items()
    if seconds
  }


def counted(name, trips, body):
  """Returns the condition and body of a loop that counts from 0 to `trips`."""
  return f"""
%{name}.condition (s: (s32[])) -> pred[] {{
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant({trips})
  ROOT %c = pred[] compare(%i, %n), direction=LT
}}

%{name}.body (s: (s32[])) -> (s32[]) {{
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %x = f32[1000]{{0}} custom-call(), custom_call_target="AllocateBuffer"
  %y = f32[100,1000]{{1,0}} custom-call(), custom_call_target="AllocateBuffer"
{body}
  ROOT %t = (s32[]) tuple(%j)
}}
"""


def loop(name):
  return f"""\
  %begin.{name} = (s32[]) tuple(%zero)
  %while.{name} = (s32[]) while(%begin.{name}), condition=%{name}.condition, body=%{name}.body
"""  # noqa: E501


def fused(name, *lines):
  inner = '\n'.join(f'  {line}' for line in lines)
  return f'\n%{name} (p: f32[1000]) -> f32[1000] {{\n{inner}\n}}\n'
