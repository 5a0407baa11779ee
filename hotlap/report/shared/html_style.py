"""The style sheet: neutral tones and one accent, in light and dark, for phones, wide screens and paper."""

from __future__ import annotations

# Name: (light, dark). Text has a contrast of at least 4.5 against its background, for each of the PAIRS.
COLOURS = {
    "paper": ("#ffffff", "#14171b"),
    "wash": ("#f4f6f8", "#1c2025"),
    "ink": ("#16191d", "#e9ebee"),
    "soft": ("#545b64", "#a8b0ba"),
    "rule": ("#dde1e6", "#30363e"),
    "accent": ("#0b5cad", "#6cb0f5"),
    "on-accent": ("#ffffff", "#0b1622"),
    # Parts of a step: hues that the colour-blind tell apart, and neighbours that differ in lightness on grey paper.
    "data": ("#f0a27a", "#93502a"),
    "copy": ("#f9e3a0", "#4f400c"),
    "forward": ("#86bbe8", "#2c629a"),
    "backward": ("#d6ddfa", "#343a78"),
    "optimizer": ("#76c4a8", "#24705b"),
    "sync": ("#f7d3e6", "#5f2a4c"),
    "garbage": ("#c4bb6c", "#6c6630"),
    "rest": ("#e0e4e9", "#3a424c"),
    "span": ("#b7a2e6", "#5f4b9e"),
    "noise": ("#dfe5ec", "#2b333c"),
    "mark": ("#6b737d", "#8b949f"),  # lines in pictures, never text
}

PARTS = ("data", "copy", "forward", "backward", "optimizer", "sync", "garbage", "rest", "span")

# Text colour and the background it is drawn on.
PAIRS = (
    ("ink", "paper"),
    ("ink", "wash"),
    ("soft", "paper"),
    ("soft", "wash"),
    ("accent", "paper"),
    ("on-accent", "accent"),
    ("soft", "noise"),
    *(("ink", part) for part in PARTS),
)


def _variables(which: int) -> str:
    return "".join(f"--{name}:{both[which]};" for name, both in COLOURS.items())


