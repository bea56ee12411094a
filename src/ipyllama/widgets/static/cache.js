// The prefix memory: a table to sort and filter, and below it what can be done with the row that is looked at.

const COLUMNS = [
  { label: "prefix", by: (row) => row.name },
  { label: "ends with", by: (row) => row.text, text: true },
  { label: "model", by: (row) => row.model },
  { label: "tokens", by: (row) => row.numbers[0], number: 0 },
  { label: "size", by: (row) => row.numbers[1], number: 1, title: "bytes that no other prefix needs" },
  { label: "spares", by: (row) => row.numbers[2], number: 2, title: "computing that it spares each time" },
  { label: "hits", by: (row) => row.numbers[3], number: 3, title: "how often it was restored in this session" },
  { label: "last used", by: (row) => row.numbers[4], number: 4 },
  { label: "in", by: (row) => row.places },
  { label: "pinned", by: (row) => row.pinned },
];

function unpack([name, model, numbers, written, shared, places, pinned, text, problem]) {
  return { name, model, numbers, written, shared, places, pinned, text, problem };
}

function cellsOf(row) {
  const [tokens, size, spares, hits, used] = row.written;
  return [row.name, row.problem ? "cannot be used" : row.text, row.model, tokens, size, spares, hits, used, row.places, row.pinned];
}

const kept = new Map(); // by slot: what outlives a drawing

