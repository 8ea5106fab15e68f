// Grammars of MLIR's text and of HLO's for the highlighter.
"use strict";
Prism.languages.mlir = {
  comment: /\/\/.*|\/\*[\s\S]*?\*\//,
  function: [{ pattern: /"[a-z_]\w*\.[\w.$]+"(?=\()/, greedy: true }, /\b[a-z_]\w*(?:\.[a-z_$][\w$]*)+(?![\w.]*\s*=)/],
  string: { pattern: /"(?:\\.|[^"\\\n])*"/, greedy: true },
  type: /!\w[\w.]*|\b(?:tensor|vector|memref|complex|tuple)(?=<)|\b(?:[su]?i\d+|f\d+\w*|bf16|index|none)\b|(?<=[x<])(?:[su]?i\d+|f\d+\w*|bf16)\b/,
  attribute: /#\w[\w.]*|\b\w+(?=\s*=)/,
  symbol: /@(?:[\w$.-]+|"[^"]*")/,
  variable: /%[\w$.-]+(?:[:#]\d+)?|\^\w+/,
  keyword: /\b(?:module|func|return|loc|dense|dense_resource|array|true|false|unit|dim|to|applies|contracting_dims|batching_dims|precision)\b/,
  number: /-?\b(?:0x[\dA-Fa-f]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?=x|\b)/,
};
Prism.languages.hlo = {
  comment: /\/\/.*|\/\*[\s\S]*?\*\//,
  string: { pattern: /"(?:\\.|[^"\\\n])*"/, greedy: true },
  type: /\b(?:pred|token|opaque|[su]\d+|f\d+\w*|bf16|c\d+)\[[^\]]*\](?:\{[^}]*\})?/,
  keyword: /\b(?:HloModule|ENTRY|ROOT|true|false)\b/,
  variable: /%[\w.-]+/,
  attribute: /\b[a-z_]+(?==)/,
  function: /\b[a-z][a-z0-9-]*(?=\()/,
  number: /-?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b/,
};
const code = (text, language) => `<pre class="code">${Prism.highlight(text, Prism.languages[language], language)}</pre>`;
