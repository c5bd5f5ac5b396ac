"""Guards: only one module uses private parts of libraries, correctly."""

import ast
import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.runtime import jax_internals

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ('vit_jax', 'configs', 'launch', 'benchmarks', 'tests')
LIBRARIES = ('jax', 'flax', 'optax', 'orbax', 'tensorflow_datasets')


def _chain(node):
  """Returns `a.b.c` as ['a', 'b', 'c'], with '' for anything but a name."""
  if isinstance(node, ast.Attribute):
    return [*_chain(node.value), node.attr]
  return [node.id] if isinstance(node, ast.Name) else ['']


def _is_private(node):
  """Returns whether a node uses a library's private part or an equation's."""
  if isinstance(node, ast.Import):
    paths = [alias.name.split('.') for alias in node.names]
  elif isinstance(node, ast.ImportFrom):
    paths = [
      [*(node.module or '').split('.'), alias.name] for alias in node.names
    ]
  elif isinstance(node, ast.Attribute):
    paths = [_chain(node)]
    if node.attr == 'source_info' or (
      node.attr == 'params'
      and {'eqn', 'equation', 'scan', 'product'} & set(paths[0])
    ):
      return True
  else:
    return False
  return any(
    path[0] in LIBRARIES
    and (
      path[:2] == ['jax', 'interpreters']
      # JAX moved jax.core to jax.extend.core.
      or path[:2] == ['jax', 'core']
      or any(
        name.startswith('_') and not name.startswith('__') for name in path
      )
    )
    for path in paths
  )


def test_only_one_module_uses_private_parts_of_libraries():
  found = {}
  for file in itertools.chain(*((ROOT / f).rglob('*.py') for f in FOLDERS)):
    for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
      if _is_private(node):
        name = str(file.relative_to(ROOT))
        found.setdefault(name, []).append(ast.unparse(node))
  inside = found.pop('vit_jax/runtime/jax_internals.py')
  assert found == {}
  assert 'from jax._src import clusters' in inside
  assert 'scan.params' in inside
  assert 'eqn.source_info' in inside


def _equation(function, *args):
  (eqn,) = jax.make_jaxpr(function)(*args).eqns
  return eqn


def test_reads_a_convolution():
  eqn = _equation(
    lambda x, w: jax.lax.conv_general_dilated(
      x,
      w,
      window_strides=(2, 1),
      padding=[(1, 2), (0, 0)],
      rhs_dilation=(1, 3),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    ),
    jnp.ones((1, 8, 9, 4)),
    jnp.ones((3, 2, 4, 5)),
  )
  found = jax_internals.convolution(eqn)
  assert found == jax_internals.Convolution(
    padding=((1, 2), (0, 0)),
    strides=(2, 1),
    input_steps=(1, 1),
    kernel_steps=(1, 3),
    input_dimensions=(0, 3, 1, 2),
    kernel_dimensions=(3, 2, 0, 1),
    output_dimensions=(0, 3, 1, 2),
  )


def test_operations_one_by_one(caplog):
  calls = []

  def function(key, unused):
    calls.append(0)
    jnp.linalg.svd(unused['x'])
    number = jax.random.normal(jax.random.wrap_key_data(key), (3,))
    return {'number': number, 'copy': jnp.copy(number), 'constant': 7}

  args = jax.random.key_data(jax.random.key(0)), {'x': jnp.ones((4, 4))}
  with caplog.at_level('WARNING', 'jax'), jax.log_compiles():
    found = jax_internals.run_op_by_op(function, *args)
  assert len(calls) == 1
  # Otherwise the level of optimisation would be ignored in silence.
  (jitted,) = jax.make_jaxpr(jax.jit(jnp.sin))(1.0).eqns
  assert 'compiler_options_kvs' in jitted.params
  compiled = re.findall(r'XLA compilation of jit\((\w+)\)', caplog.text)
  assert '_normal' in compiled
  assert 'svd' not in compiled  # The result does not need it.
  expected = jax.jit(function)(*args)
  for name, x in expected.items():
    np.testing.assert_allclose(found[name], x, rtol=1e-6)
