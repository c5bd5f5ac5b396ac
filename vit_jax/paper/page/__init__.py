"""A reproduction of the paper as a page: `results.md` and `index.html`.

from vit_jax.paper import page

page.write(sections, 'out', title='Results', facts={'scale': 'mini'})

The page shows sections of `vit_jax.paper.report` and holds no numbers itself.
Missing numbers are shown as missing. `page.md` and `page.html` show the same
sections, with the texts of `texts.py`.
"""

import functools
import pathlib
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from markupsafe import Markup

from vit_jax import pages
from vit_jax.pages import drawing
from vit_jax.paper import report
from vit_jax.paper.page import texts
from vit_jax.runtime import printable
from vit_jax.workdir import files

_HERE = pathlib.Path(__file__).parent
# For addresses; those of runs may be in a bucket.
_quote = functools.partial(urllib.parse.quote, safe='/:')
# Browser pixels per inch of a picture: its text is then as large as the page's.
_INCH = 115
# Longer words may break anywhere; `R50+ViT-B/32,` is just short enough.
_LONGEST_WORD = 14
# Characters with a meaning in Markdown, its tables, HTML or GitHub's formulas.
_SPECIAL = re.compile(r'[\\`*_\[\]<>&|~#$]')


def write(
  sections: Sequence[report.Section],
  directory: epath.PathLike,
  *,
  title: str,
  facts: Mapping[str, object],
  about: Sequence[str | report.Listing] = (),
) -> None:
  """Writes `results.md` and `index.html`, each whole or not at all.

  Args:
    sections: in the paper's order.
    directory: the folder of their pictures; created if it does not exist.
    title: of the page.
    facts: name -> short fact, shown at the top.
    about: paragraphs and listings below the facts, on what all sections have
      in common.

  Raises:
    FileNotFoundError: a picture is not drawn; both files are then unchanged.
  """
  directory = files.absolute(directory)
  head = dict(title=title, facts=facts, about=about)
  found = {
    'results.md': markdown(sections, **head),
    'index.html': html(sections, **head, pictures=directory),
  }
  directory.mkdir(parents=True, exist_ok=True)
  for name, text in found.items():
    with files.atomic(directory / name) as temporary:
      temporary.write_bytes(text.encode())


def html(
  sections: Sequence[report.Section],
  *,
  pictures: epath.PathLike,
  **head: Any,
) -> str:
  """Renders all sections, with a table of contents, as one HTML file.

  Args:
    sections: in the paper's order.
    pictures: folder of the pictures' files, where the page will be written.
    **head: `title`, `facts` and `about`, see `write`.

  Returns:
    HTML with its style and its pictures inside, which links to the PDF and
    CSV files next to it.

  Raises:
    FileNotFoundError: a picture is not drawn.
  """
  folder = epath.Path(pictures)
  return pages.render(
    _HERE / 'page.html',
    sections=sections,
    texts=texts,
    kind=_kind,
    label=_breaking,
    quote=_quote,
    link=lambda text, path: Markup('<a href="{}">{}</a>').format(
      _quote(path), text
    ),
    picture=lambda found: _picture(found, folder),
    **head,
  )


def markdown(
  sections: Sequence[report.Section], *, list_runs: bool = True, **head: Any
) -> str:
  """Renders all sections, after a table of contents, for GitHub.

  Args:
    sections: in the paper's order.
    list_runs: whether each section ends with a line for each of its runs.
    **head: `title`, `facts` and `about`, see `write`.
  """
  text = pages.render(
    _HERE / 'page.md',
    sections=sections,
    texts=texts,
    kind=_kind,
    quote=_quote,
    link=lambda text, path: Markup(f'[{text}]({_quote(path)})'),
    e=escape,
    each=lambda row: [*map(escape, row)],
    eachrow=lambda rows: [[*map(escape, row)] for row in rows],
    list_runs=list_runs,
    **head,
  )
  return re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


def escape(text: str) -> str:
  """Escapes text for Markdown, on one line, so that it also fits in tables.

  Leaves Markup as it is.
  """
  if isinstance(text, Markup):
    return text
  words = printable.name(' '.join(str(text).split()))
  return _SPECIAL.sub(r'\\\g<0>', words)


def _kind(block: Any) -> str:
  """Returns the name of a block's type, such as `Table`; `str` for a text."""
  return type(block).__name__


def _breaking(text: str) -> Markup:
  """Lets a label break at spaces only: browsers also break after `ViT-`.

  Words that are too long for a narrow column may break anywhere.
  """
  return Markup(' ').join(
    Markup('<span>{}</span>').format(word)
    if len(word) <= _LONGEST_WORD
    else word
    for word in printable.text(text).split()
  )


def _picture(picture: report.Picture, folder: epath.Path) -> dict[str, Any]:
  """Returns a picture's content and its width in the browser's pixels."""
  png = (folder / f'{picture.stem}.png').read_bytes()
  # The header of a PNG file begins with its width.
  pixels = int.from_bytes(png[16:20])
  return {
    'uri': pages.data_uri(png, 'png'),
    'width': max(1, round(pixels * _INCH / drawing.PIXELS_PER_INCH)),
  }
