"""How the page looks. Colours have a light and a dark form; the page follows the reader's setting."""

from __future__ import annotations

PAGE_STYLE = "body { margin: 24px; } @media (prefers-color-scheme: dark) { body { background: #0f1319; } }"
STYLE = """
.lmprog-run { --ink: #1c2430; --soft: #67728a; --faint: #97a1b5; --line: #e4e8f0; --back: #fff; --hover: #f5f7fb;
  --prompt: #b8c3d9; --cached: #e6eaf2; --generated: #2e9e5b; --forced: #1f9aa8; --bad: #c62f3b;
  --generated-tint: #dff5e7; --forced-tint: #d8f2f5; --time: #6c7ff0;
  color: var(--ink); background: var(--back); font: 13px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  border: 1px solid var(--line); border-radius: 10px; overflow-x: auto; }
@media (prefers-color-scheme: dark) { .lmprog-run { --ink: #dfe5f0; --soft: #98a3b9; --faint: #6d7890;
  --line: #2b3341; --back: #161b23; --hover: #1d2430; --prompt: #5c6a85; --cached: #2f3848; --generated: #4cc27e;
  --forced: #45bccb; --bad: #ff7a83; --generated-tint: #173626; --forced-tint: #12353a; --time: #7f90ff; } }
.lmprog-run * { box-sizing: border-box; }
.lmprog-run header { padding: 12px 16px; border-bottom: 1px solid var(--line); display: flex; flex-wrap: wrap;
  gap: 4px 24px; align-items: baseline; justify-content: space-between; }
.lmprog-run h2 { margin: 0; font-size: 15px; font-weight: 650; }
.lmprog-run header p { margin: 0; color: var(--soft); }
.lmprog-run .legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12px; color: var(--soft); }
.lmprog-run .legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
.lmprog-run .row { display: grid; grid-template-columns: 15em minmax(12em, 1fr) repeat(4, 4.6em) 7em 9em 5em;
  column-gap: 10px; padding: 3px 16px; align-items: start; min-width: 72em; }
.lmprog-run .row:hover { background: var(--hover); }
.lmprog-run .head { color: var(--faint); border-bottom: 1px solid var(--line); }
.lmprog-run .head div { font-size: 11px; text-transform: uppercase; letter-spacing: .04em; }
.lmprog-run .head:hover { background: none; }
.lmprog-run .n { text-align: right; font-variant-numeric: tabular-nums; color: var(--soft); }
.lmprog-run .head .n { color: inherit; }
.lmprog-run .zero { color: var(--line); }
.lmprog-run .label { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; color: var(--soft); }
.lmprog-run .state > summary .label { color: var(--ink); font-weight: 650; }
.lmprog-run .call .label b { color: var(--ink); font-weight: 600; }
.lmprog-run .text { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 7.6em; overflow-y: auto;
  font: 12px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.lmprog-run .cached { color: var(--faint); }
.lmprog-run .generated { background: var(--generated-tint); border-radius: 3px; padding: 1px 0; }
.lmprog-run .forced { background: var(--forced-tint); border-radius: 3px; padding: 1px 0; }
.lmprog-run .bad { color: var(--bad); }
.lmprog-run .bar { display: flex; height: 9px; margin-top: 5px; border-radius: 3px; overflow: hidden; }
.lmprog-run .bar i { height: 100%; }
.lmprog-run .when { position: relative; height: 9px; margin-top: 5px; }
.lmprog-run .when i { position: absolute; height: 100%; min-width: 2px; border-radius: 3px; background: var(--time); }
.lmprog-run .state > summary .when i { opacity: .35; }
.lmprog-run summary { cursor: pointer; list-style: none; }
.lmprog-run summary::-webkit-details-marker { display: none; }
.lmprog-run summary .label::before { content: "\\25B8"; display: inline-block; width: 1.1em; color: var(--faint); }
.lmprog-run details[open] > summary .label::before { content: "\\25BE"; }
.lmprog-run .choices { display: grid; grid-template-columns: auto 6em 1fr; gap: 0 10px; margin-top: 2px;
  white-space: pre-wrap; font: 12px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.lmprog-run .choices span { color: var(--faint); }
.lmprog-run .choices .chosen { color: var(--ink); }
"""
