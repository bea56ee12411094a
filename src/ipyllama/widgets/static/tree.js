// The tree of a conversation: arrow keys move, Enter goes to a turn, the buttons below do the rest.

const UNIT = 18; // pixels between the lines of two branches
const PLACES = ["live", "RAM", "disk"];
const SVG = "http://www.w3.org/2000/svg";

function unpack([id, number, name, message, answer, depth, marks]) {
  return { id, number, name, message, answer, depth, first: !!(marks & 1), head: !!(marks & 2), stale: !!(marks & 4) };
}

// For each row, which turn it continues, and whether a line goes `up` and `down` from its dot.
function layOut(rows) {
  const last = []; // by depth, the latest row
  rows.forEach((row, at) => {
    last.length = row.depth + 1;
    row.parent = last[row.first ? row.depth - 1 : row.depth];
    last[row.depth] = row;
    row.up = !row.first && at > 0;
  });
  const goesOn = [];
  for (let at = rows.length - 1; at >= 0; at--) {
    const row = rows[at];
    row.down = goesOn[row.depth] ?? false;
    goesOn.length = row.depth + 1;
    goesOn[row.depth] = !row.first;
    row.begins = at === 0;
    row.key = JSON.stringify(row, (name, value) => (name === "parent" ? undefined : value));
  }
  return rows;
}

function drawLines(row) {
  const x = (column) => column * UNIT + 9;
  const middle = ROW / 2;
  const path = [];
  for (let column = 0; column < row.depth; column++) {
    const joint = row.first && column === row.depth - 1;
    const start = joint && row.begins ? middle + 7 : 0;
    path.push(`M${x(column)} ${start}V${ROW}`);
  }
  if (row.first && row.depth) {
    const from = x(row.depth - 1);
    path.push(row.begins ? `M${from} ${middle + 7}Q${from} ${middle} ${from + 7} ${middle}H${x(row.depth)}` : `M${from} ${middle - 7}Q${from} ${middle} ${from + 7} ${middle}H${x(row.depth)}`);
  }
  if (row.up) path.push(`M${x(row.depth)} 0V${middle}`);
  if (row.down) path.push(`M${x(row.depth)} ${middle}V${ROW}`);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "ipl-lines");
  svg.setAttribute("width", (row.depth + 1) * UNIT);
  svg.setAttribute("height", ROW);
  svg.setAttribute("aria-hidden", "true");
  const lines = document.createElementNS(SVG, "path");
  lines.setAttribute("d", path.join(""));
  const dot = document.createElementNS(SVG, "circle");
  dot.setAttribute("cx", x(row.depth));
  dot.setAttribute("cy", middle);
  dot.setAttribute("r", row.head ? 5 : 4);
  if (row.head) dot.setAttribute("class", "ipl-head");
  svg.append(lines, dot);
  return svg;
}

function describe(row, where) {
  const parts = [`turn ${row.number}`, row.name, row.message, row.head && "head", row.stale && "stale", where?.[0]];
  return parts.filter(Boolean).join(", ");
}

function drawWhere(el, where) {
  el.replaceChildren(
    ...PLACES.map((place) => {
      const share = where?.[1][place] ?? 0;
      const kind = share >= 1 ? "all" : share > 0 ? "part" : "none";
      return h("span", { className: `ipl-place ipl-${place.toLowerCase()} ipl-${kind}` }, place);
    }),
  );
  el.title = where ? where[0] : "";
}

function drawRow(row) {
  const el = h(
    "div",
    { className: "ipl-row", role: "treeitem", "aria-level": row.depth + 1, ...KEYS },
    drawLines(row),
    h("span", { className: "ipl-number" }, String(row.number)),
  );
  if (row.name) el.append(h("strong", { className: "ipl-name", title: row.name }, row.name));
  el.append(
    h("span", { className: "ipl-message" }, row.message),
    h("span", { className: "ipl-answer" }, row.answer),
    h("span", { className: "ipl-marks" }, ...["head", "stale"].filter((mark) => row[mark]).map((mark) => h("span", { className: `ipl-mark ipl-is-${mark}` }, mark))),
    h("span", { className: "ipl-where", "aria-hidden": "true" }),
  );
  el.classList.toggle("ipl-stale", row.stale);
  el.dataset.turn = row.id;
  if (row.head) el.setAttribute("aria-current", "true");
  return el;
}

