"use strict";
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);

  // Foreign texts only ever go through textContent and setAttribute of harmless attributes.
  function el(tag, props, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (name === "text") node.textContent = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  function svg(tag, props, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(props || {})) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const glyph = (status) => svg("svg", { class: "glyph", role: "img", "aria-label": status }, svg("use", { href: `#s-${status}` }));

  // Light and dark.
  const theme = $("theme");
  if (theme) {
    theme.hidden = false;
    let kept = null;
    try { kept = localStorage.getItem("dsv4-theme"); } catch { /* pages from a file may not store */ }
    if (kept) root.dataset.theme = kept;
    theme.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("dsv4-theme", root.dataset.theme); } catch { /* the same */ }
    });
  }
  function copyable(button) {
    button.hidden = false;
    button.addEventListener("click", async (event) => {
      event.stopPropagation();
      const code = button.previousElementSibling;
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "selected"; }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    return button;
  }
  document.querySelectorAll(".copy").forEach(copyable);

  const holder = $("data"), matrix = $("matrix");
  if (!holder || !matrix) return;
  const data = JSON.parse(holder.textContent);
  const texts = data.texts, runs = data.runs;
  const kindOf = (status) => data.kinds[status] || "open";
  const num = (value) => (typeof value === "string" ? Number(value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN) : value);
  function told(value) {
    value = num(value);
    if (value === null || value === undefined) return "";
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
    if (value === 0 || (Math.abs(value) >= 0.01 && Math.abs(value) < 100)) return value.toFixed(2);
    return Math.abs(value) >= 100 && Math.abs(value) < 1e6 ? Math.round(value).toLocaleString("en") : value.toExponential(1);
  }
  const worst = (outcome) => { let top = null; for (let i = 8; i < outcome.length; i++) { const ratio = num(outcome[i][1]); if (top === null || ratio > top[1]) top = [texts[outcome[i][0]], ratio]; } return top; };

  const byRule = new Map();
  for (const row of data.cases) {
    const rule = texts[row[1]];
    if (!byRule.has(rule)) byRule.set(rule, []);
    byRule.get(rule).push(row);
  }
  const rows = new Map();
  for (const tr of matrix.querySelectorAll("tr.rule")) {
    const rule = tr.dataset.rule;
    const cases = byRule.get(rule) || [];
    let bad = 0, error = -1, margin = Infinity;
    for (const row of cases) for (const outcome of row[5]) {
      if (["bad", "open"].includes(kindOf(texts[outcome[1]]))) bad++;
      const top = worst(outcome); if (top && top[1] > error) error = top[1];
    }
    for (const list of data.margins[rule] || []) if (list && list.length) margin = Math.min(margin, list[0][1]);
    rows.set(rule, { rule, tr, body: tr.parentNode, cases, bad, error, margin, title: tr.querySelector(".c-title").textContent.toLowerCase(), area: tr.parentNode.dataset.area, button: tr.querySelector(".open"), detail: null });
  }
  const order = [...rows.values()];

  // What is asked for.
  const q = $("q"), surface = $("surface"), runSelect = $("run"), orderSelect = $("order"), apart = $("apart"), shown = $("shown"), reset = $("reset");
  const chips = [...document.querySelectorAll(".chip[data-status]")];
  for (const name of [...new Set(data.cases.map((row) => texts[row[2]]))].sort()) surface.append(el("option", { value: name, text: name }));
  $("tools").hidden = false;

  let hay = null;
  function haystack(row) {
    if (!hay) hay = new Map();
    let text = hay.get(row);
    if (text === undefined) {
      text = [row[0], texts[row[2]], texts[row[3]], texts[row[4]], ...row[5].map((o) => `${texts[o[2]]} ${texts[o[7]]}`)].join(" ").toLowerCase();
      hay.set(row, text);
    }
    return text;
  }
  const asked = () => ({
    words: q.value.toLowerCase().split(/\s+/).filter(Boolean),
    statuses: new Set(chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.status)),
    surface: surface.value,
    run: runSelect && runSelect.value !== "" ? Number(runSelect.value) : null,
    apart: Boolean(apart && apart.getAttribute("aria-pressed") === "true"),
  });
  const outcomes = (row, want) => row[5].filter((o) => (want.run === null || o[0] === want.run) && (!want.statuses.size || want.statuses.has(texts[o[1]])));
  function disagrees(row) {
    return row[5].length !== runs.length || row[5].some((o) => texts[o[1]] !== texts[row[5][0][1]]);
  }
  function fits(row, want, found) {
    if (want.surface && texts[row[2]] !== want.surface) return false;
    if (want.apart && !(row[5].length > 1 && disagrees(row))) return false;
    if ((want.statuses.size || want.run !== null) && !outcomes(row, want).length) return false;
    return found || want.words.every((word) => haystack(row).includes(word));
  }
  let matching = new Map();
  function filter() {
    const want = asked();
    const narrow = want.words.length || want.statuses.size || want.surface || want.run !== null || want.apart;
    let rules = 0, cases = 0;
    matching = new Map();
    for (const entry of order) {
      const named = want.words.every((word) => entry.rule.toLowerCase().includes(word) || entry.title.includes(word) || entry.area.includes(word));
      const mine = narrow ? entry.cases.filter((row) => fits(row, want, named)) : entry.cases;
      const show = !narrow || mine.length > 0 || (named && want.words.length > 0 && !want.statuses.size && !want.surface && want.run === null && !want.apart);
      entry.tr.classList.toggle("hide", !show);
      if (entry.detail) entry.detail.classList.toggle("hide", !show);
      if (show) { rules++; cases += mine.length; }
      matching.set(entry.rule, mine);
      if (entry.detail && show) fill(entry);
    }
    for (const body of matrix.tBodies) { const head = body.querySelector(".area"); if (head) head.classList.toggle("hide", orderSelect.value !== "id" || !body.querySelector("tr.rule:not(.hide)")); }
    shown.textContent = narrow ? `${rules.toLocaleString("en")} of ${order.length} requirements, ${cases.toLocaleString("en")} cases` : `${order.length} requirements, ${data.cases.length.toLocaleString("en")} cases`;
    reset.hidden = !narrow;
  }
  function sort() {
    const by = orderSelect.value;
    const keys = { bad: (e) => -e.bad, error: (e) => -e.error, margin: (e) => e.margin };
    const sorted = by === "id" ? order : [...order].sort((a, b) => keys[by](a) - keys[by](b));
    const first = matrix.tBodies[0];
    for (const entry of sorted) {
      const body = by === "id" ? entry.body : first;
      body.append(entry.tr);
      if (entry.detail) body.append(entry.detail);
    }
    filter();
  }
  let waiting = 0;
  q.addEventListener("input", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(filter); });
  for (const chip of [...chips, apart].filter(Boolean)) chip.addEventListener("click", () => { chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") !== "true"); filter(); });
  for (const select of [surface, runSelect].filter(Boolean)) select.addEventListener("change", filter);
  orderSelect.addEventListener("change", sort);
  reset.addEventListener("click", () => { q.value = ""; surface.value = ""; if (runSelect) runSelect.value = ""; [...chips, apart].filter(Boolean).forEach((chip) => chip.setAttribute("aria-pressed", "false")); filter(); q.focus(); });

  // One requirement, opened.
  const PAGE = 60;
  function open(entry, yes = !entry.detail) {
    if (!yes && entry.detail) { entry.detail.remove(); entry.detail = null; }
    if (yes && !entry.detail) {
      entry.detail = el("tr", { class: "detail" }, el("td", { colspan: 4 + runs.length }));
      entry.tr.after(entry.detail);
      entry.limit = PAGE; entry.picked = entry.picked || new Set();
      fill(entry);
    }
    entry.button.setAttribute("aria-expanded", String(Boolean(entry.detail)));
  }
  function fill(entry) {
    const cell = entry.detail.firstChild;
    const cases = [...(matching.get(entry.rule) || entry.cases)].sort((a, b) => rank(b) - rank(a));
    const want = asked();
    const head = el("div", { class: "detail-head" },
      el("span", { text: `${cases.length.toLocaleString("en")} case${cases.length === 1 ? "" : "s"}${cases.length < entry.cases.length ? ` of ${entry.cases.length.toLocaleString("en")}` : ""}, what is wrong first, then the largest errors` }),
      el("code", { text: `dsv4-conformance explain ${entry.rule}` }));
    for (const run of runs) if (run.leftOut) head.append(el("span", { class: "soft", text: `${run.mark}: the journal has ${run.leftOut.toLocaleString("en")} more passing cases than this page` }));
    const main = el("div", {}, scatter(entry, cases, want), table(entry, cases, want));
    const aside = mistakes(entry);
    cell.replaceChildren(head, el("div", { class: aside ? "detail-body" : "detail-body alone" }, main, aside));
  }
  function rank(row) {
    let top = -1;
    for (const outcome of row[5]) {
      const found = worst(outcome), kind = kindOf(texts[outcome[1]]);
      const base = kind === "bad" ? 1e9 : kind === "open" ? 1e8 : kind === "warn" || kind === "waived" ? 1e7 : 0;
      top = Math.max(top, base + Math.min(found ? found[1] : 0, 1e6));
    }
    return top;
  }
  function table(entry, cases, want) {
    const body = el("tbody");
    for (const row of cases.slice(0, entry.limit)) {
      const picked = entry.picked.has(row[0] + "\n" + row[2]);
      const cells = runs.map((run, number) => {
        const outcome = row[5].find((o) => o[0] === number);
        if (!outcome) return el("td", { class: "soft", text: "·" });
        const top = worst(outcome), status = texts[outcome[1]];
        return el("td", { class: "series", title: status }, glyph(status), top ? `${told(top[1])} ${top[0]}` : kindOf(status) === "good" ? "" : status);
      });
      const tr = el("tr", { class: picked ? "pick picked" : "pick" },
        el("td", {}, el("button", { type: "button", class: "caseid", "aria-expanded": String(picked), text: row[0] })),
        ...cells, el("td", { class: "label", text: `${texts[row[2]]} ${texts[row[4]]}` }));
      tr.addEventListener("click", (event) => { event.stopPropagation(); if (getSelection().isCollapsed) pick(entry, row, tr); });
      body.append(tr);
      if (picked) body.append(outcomeRow(entry, row, want));
    }
    const found = el("table", { class: "cases" }, el("thead", {}, el("tr", {}, el("th", { text: "case" }), ...runs.map((run) => el("th", {}, el("span", { class: "mark", text: run.mark }), " worst, budgets")), el("th", { class: "label", text: "what" }))), body);
    const more = cases.length - entry.limit;
    return el("div", {}, found, more > 0 ? el("p", {}, el("button", { type: "button", class: "quiet", text: `show ${Math.min(more, 500).toLocaleString("en")} more of ${more.toLocaleString("en")}`, onclick: () => { entry.limit += 500; fill(entry); } })) : null);
  }
  function pick(entry, row, tr) {
    const key = row[0] + "\n" + row[2];
    if (entry.picked.delete(key)) tr.nextSibling.remove();
    else { entry.picked.add(key); tr.after(outcomeRow(entry, row, asked())); history.replaceState(null, "", `#r/${encodeURIComponent(entry.rule)}/${encodeURIComponent(row[0])}`); }
    tr.classList.toggle("picked", entry.picked.has(key));
    tr.querySelector(".caseid").setAttribute("aria-expanded", String(entry.picked.has(key)));
  }
  function outcomeRow(entry, row) {
    const cell = el("td", { colspan: runs.length + 2 });
    cell.append(el("div", { class: "soft" }, texts[row[3]], el("br"), texts[row[4]]));
    for (const o of row[5]) {
      const status = texts[o[1]];
      cell.append(el("h4", {}, glyph(status), `${runs[o[0]].mark} ${runs[o[0]].label}: ${status}`));
      if (texts[o[2]]) cell.append(el("p", { class: "reason", text: texts[o[2]] }));
      if (o.length > 8) {
        const outs = el("table", { class: "outs" }, el("tr", {}, ...["output", "budgets", "error", "budget"].map((text, i) => el("th", { class: i ? "num soft" : "soft", text }))));
        for (const out of o.slice(8)) outs.append(el("tr", {}, el("td", { text: texts[out[0]] }), ...out.slice(1).map((value) => el("td", { class: "num", text: value === null ? "" : typeof value === "number" ? value.toPrecision(3) : value }))));
        cell.append(outs);
      }
      const facts = el("dl", {});
      if (o[3] !== null) facts.append(el("dt", { text: "least rejected mistake" }), el("dd", { text: `${texts[o[4]]}, by ${told(o[3])} budgets` }));
      if (o[7]) facts.append(el("dt", { text: "waiver" }), el("dd", { text: texts[o[7]] }));
      facts.append(el("dt", { text: "time" }), el("dd", { text: `${o[5].toLocaleString("en")} ms` }));
      cell.append(facts);
      const command = texts[o[6]].replaceAll("\0", row[0]);
      if (command) cell.append(el("div", { class: "cmd" }, el("code", { text: command }), copyable(el("button", { type: "button", class: "copy", text: "copy" }))));
    }
    return el("tr", { class: "outcome" }, cell);
  }
  // Errors of single cases, a lane per run.
  function scatter(entry, cases, want) {
    const width = 640, lane = 26, left = 24, low = -4, high = 3;
    const x = (value) => left + (width - left - 12) * (value > 0 ? Math.min(Math.max((Math.log10(Math.min(value, 1e300)) - low) / (high - low), 0), 1) : 0);
    const points = [];
    for (const row of cases) for (const o of row[5]) { const top = worst(o); if (top) points.push([row, o, top]); }
    if (!points.length) return null;
    const height = lane * runs.length + 18;
    const made = svg("svg", { class: "scatter", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "largest error of each case, in budgets" });
    for (let power = low; power <= high; power++) {
      const text = svg("text", { x: x(10 ** power), y: height - 3, "text-anchor": "middle" });
      text.textContent = power === 0 ? "limit 1" : power === 1 ? "10" : power === 2 ? "100" : `10${String(power).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)])}`;
      made.append(svg("path", { class: power === 0 ? "limit" : "axisline", d: `M${x(10 ** power)} 0V${height - 14}` }), text);
    }
    runs.forEach((run, number) => { const text = svg("text", { x: 2, y: lane * number + lane / 2 + 4 }); text.textContent = run.mark; made.append(text); });
    points.slice(0, 3000).forEach(([row, o, top], place) => {
      const y = lane * o[0] + 5 + ((place * 7) % 17), cx = x(top[1]);
      const bad = top[1] > 1 || kindOf(texts[o[1]]) === "bad";
      const dot = bad ? svg("path", { class: "p-bad", d: `M${cx - 3} ${y - 3}l6 6m0-6l-6 6` }) : svg("circle", { cx, cy: y, r: 2.2 });
      const title = svg("title"); title.textContent = `${row[0]}: ${told(top[1])} budgets, ${top[0]}`; dot.append(title);
      made.append(dot);
    });
    return made;
  }
  function mistakes(entry) {
    const lists = data.margins[entry.rule] || [];
    if (!lists.some((list) => list && list.length)) return null;
    const aside = el("div", { class: "aside" }, el("h4", { text: "Known mistakes, by how many budgets these cases reject them" }));
    lists.forEach((list, number) => {
      if (!list || !list.length) return;
      if (runs.length > 1) aside.append(el("p", {}, el("span", { class: "mark", text: runs[number].mark })));
      const items = el("ul", { class: "mutants" });
      for (const [name, value] of list.slice(0, 24)) {
        const wide = Math.max(1, Math.min(80, 80 * Math.log10(Math.max(value, 1)) / 6));
        const bar = svg("svg", { class: "mut", viewBox: "0 0 80 7" }, svg("rect", { class: value < 3 ? "over" : "", x: 0, y: 1, width: wide, height: 5 }), svg("path", { d: `M${80 * Math.log10(3) / 6} 0V7` }));
        items.append(el("li", {}, el("span", { text: name.replaceAll("_", " ") }), el("span", { class: "num", text: told(value) }), bar));
      }
      aside.append(items);
    });
    return aside;
  }

  addEventListener("beforeprint", () => document.querySelectorAll("details.prints").forEach((node) => { node.open = true; }));

  // Mouse, keys, addresses.
  for (const entry of order) {
    entry.tr.addEventListener("click", () => { if (getSelection().isCollapsed) { at(entry, false); open(entry); } });
  }
  let current = null;
  function at(entry, focus = true) {
    if (current) current.tr.classList.remove("at");
    current = entry;
    entry.tr.classList.add("at");
    if (focus) { entry.button.focus({ preventScroll: true }); entry.tr.scrollIntoView({ block: "nearest", behavior: "instant" }); const gap = $("tools").getBoundingClientRect().bottom - entry.tr.getBoundingClientRect().top; if (gap > 0) scrollBy({ top: -gap - 4, behavior: "instant" }); }
  }
  function step(by) {
    const visible = [...matrix.querySelectorAll("tr.rule:not(.hide)")].map((tr) => rows.get(tr.dataset.rule));
    if (!visible.length) return;
    const place = visible.indexOf(current);
    at(visible[Math.min(Math.max(place < 0 ? 0 : place + by, 0), visible.length - 1)]);
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing) { event.preventDefault(); q.focus(); q.select(); }
    else if (event.key === "Escape" && event.target === q) { q.blur(); if (current) at(current); }
    else if (event.key === "Escape" && current && current.detail) { open(current, false); at(current); }
    else if (!typing && event.key === "j") step(1);
    else if (!typing && event.key === "k") step(-1);
    else if (event.key === "Enter" && event.target === q) { event.preventDefault(); q.blur(); current = null; step(0); }
  });
  function go() {
    const match = /^#r\/([^/]*)(?:\/(.*))?$/.exec(location.hash);
    if (!match) return;
    let rule, id;
    try { rule = decodeURIComponent(match[1]); id = match[2] && decodeURIComponent(match[2]); } catch { return; }
    const entry = rows.get(rule);
    if (!entry) return;
    if (id) { entry.picked = entry.picked || new Set(); const row = entry.cases.find((found) => found[0] === id); if (row) entry.picked.add(row[0] + "\n" + row[2]); }
    if (entry.tr.classList.contains("hide")) reset.click();
    open(entry, true);
    at(entry);
    entry.tr.scrollIntoView({ block: "center", behavior: "instant" });
  }
  addEventListener("hashchange", go);
  filter();
  go();
})();
