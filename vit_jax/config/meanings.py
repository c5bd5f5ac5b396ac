"""Reads what each config key means from the source of `keys` and `sections`.

The meanings stand in one place, beside the keys. They are:

- the comment above a key, which also holds for the keys below it, up to a blank
  line or another comment;
- the comment behind a key;
- in `sections`, the docstring's text on the argument of the same name, or on
  `others`; a function that lacks the text has that of `evaluation`. For `kind`
  and `name` it is the docstring's first line.
"""

import ast
import functools
import inspect
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from vit_jax.config import keys, sections

# The two keys of a config with stages; see `training/stages.py`.
_OF_STAGES = {'order': 'The stages, in the order in which they run.'}
# The keys that say which function of `sections` made a section.
_NAMES = ('kind', 'name')


class _Item(NamedTuple):
  """A key in the source, and its first and last line."""

  key: str
  first: int
  last: int
  inner: tuple['_Item', ...] = ()


def find(key: str, section: Mapping[str, Any] | None = None) -> str:
  """Returns what a key means; '' if nothing says it.

  Args:
    key: such as `data.batch_size` or `evals.test.split`; keys of stages without
      `stages.NAME.`.
    section: the section that holds the key.
  """
  if key in _OF_STAGES:
    return _OF_STAGES[key]
  text = of_default().get(key, '')
  if not text and section is not None:
    text = _of_section(section).get(key.rpartition('.')[2], '')
  return text[:1].upper() + text[1:]


def place(key: str, section: Mapping[str, Any] | None) -> tuple[int, str, int]:
  """Returns a value to sort keys by: in the order of the source.

  Args:
    key: see `find`.
    section: see `find`.
  """
  order = list(of_default())
  if key in order:
    return order.index(key), '', 0
  parent, _, name = key.rpartition('.')
  inside = list(_of_section(section)) if section is not None else []
  return (
    order.index(key.partition('.')[0]),
    parent,
    inside.index(name) if name in inside else len(inside),
  )


def defaults(section: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the values that the function which makes a section gives it.

  Without those that each config chooses, such as the name.
  """
  chosen = tuple(section.get(key) for key in _NAMES)
  return _makers(sections).get(chosen, ('', {}))[1]


@functools.cache
def of_default() -> dict[str, str]:
  """Returns key -> meaning of the keys that `keys.default` explains."""
  source = inspect.getsource(keys)
  tree = ast.parse(source)
  (function,) = (
    node
    for node in tree.body
    if isinstance(node, ast.FunctionDef) and node.name == 'default'
  )
  return _meanings(_assigned(function), source)


@functools.cache
def of_sections() -> dict[str, dict[str, str]]:
  """Returns function of `sections` -> key -> meaning."""
  source = inspect.getsource(sections)
  common = _arguments(inspect.getdoc(sections.evaluation))
  found = {}
  for function in ast.parse(source).body:
    if not isinstance(function, ast.FunctionDef):
      continue
    items = list(_dict_items(function))
    if not items or items[0].key not in _NAMES:
      continue
    docstring = ast.get_docstring(function)
    own = {items[0].key: docstring.partition('\n')[0]} | _arguments(docstring)
    found[function.name] = own | {
      key: comment or own.get(key) or common.get(key, '')
      for key, comment in _meanings(items, source).items()
    }
  return found


def _of_section(section: Mapping[str, Any]) -> Mapping[str, str]:
  """Returns the meanings of the function that makes such a section."""
  found = of_sections()
  chosen = _makers(sections).get(tuple(section.get(key) for key in _NAMES))
  if chosen:
    return found[chosen[0]]
  # Such as another schedule: the function whose keys are most like it.
  wanted = set(section)
  meanings = min(found.values(), key=lambda keys: len(wanted ^ set(keys)))
  others = meanings.get('others', '')
  return {key: meanings.get(key, others) for key in section}


@functools.cache
def _makers(module: ModuleType) -> dict[tuple[Any, Any], tuple[str, dict]]:
  """Returns (kind, name) of a section -> what makes it, and its defaults."""
  makers = {}
  for name in of_sections():
    function = getattr(module, name)
    needed = [
      parameter.name
      for parameter in inspect.signature(function).parameters.values()
      if parameter.default is parameter.empty
      and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if 'name' not in needed:
      section = function(**dict.fromkeys(needed, ''))
      usual = {k: v for k, v in section.items() if k not in (*needed, *_NAMES)}
      makers[tuple(section.get(key) for key in _NAMES)] = name, usual
  return makers


def _assigned(function: ast.FunctionDef) -> Iterator[_Item]:
  """Yields the keys that a function assigns to `config` and its sections."""
  paths = {'config': ''}  # Variable -> path of its section.
  for statement in function.body:
    if not isinstance(statement, ast.Assign):
      continue
    attribute, *aliases = statement.targets
    if not isinstance(attribute, ast.Attribute):
      continue
    key = paths[attribute.value.id] + attribute.attr
    paths |= {alias.id: f'{key}.' for alias in aliases}
    inner = tuple(_dict_items(statement.value, f'{key}.'))
    yield _Item(key, statement.lineno, statement.end_lineno, inner)


def _dict_items(node: ast.AST, prefix: str = '') -> Iterator[_Item]:
  """Yields the keys of the calls `dict(key=...)` in a part of the source."""
  for call in ast.walk(node):
    if isinstance(call, ast.Call) and getattr(call.func, 'id', '') == 'dict':
      for word in call.keywords:
        yield _Item(prefix + word.arg, word.lineno, word.end_lineno)


def _meanings(items: Iterable[_Item], source: str) -> dict[str, str]:
  """Returns key -> its comment, '' without one."""
  above, behind = _comments(source)
  found, current, line = {}, '', 0
  for key, first, last, inner in items:
    if first - 1 in above:
      current = above[first - 1]
    elif first != line + 1 or last in behind:
      current = ''
    own = ' '.join(filter(None, (current, behind.get(last, ''))))
    found[key], line = own, last
    if last in behind:
      current = ''
    found |= {
      part: meaning or own for part, meaning in _meanings(inner, source).items()
    }
  return found


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
  """Returns line -> the block of comments that ends there, or behind code."""
  above, behind = {}, {}
  tokens = tokenize.generate_tokens(io.StringIO(source).readline)
  for token in tokens:
    if token.type != tokenize.COMMENT:
      continue
    row, column = token.start
    text = token.string.lstrip('# ')
    if token.line[:column].strip():
      behind[row] = text
    else:
      before = above.pop(row - 1, '')
      above[row] = f'{before} {text}'.strip()
  return above, behind


def _arguments(docstring: str) -> dict[str, str]:
  """Returns the texts of a docstring on the arguments."""
  args = docstring.partition('\nArgs:\n')[2].partition('\n\n')[0]
  found = re.findall(r'^ {2}\**(\w+): (.*(?:\n {4}.*)*)', args, re.MULTILINE)
  return {name: ' '.join(text.split()) for name, text in found}