function render({ model, el, signal }) {
  const memo = kept.get(model.get("slot")) ?? { selected: "", sort: 7, down: true, filter: "", scroll: 0 };
  kept.set(model.get("slot"), memo);
  let rows = [];
  let at = new Map(); // name -> place

  const button = (label, title, onclick) => h("button", { className: "ipl-button", type: "button", title, onclick, ...KEYS }, label);
  const send = (kind, more) => say(model, { kind, ...more });
  const title = h("span", { className: "ipl-title" });
  const line = h("div", { className: "ipl-line" });
  const used = h("div", { className: "ipl-used" });
  const pinned = h("div", { className: "ipl-held" });
  const meter = h("div", { className: "ipl-meter", "aria-hidden": "true" }, used, pinned);
  const limit = h("input", { className: "ipl-field ipl-limit", type: "text", "aria-label": "Limit", size: 8, ...KEYS });
  const setLimit = () => send("limit", { limit: limit.value, sure: false });
  const filter = h("input", { className: "ipl-field ipl-filter", type: "search", placeholder: "Filter", "aria-label": "Filter prefixes", value: memo.filter, ...KEYS });
  const again = button("Read again", "Look at the store anew", () => send("read"));
  const verify = button("Verify", "Read everything on disk; what is damaged is set aside", () => send("verify"));
  const said = h("span", { className: "ipl-said", role: "status" });
  const undo = button("Undo", "Do not delete it", () => send("undo"));
  const asked = h("span", {});
  const yes = button("Delete it", "Set the limit, and delete what has no room", () => send("limit", { limit: model.get("question").limit, sure: true }));
  const no = button("Keep it", "Leave the limit as it is", () => send("keep"));
  const question = h("div", { className: "ipl-bar ipl-question", role: "alertdialog", "aria-label": "Delete what has no room?" }, asked, yes, no);
  const doing = h("span", { className: "ipl-doing" });
  const fill = h("div", { className: "ipl-fill" });
  const bar = h("div", { className: "ipl-progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  const stop = button("Stop", "End the check", () => send("stop"));
  const progress = h("div", { className: "ipl-bar" }, doing, bar, stop);
  const heads = COLUMNS.map((column, number) => {
    const sort = button(column.label, `Sort by ${column.label}${column.title ? `: ${column.title}` : ""}`, () => sortBy(number));
    sort.className = "ipl-sort";
    return h("div", { className: `ipl-cell ipl-c${number}`, role: "columnheader" }, sort);
  });
  const head = h("div", { className: "ipl-heads", role: "row" }, ...heads);
  const body = h("div", { className: "ipl-rows", role: "rowgroup" });
  const table = h("div", { className: "ipl-table", role: "grid", "aria-label": "Prefixes that are kept" }, head, body);
  const nothing = h("div", { className: "ipl-nothing" });
  const which = h("span", { className: "ipl-which" });
  const pin = button("Pin", "No limit and no age deletes it (P)", () => act("pin"));
  const remove = button("Delete", "Delete it, and what no other prefix needs (Delete)", () => act("delete"));
  const about = h("div", { className: "ipl-about" });
  const detail = h("div", { className: "ipl-detail", role: "region", "aria-label": "The prefix that is looked at" }, h("div", { className: "ipl-actions" }, which, pin, remove), about);
  el.classList.add("ipl-board", "ipl-cache", ...NO_MATH);
  el.append(
    h("div", { className: "ipl-bar" }, title, again, verify),
    h("div", { className: "ipl-bar ipl-store" }, h("div", { className: "ipl-fullness" }, line, meter), h("label", { className: "ipl-limits" }, "limit", limit), button("Set", "Set the limit for this session", setLimit), filter),
    h("div", { className: "ipl-bar ipl-telling" }, said, undo),
    question,
    progress,
    table,
    nothing,
    detail,
  );

  const chosen = () => rows[at.get(memo.selected)];
  function act(kind) {
    const row = chosen();
    if (row) send(kind === "pin" && row.pinned ? "unpin" : kind, { name: row.name });
  }

  const list = rowsIn(body, {
    name: (row) => row.name,
    key: (row) => row.key,
    draw(row) {
      const cells = cellsOf(row).map((text, number) => h("div", { className: `ipl-cell ipl-c${number}`, role: "gridcell", title: number < 3 ? text : "" }, text));
      if (row.problem) cells[1].classList.add("ipl-problem");
      const item = h("div", { className: "ipl-row", role: "row", ...KEYS }, ...cells);
      item.dataset.name = row.name;
      return item;
    },
    dress(item, row, place, active) {
      item.setAttribute("aria-selected", String(active));
      item.setAttribute("aria-rowindex", place + 2);
    },
    scrolled: () => (memo.scroll = body.scrollTop),
  });

  function drawRows() {
    const wanted = memo.filter.trim().toLowerCase();
    const all = model.get("rows").map(unpack);
    const { by } = COLUMNS[memo.sort];
    const order = (a, b) => (typeof by(a) === "number" ? by(a) - by(b) : by(a).localeCompare(by(b))) * (memo.down ? -1 : 1);
    rows = all.filter((row) => !wanted || [...cellsOf(row), row.problem, row.pinned && "pinned"].join("\n").toLowerCase().includes(wanted)).sort(order);
    for (const row of rows) row.key = JSON.stringify(cellsOf(row));
    const before = at.get(memo.selected) ?? 0;
    at = new Map(rows.map((row, place) => [row.name, place]));
    if (!at.has(memo.selected)) memo.selected = rows[Math.min(before, rows.length - 1)]?.name ?? "";
    table.hidden = detail.hidden = !rows.length;
    nothing.hidden = rows.length > 0;
    nothing.textContent = model.get("reading").label ? "" : all.length ? `None of ${all.length.toLocaleString("en")} prefixes fits the filter.` : "Nothing is kept yet.";
    table.setAttribute("aria-rowcount", rows.length + 1);
    heads.forEach((cell, number) => cell.setAttribute("aria-sort", number !== memo.sort ? "none" : memo.down ? "descending" : "ascending"));
    list.set(rows, at.get(memo.selected) ?? -1);
    drawDetail();
  }
  function sortBy(number) {
    memo.down = memo.sort === number ? !memo.down : COLUMNS[number].number !== undefined;
    memo.sort = number;
    drawRows();
  }
  function drawDetail() {
    const row = chosen();
    if (!row) return;
    which.textContent = row.name;
    pin.textContent = row.pinned ? "Unpin" : "Pin";
    remove.disabled = row.pinned === "yes";
    const facts = [`${row.written[0]} tokens of ${row.model}`, `${row.written[1]} of its own`, row.shared && `${row.shared} shared with others`, row.pinned && (row.pinned === "yes" ? "pinned" : `its first ${row.pinned} pinned`)];
    about.textContent = row.problem ? `It cannot be used: ${row.problem}` : facts.filter(Boolean).join(" · ");
    about.classList.toggle("ipl-problem", !!row.problem);
  }
  function drawFacts() {
    const facts = model.get("facts");
    title.textContent = model.get("title");
    line.textContent = facts.line ?? "";
    used.style.width = `${100 * (facts.used ?? 0)}%`;
    pinned.style.width = `${100 * (facts.pinned ?? 0)}%`;
    if (document.activeElement !== limit) limit.value = facts.limit ?? "";
    verify.hidden = !facts.disk;
    el.classList.toggle("ipl-no-texts", facts.texts === false);
    drawSaid();
  }
  function drawSaid() {
    const problem = model.get("problem") || model.get("facts").problem;
    said.textContent = problem || model.get("said");
    said.classList.toggle("ipl-problem", !!problem);
    undo.hidden = !model.get("undoable");
    said.parentElement.hidden = !said.textContent && undo.hidden;
  }
  function drawQuestion() {
    const { line } = model.get("question");
    question.hidden = !line;
    asked.textContent = line ?? "";
    if (line && isReading(el)) no.focus();
  }
  function drawReading() {
    const { label, line, share } = model.get("reading");
    progress.hidden = !label;
    doing.textContent = line ?? "";
    bar.hidden = share === undefined;
    stop.hidden = label !== "checking";
    bar.setAttribute("aria-label", label ?? "");
    bar.setAttribute("aria-valuenow", (100 * (share ?? 0)).toFixed(0));
    fill.style.width = `${100 * (share ?? 0)}%`;
    if (!label) drawRows();
  }

  limit.addEventListener("keydown", (event) => event.key === "Enter" && setLimit());
  filter.addEventListener("input", () => {
    memo.filter = filter.value;
    drawRows();
  });
  body.addEventListener("click", (event) => {
    const name = event.target.closest(".ipl-row")?.dataset.name;
    if (name) select(at.get(name));
  });
  function select(place) {
    memo.selected = rows[place].name;
    list.activate(place);
    list.focus();
    drawDetail();
  }
  body.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const place = at.get(memo.selected) ?? 0;
    const to = {
      ArrowUp: place - 1,
      ArrowDown: place + 1,
      PageUp: Math.max(0, place - list.page()),
      PageDown: Math.min(rows.length - 1, place + list.page()),
      Home: 0,
      End: rows.length - 1,
    }[event.key];
    const does = { p: () => act("pin"), Delete: () => act("delete") }[event.key];
    if (to === undefined && !does) return;
    event.preventDefault();
    event.stopPropagation();
    does?.();
    if (rows[to]) select(to);
  });

  el.addEventListener("pointerenter", () => send("look"), { signal });
  model.on("change:rows", drawRows);
  for (const name of ["title", "facts"]) model.on(`change:${name}`, drawFacts);
  for (const name of ["said", "problem", "undoable"]) model.on(`change:${name}`, drawSaid);
  model.on("change:question", drawQuestion);
  model.on("change:reading", drawReading);
  const scroll = memo.scroll;
  drawFacts();
  drawQuestion();
  drawReading();
  drawRows();
  if (scroll) body.scrollTop = scroll;
  followReader(model, el, signal);
  return list.close;
}

export default live(render);
