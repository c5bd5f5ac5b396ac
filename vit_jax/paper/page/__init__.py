"""A reproduction of the paper as a page: `results.md` and `index.html`.

from vit_jax.paper import page

page.write(sections, 'out', title='Results', facts={'scale': 'mini'})

The page shows sections of `vit_jax.paper.report` and holds no numbers itself.
Missing numbers are shown as missing.
"""

from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax.interop import weight_files
from vit_jax.paper import report
from vit_jax.paper.page.page_html import html
from vit_jax.paper.page.page_markdown import markdown
from vit_jax.workdir import files

__all__ = ['html', 'markdown', 'write']


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
    ValueError: as `html` does; both files are then unchanged.
  """
  directory = weight_files.absolute(directory)
  head = dict(title=title, facts=facts, about=about)
  texts = {
    'results.md': markdown(sections, **head),
    'index.html': html(sections, **head, pictures=directory),
  }
  directory.mkdir(parents=True, exist_ok=True)
  for name, text in texts.items():
    with files.atomic(directory / name) as temporary:
      temporary.write_bytes(text.encode())
