"""Guards: the estimated time of collectives, on hand-made programs."""

import pytest

from tests.plan.programs import CYCLES, counted, fused, loop, microseconds, run

GROUPS = 'replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add'


def test_a_collective_in_a_loop_counts_each_time():
  body = f'  %r = f32[1000]{{0}} all-reduce(%x), {GROUPS}'
  found = run(loop('l'), counted('l', 3, body))
  # 3 x 2 x 4 kB
  assert microseconds(found) == {'collectives': 2.4}
  (reduced,) = found.collectives
  assert (reduced.kind, reduced.bytes) == ('all-reduce', 4000)
  assert (reduced.group_size, reduced.times) == (4, 3)
  assert reduced.seconds == pytest.approx(2.4e-6)


@pytest.mark.parametrize(
  'instruction, kind, bytes_, expected',
  [
    # Two arrays of 4 kB and 10 kB are reduced together, at twice their bytes.
    (
      '(f32[1000]{0}, bf16[500,10]{1,0}) all-reduce(%x, /*index=1*/%bf16),'
      f' {GROUPS}',
      'all-reduce',
      14_000,
      2.8,
    ),
    # 12 of the 16 gathered kB come over the links.
    (
      f'f32[4000]{{0}} all-gather(%x), dimensions={{0}}, {GROUPS}',
      'all-gather',
      16_000,
      1.2,
    ),
    # 3 of 4 quarters go over the links.
    (
      f'f32[250]{{0}} reduce-scatter(%x), {GROUPS}',
      'reduce-scatter',
      4000,
      0.3,
    ),
    (f'f32[1000]{{0}} all-to-all(%x), {GROUPS}', 'all-to-all', 4000, 0.3),
    (
      'f32[1000]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}',
      'collective-permute',
      4000,
      0.4,
    ),
  ],
)
def test_kinds_of_collectives(instruction, kind, bytes_, expected):
  found = run(f'  %c = {instruction}')
  assert microseconds(found) == {'collectives': expected}
  assert [(c.kind, c.bytes) for c in found.collectives] == [(kind, bytes_)]


@pytest.mark.parametrize(
  'lines, expected',
  [
    (
      '  %s = f32[1000]{0} all-reduce-start(%x), GROUPS\n'
      '  %d = f32[1000]{0} all-reduce-done(%s)',
      ('all-reduce', 4000, 0.8),
    ),
    (
      '  %s = (f32[1000]{0}, f32[4000]{0}) all-gather-start(%x), GROUPS\n'
      '  %d = f32[4000]{0} all-gather-done(%s)',
      ('all-gather', 16_000, 1.2),
    ),
    (
      '  %s = ((f32[1000]{0}), f32[250]{0}, u32[]) async-start(%x),'
      ' calls=%scatter\n'
      '  %d = f32[250]{0} async-done(%s), calls=%scatter',
      ('reduce-scatter', 4000, 0.3),
    ),
    # libtpu writes a reduce-scatter like this.
    (
      '  %f = f32[250]{0} fusion(%x), kind=kCustom,'
      ' calls=%all-reduce-scatter.clone.1',
      ('reduce-scatter', 4000, 0.3),
    ),
  ],
)
def test_split_or_fused_collectives_count_once(lines, expected):
  reduced = [
    '%p = f32[1000]{0} parameter(0)',
    f'ROOT %r = f32[250]{{0}} reduce-scatter(%p), {GROUPS}',
  ]
  sliced = [
    '%p = f32[1000]{0} parameter(0)',
    f'%r = f32[1000]{{0}} all-reduce(%p), {GROUPS}',
    'ROOT %s = f32[250]{0} slice(%r), slice={[0:250]}',
  ]
  found = run(
    lines.replace('GROUPS', GROUPS),
    fused('scatter', *reduced) + fused('all-reduce-scatter.clone.1', *sliced),
  )
  kind, bytes_, time = expected
  assert [(c.kind, c.bytes) for c in found.collectives] == [(kind, bytes_)]
  assert microseconds(found) == {'collectives': time}
  assert found.uncovered == {}


def test_overlapped_collectives_count_once():
  # libtpu writes this for v5e, where the gather appears in three fusions.
  gather = f'%g = f32[4000]{{0}} all-gather(%p), channel_id=7, {GROUPS}'
  parameter = '%p = f32[1000]{0} parameter(0)'
  start, end = (
    [
      parameter,
      gather,
      'ROOT %c = f32[4000]{0} custom-call(%g),'
      f' custom_call_target="AsyncCollective{name}"',
    ]
    for name in ('Start', 'Done')
  )
  beside = [parameter, '%e = f32[1000]{0} exponential(%p)', f'ROOT {gather}']
  lines = [
    '  %s = f32[4000]{0} fusion(%x), kind=kCustom, calls=%start',
    '  %m = f32[1000]{0} fusion(%x), kind=kOutput, calls=%beside'
    + CYCLES % 3000,
    '  %d = f32[4000]{0} fusion(%s), kind=kCustom, calls=%end',
    f'  %o = f32[4000]{{0}} all-gather(%x), channel_id=8, {GROUPS}',
  ]
  found = run(
    '\n'.join(lines),
    fused('start', *start) + fused('beside', *beside) + fused('end', *end),
  )
  # The product, 3 us, hides all of the first gather. The second one waits.
  assert microseconds(found) == {'collectives': 1.2, 'elementwise': 3}
  assert found.hidden_seconds == pytest.approx(1.2e-6)
  assert [c.bytes for c in found.collectives] == [16_000, 16_000]
  assert found.uncovered == {}


@pytest.mark.parametrize(
  'groups, size',
  [
    ('{{0,1,2,3},{4,5,6,7}}', 4),
    ('{{0,1},{2}}', 2),
    ('{}', 8),
    ('[4,2]<=[8]', 2),
    ('[2,4]<=[4,2]T(1,0)', 4),
    ("mesh['a'=2,'b'=4] {'a','b'}", 8),
    ("mesh['a'=2,'b'=4] {'b'}", 4),
    ("mesh['a'=8] {'a':(2)4}", 4),
    ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", 4),
  ],
)
def test_group_sizes(groups, size):
  found = run(
    f'  %c = f32[1000]{{0}} all-reduce(%x), channel_id=3,'
    f' replica_groups={groups}, use_global_device_ids=true, to_apply=%add'
  )
  assert found.collectives[0].group_size == size


@pytest.mark.parametrize(
  'kind, expected', [('ALL_REDUCE', 8), ('ALL_GATHER', 4)]
)
def test_transfers_between_slices_are_counted(kind, expected):
  attributes = (
    'channel_id=2, is_host_transfer=true, frontend_attributes={'
    '_xla_host_transfer_handler_name="xla_megascale_runtime",'
    f'_xla_megascale_transfer_type="{kind}"}}'
  )
  found = run(
    '  %token = token[] after-all()\n'
    f'  %s = (f32[1000]{{0}}, u32[], token[]) send(%x, %token), {attributes}\n'
    f'  %r = (f32[1000]{{0}}, u32[], token[]) recv(%token), {attributes}\n'
    '  %t = token[] send-done(%s), channel_id=2\n'
    '  %d = (f32[1000]{0}, token[]) recv-done(%r), channel_id=1'
  )
  assert microseconds(found) == {'collectives': expected}
  assert [c.kind for c in found.collectives] == ['between-slices']
  assert 'between slices' in found.assumptions[0]
  assert found.uncovered == {}
