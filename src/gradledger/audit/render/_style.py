"""The look of the HTML report, and the few lines of script that filter it.  Colours keep a contrast of 4.5 to 1 at
least on their ground, in light and dark; nothing is told by colour alone."""

from __future__ import annotations

import base64
import hashlib

CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--panel:#fff;--ink:#1b2027;--muted:#56606c;--rule:#d8dde4;--code:#f3f5f8;
--error:#b3261e;--error-bg:#fdecea;--warning:#7a4d00;--warning-bg:#fff3d6;--info:#1a56b0;--info-bg:#e8f0fd;
--ok:#136c3a;--ok-bg:#e5f5ec;--mark:#fff0b8;--link:#1a56b0;--add:#e3f6e8;--del:#fde8e6;
--new:#2f8f5b;--old:#c2541b;--several:#3f6fb5;--empty:#9aa3ad;--k0:#2563b8;--k1:#b3541b;--k2:#2b7a4b;--k3:#8a3fa0;
--k4:#7a6a00;--k5:#a02c4f}
@media (prefers-color-scheme:dark){:root{--bg:#111418;--panel:#191d23;--ink:#e6e9ee;--muted:#a2acb8;--rule:#333a44;
--code:#12161b;--error:#ff9a92;--error-bg:#3c1a18;--warning:#f3c565;--warning-bg:#352811;--info:#94bdff;
--info-bg:#17263f;--ok:#7fd6a0;--ok-bg:#12301f;--mark:#4a3c0c;--link:#94bdff;--add:#12301f;--del:#3c1a18;
--new:#4fb57e;--old:#e8853f;--several:#6f9de0;--empty:#7a838d;--k0:#7fb0f5;--k1:#f0a06a;--k2:#7fd6a0;--k3:#d59be6;
--k4:#e0d060;--k5:#f08fae}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.875em}
code{overflow-wrap:anywhere}
a{color:var(--link);overflow-wrap:anywhere}
:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:3px}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--panel);padding:8px;z-index:2}
.page{max-width:1320px;margin:0 auto;padding:0 16px 48px}
header.top{padding:24px 0 12px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:0 0 10px;padding-top:8px}
h3{font-size:1.02rem;margin:0;overflow-wrap:anywhere}
.panel>.facts:first-child{margin-top:0}.panel>p{margin-top:8px}.panel>p:first-child{margin-top:0}
.panel>h3:not(:first-child){margin-top:16px;margin-bottom:4px}.life{margin:0 0 12px}
h4{font-size:.95rem;margin:14px 0 4px}
p{margin:0 0 8px}ul{margin:0 0 8px;padding-left:1.2em}
.muted{color:var(--muted)}.bad{color:var(--error)}.small{font-size:.875rem}
.verdict{display:flex;gap:12px;align-items:flex-start}
.dot-big{flex:none;width:34px;height:34px;border-radius:50%;display:grid;place-items:center;font-weight:700;
margin-top:2px}
.v-error{background:var(--error-bg);color:var(--error)}.v-warning{background:var(--warning-bg);color:var(--warning)}
.v-info{background:var(--info-bg);color:var(--info)}.v-ok{background:var(--ok-bg);color:var(--ok)}
.facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin:12px 0 0;padding:0;list-style:none;font-size:.9rem;
color:var(--muted)}.facts b{color:var(--ink);font-weight:600}.facts li{overflow-wrap:anywhere;min-width:0}
nav.toc{margin:6px 0 14px;font-size:.9rem}nav.toc ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;
padding:0;margin:0}
nav.toc a{display:inline-block;padding:4px 0}
section{margin:0 0 26px}
.panel{background:var(--panel);border:1px solid var(--rule);border-radius:10px;padding:16px;margin:0 0 14px;min-width:0}
.finding{border-left:5px solid var(--rule)}.finding.error{border-left-color:var(--error)}
.finding.warning{border-left-color:var(--warning)}.finding.info{border-left-color:var(--info)}
.finding>header{display:flex;flex-wrap:wrap;gap:6px 10px;align-items:center;margin-bottom:8px}
.badge{border-radius:999px;padding:1px 10px;font-size:.8rem;font-weight:700;white-space:nowrap}
.badge.error{background:var(--error-bg);color:var(--error)}.badge.warning{background:var(--warning-bg);
color:var(--warning)}
.badge.info{background:var(--info-bg);color:var(--info)}.badge.plain{background:var(--code);color:var(--muted)}
.message{font-size:1.02rem;max-width:78ch}
.cols{display:grid;grid-template-columns:minmax(0,1fr);gap:14px 24px}
@media(min-width:980px){.cols{grid-template-columns:minmax(0,7fr) minmax(0,5fr)}}
.label{font-size:.78rem;font-weight:700;letter-spacing:.04em;text-transform:uppercase;color:var(--muted);
margin:10px 0 4px}
.scroll{overflow-x:auto;border-radius:8px}
pre{margin:0;white-space:pre}
.source{background:var(--code);border:1px solid var(--rule);padding:8px 0}
.source .row{display:block;padding:0 10px;min-width:max-content}
.source .n{display:inline-block;width:5ch;text-align:right;color:var(--muted);margin-right:12px;user-select:none}
.source .hit{background:var(--mark);font-weight:600}
.source .rel{box-shadow:inset 3px 0 var(--muted)}
.fix{background:var(--code);border:1px solid var(--rule);padding:8px 10px}
.fix .add,.fix .del{display:block;margin:0 -10px;padding:0 10px;min-width:max-content}
.fix .add{background:var(--add)}.fix .del{background:var(--del)}
pre.say{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--code);border-radius:8px;padding:8px 10px}
dl.kv{display:grid;grid-template-columns:minmax(7em,max-content) minmax(0,1fr);gap:2px 14px;margin:0}
@media(max-width:640px){dl.kv{grid-template-columns:minmax(0,2fr) minmax(0,3fr)}}
dl.kv dt{color:var(--muted)}dl.kv dd{margin:0;overflow-wrap:anywhere}
figure{margin:0;min-width:0}figcaption{overflow-wrap:anywhere;font-size:.9rem;font-weight:600;margin-bottom:4px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:16px}
.chart svg{width:100%;height:auto;max-width:460px;display:block}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}
svg .t-head{font-weight:600}svg .t-small{font-size:11px;text-anchor:middle;fill:var(--muted)}
svg .t-mark{text-anchor:middle}svg .t-bold{font-weight:700;fill:var(--error)}
svg .t-axis{font-size:11px;fill:var(--muted)}svg .end{text-anchor:end}
svg .t-rule,svg .axis{stroke:var(--rule);stroke-width:1}svg .t-base{stroke:var(--muted);stroke-width:1}
.c-new,.s-fresh{fill:var(--new)}.c-old,.s-old{fill:var(--old)}.s-several{fill:var(--several)}
.s-empty{fill:var(--empty)}.c-none{fill:none;stroke:var(--empty);stroke-dasharray:3 3}
.c-hatch{stroke:var(--panel);stroke-width:1.6;fill:none}.s-hatch{stroke:var(--panel);stroke-width:2;fill:none}
.strip{shape-rendering:crispEdges;display:block;width:100%;height:28px;border-radius:4px;
background:var(--code);outline:1px solid var(--rule)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;padding:0;margin:6px 0 0;font-size:.85rem;
color:var(--muted)}
.legend li{overflow-wrap:anywhere}
.key{display:inline-block;width:14px;height:10px;border-radius:2px;margin-right:6px}
.key.c-new,.key.s-fresh{background:var(--new)}.key.c-old{background:repeating-linear-gradient(135deg,
var(--old) 0 3px,
var(--panel) 3px 5px)}
.key.s-old{background:repeating-linear-gradient(var(--old) 0 3px,var(--panel) 3px 5px)}
.key.s-several{background:var(--several)}.key.s-empty{background:var(--empty)}
.key.c-none{border:1px dashed var(--empty)}
.curve{fill:none;stroke-width:1.8}.band{opacity:.16;stroke:none}
.k0{stroke:var(--k0)}.k1{stroke:var(--k1)}.k2{stroke:var(--k2)}.k3{stroke:var(--k3)}.k4{stroke:var(--k4)}
.k5{stroke:var(--k5)}
.band.k0,.dot.k0{fill:var(--k0)}.band.k1,.dot.k1{fill:var(--k1)}.band.k2,.dot.k2{fill:var(--k2)}.band.k3,
.dot.k3{fill:var(--k3)}
.band.k4,.dot.k4{fill:var(--k4)}.band.k5,.dot.k5{fill:var(--k5)}
.key.k0{background:var(--k0)}.key.k1{background:var(--k1)}.key.k2{background:var(--k2)}.key.k3{background:var(--k3)}
.key.k4{background:var(--k4)}.key.k5{background:var(--k5)}
.spark{width:84px;height:22px;vertical-align:middle;margin-right:8px}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th{text-align:left;font-weight:600;color:var(--muted);border-bottom:1px solid var(--rule);padding:4px 12px 4px 0}
td{border-bottom:1px solid var(--rule);padding:5px 12px 5px 0;vertical-align:top;overflow-wrap:anywhere}
td .spark{display:inline-block}
@media(max-width:640px){table.cards thead{position:absolute;left:-9999px}table.cards tr{display:block;padding:8px 0;
border-bottom:1px solid var(--rule)}table.cards td{display:block;border:0;padding:1px 0}
table.cards td[data-label]:not(:empty)::before{content:attr(data-label) ": ";color:var(--muted)}}
.flow{display:grid;gap:8px;margin:0;padding:0;list-style:none}
.flow li{display:grid;grid-template-columns:minmax(0,1fr);gap:2px 10px;align-items:center}
@media(min-width:640px){.flow li{grid-template-columns:minmax(0,17em) 9em minmax(0,1fr)}}
.flow .who{border:1px solid var(--rule);border-radius:6px;padding:4px 10px;background:var(--code);
overflow-wrap:anywhere}
.flow svg{width:144px;height:20px;display:block}
.flow .go{stroke:var(--new);stroke-width:3;fill:none}.flow .halt{stroke:var(--old);stroke-width:3;
stroke-dasharray:6 4;fill:none}
.flow .cold{stroke:var(--empty);stroke-width:3;stroke-dasharray:2 4;fill:none}
.flow .head{fill:var(--new);stroke:none}.flow .stopx{stroke:var(--old);stroke-width:3;fill:none}
details>summary{cursor:pointer;padding:4px 0}details[open]>summary{margin-bottom:6px}
.tools{display:flex;flex-wrap:wrap;gap:8px;margin:0 0 12px;align-items:center}
.tools button,.tools input{font:inherit;font-size:.9rem;color:var(--ink);background:var(--panel);
border:1px solid var(--muted);
border-radius:6px;padding:5px 12px;min-height:34px}
.tools button[aria-pressed=true]{background:var(--ink);color:var(--panel)}
[hidden]{display:none!important}
footer{color:var(--muted);font-size:.85rem;border-top:1px solid var(--rule);padding-top:12px;overflow-wrap:anywhere}
@media print{body{background:#fff}.tools,nav.toc{display:none}.panel{break-inside:avoid}}
"""

JS = """
(function(){var d=document;
d.querySelectorAll('.tools[hidden]').forEach(function(t){t.hidden=false});
d.querySelectorAll('button[data-severity]').forEach(function(b){b.addEventListener('click',function(){
d.querySelectorAll('button[data-severity]').forEach(function(o){o.setAttribute('aria-pressed',String(o===b))});
d.querySelectorAll('article[data-severity]').forEach(function(a){
a.hidden=b.dataset.severity!=='all'&&a.dataset.severity!==b.dataset.severity})})});
d.querySelectorAll('input[data-filter]').forEach(function(i){i.addEventListener('input',
function(){var w=i.value.toLowerCase();
d.querySelectorAll('#'+i.dataset.filter+' tbody tr').forEach(function(r){
r.hidden=r.textContent.toLowerCase().indexOf(w)<0})})});
})();
"""

JS_HASH = "sha256-" + base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{JS_HASH}'; base-uri 'none'; form-action 'none'"
