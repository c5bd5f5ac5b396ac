"""Sample sections, and helpers that read their pages."""

import base64
import html.parser

from vit_jax.paper import page, report
from vit_jax.paper.numbers import Value
from vit_jax.paper.report import Cell, Number, Picture

# One transparent pixel. Tests look for these bytes in the page.
PNG = base64.b64decode(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9'
  'awAAAABJRU5ErkJggg=='
)
CELLS = {
  ('a', 'x'): Cell(
    Number((77.1, 77.3), ('r1', 'r2')), Value(77.91, printed='77.910')
  ),
  ('a', 'y'): Cell(Number((99.5,), ('r1',)), Value(99.25, 0.5)),
  ('b', 'x'): Cell(None, Value(71.5, printed='71.5')),
  ('b', 'y'): Cell(None, Value('7/14', printed='7/14'), expected=False),
  ('c', 'x'): Cell(Number((50.0,), ('r3',))),
}
TABLE = report.Table('Accuracy', ('a', 'b', 'c'), ('x', 'y'), CELLS)


class Reader(html.parser.HTMLParser):
  """Collects cells, links, ids, images and tags; checks that all tags close."""

  VOID = ('meta', 'img')

  def __init__(self, text):
    super().__init__()
    self.open, self.grid, self.links, self.ids, self.images = [], [], [], [], []
    self.tags = set()
    self.feed(text)
    assert self.open == []

  def handle_starttag(self, tag, attributes):
    attributes = dict(attributes)
    self.tags.add(tag)
    if tag not in self.VOID:
      self.open.append(tag)
    if 'id' in attributes:
      self.ids.append(attributes['id'])
    if tag == 'a':
      self.links.append(attributes['href'])
    if tag == 'img':
      self.images.append(attributes['src'])
    if tag == 'tr':
      self.grid.append([])
    if tag == 'td':
      self.grid[-1].append(('', ''))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if 'td' in self.open:
      ours, paper = self.grid[-1][-1]
      small = 'small' in self.open
      texts = (ours, paper + data) if small else (ours + data, paper)
      self.grid[-1][-1] = texts


def markdown(*sections, title='Results', about=(), **facts):
  return page.markdown(sections, title=title, facts=facts, about=about)


def html_page(*sections, title='Results', pictures='.', about=(), **facts):
  head = dict(title=title, facts=facts, about=about)
  return page.html(sections, pictures=pictures, **head)


def grid(table):
  """Returns the rows of cells, without the header."""
  text = html_page(report.Section('t', 'T', (table,)))
  return Reader(text).grid[1:]


def rows(table):
  """Returns the lines of the Markdown table, without the header."""
  text = markdown(report.Section('t', 'A test', (table,))).split('### ')[1]
  return [line for line in text.split('\n') if line.startswith('|')][2:]


def draw(folder, stem='figures/figure7'):
  (folder / stem).parent.mkdir(exist_ok=True, parents=True)
  for suffix, content in (('png', PNG), ('pdf', b'%PDF'), ('csv', b'x,y\n')):
    (folder / f'{stem}.{suffix}').write_bytes(content)
  return Picture('Filters', stem, 'What to see.')
