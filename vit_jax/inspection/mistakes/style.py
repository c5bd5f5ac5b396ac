"""The style and the script of the page: wide and narrow, light and dark."""

CSS = """\
:root {
  --back: #ffffff; --raised: #f4f5f7; --line: #d9dde3; --text: #1c2024;
  --muted: #5c6470; --link: #0b57b0; --good: #1a8a4a; --bad: #d0432f;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --raised: #1e2228; --line: #363c45; --text: #e4e7eb;
    --muted: #9ba4b0; --link: #7cb7ff; --good: #3fb76e; --bad: #f0705f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 84rem;
  background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans',
    'Liberation Sans', 'DejaVu Sans', sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: break-word;
}
h1 { margin: 0; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 2.5rem 0 0.25rem; font-size: 1.3rem; }
h3 { margin: 1.5rem 0 0.5rem; font-size: 1rem; }
p { max-width: 46rem; margin: 0.25rem 0 0.75rem; }
.about, .note, small { color: var(--muted); font-size: 0.875rem; }
a { color: var(--link); }
.facts {
  display: grid; gap: 0.75rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr));
}
.facts div {
  padding: 0.6rem 0.8rem; border-radius: 0.5rem; background: var(--raised);
}
.facts dt { color: var(--muted); font-size: 0.8rem; }
.facts dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
.facts small { display: block; font-weight: 400; font-size: 0.75rem; }

.scroll {
  max-width: 100%; width: fit-content; max-height: 34rem; overflow: auto;
  border: 1px solid var(--line); border-radius: 0.4rem;
}
.whole { max-height: none; }
.beside { display: flex; flex-wrap: wrap; gap: 0 3rem; }
.beside > * { max-width: 100%; }
table { border-collapse: separate; border-spacing: 0; }
th, td { padding: 0.3rem 0.65rem; text-align: right; font-size: 0.9rem; }
td { border-top: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; }
thead th {
  position: sticky; top: 0; z-index: 1; background: var(--back);
  box-shadow: inset 0 -1px var(--line);
}
.name {
  min-width: 7rem; max-width: 26rem; text-align: left; white-space: normal;
}
tbody .name:first-child { position: sticky; left: 0; background: var(--back); }
th button {
  all: unset; cursor: pointer; color: var(--link); white-space: nowrap;
}
th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort=ascending] button::after { content: ' \\25B2'; }
th[aria-sort=descending] button::after { content: ' \\25BC'; }
.bar {
  display: inline-block; width: 4rem; height: 0.55rem; margin-left: 0.5rem;
  border-radius: 0.2rem; background: linear-gradient(
    to right, var(--good) calc(var(--share) * 100%), var(--line) 0);
}

.matrix { border-spacing: 1px; }
.matrix th, .matrix td {
  padding: 0.15rem 0.25rem; border: 0; text-align: center; font-size: 0.8rem;
}
.matrix thead th { height: 1px; box-shadow: none; }
.matrix thead span {
  writing-mode: vertical-rl; transform: rotate(180deg); max-height: 11rem;
  text-align: left; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap;
}
.matrix tbody th {
  position: sticky; left: 0; max-width: 11rem; overflow: hidden;
  text-align: right; text-overflow: ellipsis; white-space: nowrap;
  background: var(--back);
}
.matrix td {
  min-width: 2rem; border-radius: 0.15rem;
  background: color-mix(
    in srgb, var(--bad) calc(var(--shade) * 75%), var(--raised));
}
.matrix td.right {
  background: color-mix(
    in srgb, var(--good) calc(var(--shade) * 65%), var(--raised));
}
.matrix td.rest { background: none; color: var(--muted); }

.cards {
  display: grid; gap: 0.75rem; margin: 1rem 0; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr));
}
.cards li {
  padding: 0.6rem; border-radius: 0.5rem; background: var(--raised);
  font-size: 0.875rem; line-height: 1.35; overflow-wrap: anywhere;
}
.cards img, .cards .none {
  display: grid; width: 100%; height: 9rem; margin-bottom: 0.4rem;
  object-fit: contain; place-content: center; border-radius: 0.3rem;
  background: var(--back); color: var(--muted);
}
.cards img.small { image-rendering: pixelated; }
.cards b { color: var(--bad); }
.cards small { display: block; font-size: 0.75rem; }
.cards .path {
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2;
  overflow: hidden;
}
svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg text { fill: var(--muted); font-size: 12px; }
svg .axis { stroke: var(--line); }
svg .ideal { stroke: var(--muted); stroke-dasharray: 4 4; }
svg .accuracy { fill: var(--link); fill-opacity: 0.75; }
svg .over { fill: var(--bad); fill-opacity: 0.45; }
svg .under { fill: var(--good); fill-opacity: 0.55; }
svg .images { fill: var(--muted); fill-opacity: 0.6; }
.list { max-height: 20rem; overflow: auto; padding-left: 1.4rem; }
@media (max-width: 40rem) {
  body { padding-top: 1.25rem; }
  h1 { font-size: 1.45rem; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .facts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .bar { display: none; }
  .name { min-width: 5.5rem; max-width: 9rem; }
  .matrix tbody th { max-width: 6.5rem; }
}
"""

# Sorts a table by the column whose button was pressed. Cells without a value
# stay last.
SCRIPT = """\
for (const button of document.querySelectorAll('th button')) {
  button.addEventListener('click', () => {
    const head = button.closest('th'), table = head.closest('table');
    const column = [...head.parentNode.children].indexOf(head);
    // Names are first sorted from A, numbers from the largest.
    const before = head.getAttribute('aria-sort');
    const up = before ? before === 'descending' : head.className === 'name';
    for (const other of head.parentNode.children)
      other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const value = row => row.children[column].dataset.value ?? '';
    const compare = (a, b) => {
      if (!a || !b) return !a - !b;
      const both = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return up ? both : -both;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
  });
}
"""
