"""The style of the HTML page: wide and narrow, light and dark, and printed."""

CSS = """\
:root {
  --back: #ffffff; --raised: #f5f6f8; --line: #d9dde3; --text: #1c2024;
  --muted: #5c6470; --link: #0b57b0; --good: #1a7436; --bad: #b42318;
  --partly: #8a5a00; --shade: rgb(0 0 0 / 18%);
  color-scheme: light;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --raised: #1e2228; --line: #363c45; --text: #e4e7eb;
    --muted: #9ba4b0; --link: #7cb7ff; --good: #5fd07f; --bad: #ff8a80;
    --partly: #e5b454; --shade: rgb(0 0 0 / 60%);
    color-scheme: dark;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 86rem;
  background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans',
    'Liberation Sans', 'DejaVu Sans', sans-serif;
  overflow-wrap: break-word;
}
a { color: var(--link); text-underline-offset: 0.15em; }
h1 { margin: 0 0 1rem; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 0; font-size: 1.3rem; line-height: 1.3; }
small, .below, .notes, details, .status { font-size: 0.875rem; }
.folded { font-size: 1rem; }
.facts { display: flex; flex-wrap: wrap; gap: 0.75rem 2rem; margin: 0 0 2rem; }
.facts dt { color: var(--muted); font-size: 0.8rem; }
.facts dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; }

.about { max-width: 58rem; margin: 0 0 2rem; font-size: 0.9rem; }

nav { margin-bottom: 2rem; }
nav h2 { font-size: 1rem; }
nav ol { list-style: none; margin: 0; padding: 0; }
nav li a {
  display: flex; gap: 0.6rem; padding: 0.35rem 0.5rem; margin: 0 -0.5rem;
  border-radius: 0.3rem; color: inherit; text-decoration: none;
  font-size: 0.9rem; line-height: 1.35;
}
nav li a:hover, nav li a:focus-visible { background: var(--raised); }
nav li a:hover b { text-decoration: underline; }
nav li b { color: var(--link); }
nav li small { display: block; color: var(--muted); font-size: 0.8rem; }
.summary {
  display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; margin: 0.3rem 0 0.6rem;
  font-size: 0.875rem;
}
.mark { font-style: normal; color: var(--muted); }
.mark.complete { color: var(--good); }
.mark.partly-there { color: var(--partly); }
.mark.missing { color: var(--bad); }

section { padding: 1.75rem 0 0.5rem; border-top: 1px solid var(--line); }
section + section { margin-top: 2rem; }
section h2 span { color: var(--muted); font-weight: 400; }
.status { margin: 0.25rem 0 1rem; color: var(--muted); }
figure { margin: 1.5rem 0; }
figcaption { margin-bottom: 0.5rem; font-weight: 600; }
.below { margin: 0.5rem 0 0; max-width: 46rem; color: var(--muted); }
.files { white-space: nowrap; }
.files a + a { margin-left: 0.5rem; }
img {
  display: block; max-width: 100%; height: auto; padding: 0.5rem;
  border: 1px solid var(--line); border-radius: 0.4rem; background: #ffffff;
}
.notes { max-width: 46rem; padding-left: 1.2rem; }
.notes li { margin: 0.25rem 0; }

/* A shade at an edge says that there is more to scroll to. */
.scroll {
  max-width: 100%; width: fit-content; overflow-x: auto;
  border: 1px solid var(--line); border-radius: 0.4rem;
  background:
    linear-gradient(to left, var(--back) 40%, transparent) right / 2.5rem 100%
      no-repeat local,
    linear-gradient(to left, var(--shade), transparent) right / 0.8rem 100%
      no-repeat scroll;
}
table { border-collapse: separate; border-spacing: 0; }
th, td {
  padding: 0.4rem 0.65rem; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top;
}
tbody tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; font-size: 0.875rem; line-height: 1.35; }
.numbers th[scope=col] { max-width: 11rem; vertical-align: bottom; }
.numbers thead td { vertical-align: bottom; font-weight: 600; }
.numbers th[scope=col], .numbers tbody td { text-align: right; }
.numbers tbody td { white-space: nowrap; font-variant-numeric: tabular-nums; }
.numbers th[scope=row], .numbers thead td {
  position: sticky; left: 0; min-width: 7rem; max-width: 18rem;
  background: var(--back); border-right: 1px solid var(--line);
}
.numbers td small, .key small {
  display: block; color: var(--muted); font-size: 0.78rem; font-weight: 400;
  line-height: 1.3;
}
.numbers th span { white-space: nowrap; }
.numbers td:has(> small:only-child) { vertical-align: bottom; }
.numbers td small span { margin-left: 0.35em; }
.key { font-size: 0.875rem; line-height: 1.3; }
.ours { font-weight: 600; }
.ours.missing { color: var(--bad); font-weight: 400; font-style: italic; }
.none { color: var(--muted); }
.settings .ours { font-weight: 400; }
.settings td:has(> .differs) {
  min-width: 9rem; max-width: 16rem; background: var(--raised);
  white-space: normal;
}
.settings td:has(> .differs) .ours { color: var(--bad); font-weight: 600; }
.settings td > sup {
  position: absolute; color: var(--muted); font-size: 0.7rem; line-height: 1;
}
.agrees, .differs { margin-left: 0.15em; font-style: normal; }
.agrees { color: var(--good); opacity: 0.7; }
.differs { color: var(--bad); font-weight: 600; }
sup { line-height: 0; }

.claim {
  margin: 1rem 0; padding: 0.6rem 1rem; max-width: 50rem;
  border-left: 0.25rem solid var(--muted); border-radius: 0.2rem;
  background: var(--raised);
}
.claim p { margin: 0.15rem 0; }
.claim.yes { border-color: var(--good); }
.claim.no, .claim.missing { border-color: var(--bad); }
.claim.missing { border-left-style: dashed; }
.claim.not-at-this-scale { border-color: var(--partly); }
.answers { list-style: none; margin: 1rem 0; padding: 0; max-width: 58rem; }
.answers li { padding: 0.5rem 0; border-top: 1px solid var(--line); }
.answer { margin-right: 0.4rem; white-space: nowrap; }
.yes .answer { color: var(--good); }
.no .answer, .missing .answer { color: var(--bad); }
.undecided .answer, .seen-once .answer { color: var(--partly); }
.not-seen .answer { color: var(--partly); }

summary { padding: 0.3rem 0; color: var(--muted); cursor: pointer; }
.listing { font-size: 0.8rem; }
.listing th { font-size: inherit; }
.listing th, .listing td { padding: 0.25rem 0.8rem; text-align: left; }
.runs { font-size: 0.8rem; font-variant-numeric: tabular-nums; }
.runs th { font-size: inherit; }
.runs th, .runs td { padding: 0.25rem 0.8rem; white-space: nowrap; }
.runs :is(th, td):nth-child(3) { text-align: right; }
.runs .unfinished td:last-child { color: var(--bad); }

@media (min-width: 72rem) {
  body {
    display: grid; grid-template-columns: 16.5rem minmax(0, 1fr);
    column-gap: 2.5rem; align-items: start; padding: 2.5rem 2rem 4rem;
  }
  header { grid-column: 1 / -1; }
  .answers li {
    display: grid; grid-template-columns: 10.5rem minmax(0, 1fr);
    column-gap: 0.75rem;
  }
  nav {
    position: sticky; top: 0; max-height: 100vh; overflow-y: auto;
    padding: 1.75rem 0.5rem 1rem; border-top: 1px solid var(--line);
  }
}
@media (max-width: 40rem) {
  body { padding-top: 1.25rem; }
  h1 { font-size: 1.45rem; }
  th, td { padding: 0.35rem 0.6rem; }
  .numbers th[scope=row], .numbers thead td {
    min-width: 5.5rem; max-width: 8.5rem;
  }
}
@media print {
  @page { margin: 1.5cm; }
  :root {
    --back: #ffffff; --raised: #ffffff; --line: #bbbbbb; --text: #000000;
    --muted: #444444; --link: #000000; --shade: transparent;
    --good: #1a7436; --bad: #b42318; --partly: #8a5a00;
    color-scheme: light;
  }
  body { display: block; padding: 0; font-size: 9.5pt; }
  nav { position: static; max-height: none; padding: 0; }
  .scroll { overflow: visible; border: 0; background: none; }
  .numbers th[scope=row], .numbers thead td { position: static; }
  th, td { padding: 0.2rem 0.35rem; }
  tr, figure:has(img), .claim { break-inside: avoid; }
  h2, .status, figcaption { break-after: avoid; }
  details::details-content { content-visibility: visible; height: auto; }
}
"""