_GROUND = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:break-word}
main,.top{max-width:1200px;margin:0 auto;padding:0 24px}
.top{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline;padding-top:28px;color:var(--soft);font-size:14px}
.mark{color:var(--accent);font-weight:650;font-size:16px}
.meta{margin-left:auto;overflow-wrap:anywhere}
h1{font-size:clamp(24px,3.4vw,38px);line-height:1.2;font-weight:620;letter-spacing:-.015em;margin:10px 0 12px;
max-width:30em;text-wrap:balance}
h2{font-size:21px;line-height:1.3;font-weight:620;letter-spacing:-.005em;margin:0 0 14px}
h3{font-size:15px;font-weight:620;margin:24px 0 6px}
section{margin:52px 0 0;padding-top:22px;border-top:1px solid var(--rule)}
main{padding-bottom:72px}
p{margin:0 0 10px;max-width:74ch}
ul,ol{margin:0 0 12px;padding-left:1.25em;max-width:74ch}
li{margin:2px 0}
.lead{color:var(--soft);font-size:17px}
.subject{display:flex;flex-wrap:wrap;gap:2px 20px;max-width:none;margin:22px 0 0;color:var(--soft);font-size:14px}
.subject code{color:var(--ink);overflow-wrap:anywhere}
.note{color:var(--soft);font-size:14px;margin-top:6px}
code,.line{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.9em}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
"""

_FIGURES = """
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:22px 26px;margin:30px 0 0}
.figures dt{color:var(--soft);font-size:14px}
.figures dd{margin:0}
.figures .value{display:block;font-size:20px;line-height:1.3;font-weight:600;letter-spacing:-.01em;
text-wrap:balance}
.proven div:first-child .value{color:var(--accent)}
.figures .note{display:block;margin:2px 0 0}
.facts{margin:0;font-size:15px}
.facts div{display:grid;grid-template-columns:minmax(7em,11em) 1fr;gap:0 20px;padding:6px 0;
border-bottom:1px solid var(--rule)}
.facts dt{color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
.line{display:block;background:var(--wash);border-radius:6px;padding:9px 12px;margin:2px 0 0;white-space:pre-wrap;
overflow-wrap:anywhere}
.commands{margin:0}
.commands div{margin:0 0 14px}
.commands dt{color:var(--soft);font-size:14px}
.commands dd{margin:0}
"""

_TABLES = """
.scroll{position:relative;overflow-x:auto;margin:14px 0 0}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:3px}
table{border-collapse:collapse;font-size:15px;min-width:min(100%,420px)}
caption{text-align:left;font-weight:620;padding:0 0 6px}
th,td{text-align:left;vertical-align:top;font-weight:400;padding:7px 24px 7px 0;border-bottom:1px solid var(--rule)}
th:last-child,td:last-child{padding-right:0}
thead th{color:var(--soft);font-size:14px;vertical-align:bottom;white-space:nowrap}
.n,.word{white-space:nowrap}
.n{text-align:right}
.marked th,.marked td{font-weight:620}
.side{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:8px 48px;align-items:start}
.tried{width:100%;table-layout:fixed}
.tried th,.tried td{padding-top:9px;padding-bottom:9px}
.tried .name{width:18%}
.tried .plot{width:31%;padding:0;position:relative}
.tried tbody .plot{height:48px}
.tried tbody .plot svg{position:absolute;inset:0;height:100%}
.tried .speed{width:12%}
.tried .gate{width:18%}
.tried thead th{white-space:normal}
.tried b{font-weight:620}
.tried small{display:block;color:var(--soft);font-size:13px;line-height:1.4;overflow-wrap:anywhere}
.tried .edge th,.tried .edge td{background:var(--wash)}
.state{font-weight:620}
.state-kept{color:var(--accent)}
"""

_PICTURES = """
svg{display:block;overflow:visible}
figure{margin:0 0 8px}
figcaption{display:flex;justify-content:space-between;gap:12px;font-size:15px;margin:12px 0 4px}
figcaption b{font-weight:620;white-space:nowrap}
svg text{font-family:inherit;font-size:13px;fill:var(--ink)}
.bar svg{overflow:hidden}
.seg{stroke:var(--paper);stroke-width:2}
@parts@
.after{fill:var(--accent)}
.phases{list-style:none;padding:0;margin:14px 0 0;max-width:480px;font-size:15px}
.phases li{display:grid;grid-template-columns:28px minmax(0,1fr) auto 5ch;gap:0 14px;align-items:baseline;margin:0;
padding:6px 0;border-bottom:1px solid var(--rule)}
.phases .key{display:inline-block;text-align:center;font-size:13px;border-radius:3px;color:var(--ink)}
.phases .share{text-align:right;color:var(--soft)}
.tick,.grid{stroke:var(--rule)}
.tick{stroke:var(--mark)}
svg .tick-name{fill:var(--soft);font-size:12px}
.noise{fill:var(--noise)}
.nothing{stroke:var(--mark)}
.least{stroke:var(--mark);stroke-dasharray:2 4}
.interval{stroke-width:2}
.interval.strong{stroke:var(--accent)}.point.strong{fill:var(--accent)}
.interval.plain{stroke:var(--ink)}.point.plain{fill:var(--ink)}
.interval.faint{stroke:var(--mark);stroke-width:1.5}.point.faint{fill:var(--paper);stroke:var(--mark);stroke-width:1.5}
.curves path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.curves .band{fill:var(--noise)}
.curves .curve-0{stroke:var(--mark);stroke-width:2.5}
.curves .curve-1{stroke:var(--accent);stroke-width:2;stroke-dasharray:6 3}
.keys{list-style:none;display:flex;flex-wrap:wrap;gap:4px 24px;padding:0;margin:0 0 10px;font-size:14px;
color:var(--soft);max-width:none}
.keys li{display:flex;align-items:center;gap:8px}
.keys svg{width:26px;flex:none}
"""

_NARROW = """
@media (max-width:760px){
main,.top{padding-left:16px;padding-right:16px}
.meta{margin-left:0;width:100%}
section{margin-top:38px}
.figures{grid-template-columns:1fr 1fr;gap:18px 16px}
.figures .value{font-size:18px}
.facts div{grid-template-columns:1fr}
.tried,.tried tbody,.tried thead{display:block;min-width:0}
.tried tr{display:grid;grid-template-columns:1fr 1fr;gap:2px 16px;padding:10px 0;border-bottom:1px solid var(--rule)}
.tried thead th:not(.plot){display:none}
.tried thead tr{padding-bottom:0}
.tried th,.tried td,.tried .name,.tried .plot,.tried .speed,.tried .gate{width:auto;padding:0;border:0;text-align:left}
.tried .name,.tried .plot,.tried .why{grid-column:1/-1}
.tried .edge{background:var(--wash)}
.tried tbody .plot{height:48px}
}
"""

_PAPER = """
@media print{
@page{margin:15mm}
body{font-size:10pt}
main,.top{max-width:none;padding-left:0;padding-right:0}
h1{font-size:20pt}h2{font-size:13pt}
section{margin-top:22pt;padding-top:10pt}
h2,h3,caption{break-after:avoid}
tr,figure,.figures div,.commands div,.facts div,.phases{break-inside:avoid}
thead{display:table-header-group}
.scroll{overflow:visible}
table,.facts,.phases,figcaption{font-size:9pt}
.line{border:1px solid var(--rule)}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""

STYLE = (
    f":root{{{_variables(0)}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}"
    + _GROUND
    + _FIGURES
    + _TABLES
    + _PICTURES.replace("@parts@", "".join(f".seg.{part}{{fill:var(--{part})}}" for part in PARTS))
    + "".join(f".key.{part}{{background:var(--{part})}}" for part in PARTS)
    + _NARROW
    + _PAPER
)