// What outlives a drawing: the static form below the view is replaced now and then, and the view drawn anew.
const kept = new Map(); // by slot

function render({ model, el, signal }) {
  const memo = kept.get(model.get("slot")) ?? { selected: "", head: "", scroll: 0, where: new Map(), detail: null, fork: "" };
  kept.set(model.get("slot"), memo);
  let rows = [];
  let at = new Map(); // id -> place in rows

  const button = (label, title, onclick) => h("button", { className: "ipl-button", type: "button", title, onclick, ...KEYS }, label);
  const title = h("span", { className: "ipl-title" });
  const beginning = button("Go to the beginning", "The next cell begins anew", () => say(model, { kind: "goto", turn: null }));
  const undo = button("Undo", "Take back the last change: an answer, go to, rename or remove", () => say(model, { kind: "undo" }));
  const tree = h("div", { className: "ipl-rows", role: "tree", "aria-label": "Turns of the conversation" });
  const nothing = h("div", { className: "ipl-nothing" }, "Nothing was said yet.");
  const said = h("span", { className: "ipl-said", role: "status" });
  const message = h("div", { className: "ipl-full" });
  const answer = h("div", { className: "ipl-full ipl-reply" });
  const code = h("code", { className: "ipl-code" });
  const copy = button("Copy", "Copy the first line of the cell", async () => {
    await copyText(memo.detail?.fork ?? "");
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const fork = h("div", { className: "ipl-fork" }, "A new cell that begins with this line goes on from there:", code, copy);
  const which = h("span", { className: "ipl-which" });
  const goTo = button("Go to", "The next cell continues from this turn (Enter)", () => act("goto"));
  const forkButton = button("Fork", "How a cell continues from this turn, beside the others", () => {
    memo.fork = memo.fork === memo.selected ? "" : memo.selected;
    drawDetail();
  });
  const renameButton = button("Rename", "Another name (F2)", () => rename());
  const removeButton = button("Remove", "Forget this turn and all that continue it (Delete)", () => act("remove"));
  const actions = h("div", { className: "ipl-actions", role: "group", "aria-label": "What to do with the turn" }, which, goTo, forkButton, renameButton, removeButton);
  const detail = h("div", { className: "ipl-detail", role: "region", "aria-label": "The turn that is looked at" }, actions, fork, message, answer);
  el.classList.add("ipl-board", "ipl-tree", ...NO_MATH);
  el.append(h("div", { className: "ipl-bar" }, title, said, beginning, undo), tree, nothing, detail);

  const act = (kind) => memo.selected && say(model, { kind, turn: memo.selected });

  const list = rowsIn(tree, {
    name: (row) => row.id,
    key: (row) => row.key,
    draw: drawRow,
    dress(item, row, place, active) {
      const where = memo.where.get(row.id);
      item.setAttribute("aria-selected", String(active));
      item.setAttribute("aria-label", describe(row, where));
      item.setAttribute("aria-setsize", rows.length);
      item.setAttribute("aria-posinset", place + 1);
      if (where && item.where !== where) drawWhere(item.querySelector(".ipl-where"), (item.where = where));
    },
    scrolled() {
      memo.scroll = tree.scrollTop;
      askSoon(120);
    },
  });

  function drawRows() {
    rows = layOut(model.get("rows").map(unpack));
    at = new Map(rows.map((row, place) => [row.id, place]));
    title.textContent = model.get("title");
    nothing.hidden = rows.length > 0;
    tree.hidden = detail.hidden = !rows.length;
    const head = (rows.find((row) => row.head) ?? rows.at(-1))?.id ?? "";
    const follow = !at.has(memo.selected) || memo.selected === memo.head; // who looked at the head goes along
    memo.head = head;
    list.set(rows, at.get(follow ? head : memo.selected) ?? -1);
    select(follow ? head : memo.selected, { scroll: follow });
    askSoon();
  }

  function select(id, { focus = false, scroll = true } = {}) {
    if (memo.selected !== id) memo.fork = "";
    memo.selected = id;
    if (at.has(id) && scroll) list.activate(at.get(id));
    if (focus) list.focus();
    if (memo.detail?.turn !== id) memo.detail = null;
    drawDetail();
    if (id) askDetail();
  }

  let asking = 0;
  function askDetail() {
    clearTimeout(asking);
    asking = setTimeout(() => say(model, { kind: "detail", turn: memo.selected }), 80);
  }

  function drawDetail() {
    const row = rows[at.get(memo.selected)];
    if (!row) return;
    const whole = memo.detail?.turn === row.id ? memo.detail : { message: row.message, answer: row.answer };
    which.textContent = row.name ? `Turn ${row.number} · ${row.name}` : `Turn ${row.number}`;
    message.textContent = whole.message;
    answer.textContent = whole.answer;
    fork.hidden = memo.fork !== row.id;
    forkButton.setAttribute("aria-expanded", String(memo.fork === row.id));
    code.textContent = (whole.fork ?? "").trim();
    goTo.disabled = row.head;
  }

  // the name becomes a field in its place
  function rename() {
    const row = rows[at.get(memo.selected)];
    if (!row) return;
    list.activate(at.get(row.id));
    const item = list.element(row);
    if (item.querySelector("input")) return;
    const field = h("input", { className: "ipl-field", type: "text", value: row.name, "aria-label": `Name of turn ${row.number}`, placeholder: "name", ...KEYS });
    const name = item.querySelector(".ipl-name");
    let open = true; // a field that is removed loses the focus, too
    const end = (save, { focus }) => {
      if (!open) return;
      open = false;
      if (save && field.value.trim() !== row.name) say(model, { kind: "rename", turn: row.id, name: field.value });
      field.remove();
      if (name) name.hidden = false;
      list.paint();
      if (focus) list.focus();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.isComposing) return;
      if (event.key === "Enter") end(true, { focus: true });
      if (event.key === "Escape") end(false, { focus: true });
    });
    field.addEventListener("blur", () => end(true, { focus: false })); // the reader is elsewhere by now
    if (name) name.hidden = true;
    item.querySelector(".ipl-number").after(field);
    field.focus();
    field.select();
  }

  tree.addEventListener("click", (event) => {
    const id = event.target.closest(".ipl-row")?.dataset.turn;
    if (id && event.target.tagName !== "INPUT") select(id, { focus: true });
  });
  tree.addEventListener("dblclick", (event) => event.target.tagName !== "INPUT" && act("goto"));
  tree.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const place = at.get(memo.selected) ?? 0;
    const page = list.page();
    const to = {
      ArrowUp: place - 1,
      ArrowDown: place + 1,
      PageUp: Math.max(0, place - page),
      PageDown: Math.min(rows.length - 1, place + page),
      Home: 0,
      End: rows.length - 1,
      ArrowLeft: at.get(rows[place]?.parent?.id),
      ArrowRight: rows.findIndex((row) => row.parent === rows[place]),
    }[event.key];
    const does = { Enter: () => act("goto"), F2: rename, Delete: () => act("remove") }[event.key];
    if (to === undefined && !does && !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    event.stopPropagation();
    does?.();
    if (rows[to]) select(rows[to].id, { focus: true });
  });

  // where prefixes are is looked for only of what is in sight
  const timers = new Set();
  function askSoon(...after) {
    for (const delay of after.length ? after : [200, 2000]) {
      const timer = setTimeout(() => {
        timers.delete(timer);
        const turns = list.visible().map((row) => row.id);
        if (turns.length) say(model, { kind: "where", turns });
      }, delay);
      if (timers.size > 2) {
        const oldest = timers.values().next().value;
        clearTimeout(oldest);
        timers.delete(oldest);
      }
      timers.add(timer);
    }
  }
  el.addEventListener("pointerenter", () => askSoon(50), { signal });

  model.on("msg:custom", (content) => {
    if (content.kind === "where") {
      for (const [id, where] of Object.entries(content.places)) memo.where.set(id, where);
      list.paint();
    } else if (content.kind === "detail" && content.turn === memo.selected) {
      memo.detail = content;
      drawDetail();
    }
  });
  model.on("change:rows", drawRows);
  model.on("change:title", drawRows);
  const drawSaid = () => {
    const problem = model.get("problem");
    said.textContent = problem || model.get("said");
    said.classList.toggle("ipl-problem", !!problem);
  };
  model.on("change:said", drawSaid);
  model.on("change:problem", drawSaid);
  const scroll = memo.scroll;
  drawRows();
  drawSaid();
  if (scroll) tree.scrollTop = scroll; // before the drawing that came before this one
  followReader(model, el, signal);
  return () => {
    clearTimeout(asking);
    timers.forEach(clearTimeout);
    list.close();
  };
}

export default live(render);
