// The sampling lab: the stages of the chain side by side, each with its slider, and draws.

const SLIDERS = {
  repeat_penalty: { label: "repetition", min: 1, max: 2, step: 0.05, off: 1 },
  top_k: { label: "top-k", min: 0, max: 100, step: 1, off: 0 },
  top_p: { label: "top-p", min: 0, max: 1, step: 0.01, off: 1 },
  min_p: { label: "min-p", min: 0, max: 0.5, step: 0.01, off: 0 },
  temperature: { label: "temperature", min: 0, max: 2, step: 0.05, off: null },
};
const PAUSE = 60; // milliseconds between two messages while a slider moves

function button(label, title, onclick) {
  return h("button", { className: "ipl-button", type: "button", title, onclick, ...KEYS }, label);
}

// The head of a column: name and value, a slider where there is one, and what the stage does.
function drawHead(option, change) {
  const name = h("span", { className: "ipl-stage" });
  const value = h("output", {});
  const effect = h("div", { className: "ipl-effect" });
  const setting = h("div", { className: "ipl-setting" });
  const head = h("th", { scope: "col" }, name, setting, effect);
  const about = SLIDERS[option];
  let slider = null;
  if (about) {
    slider = h("input", { type: "range", min: about.min, max: about.max, step: about.step, "aria-label": about.label, ...KEYS });
    slider.addEventListener("input", () => {
      show(Number(slider.value));
      change({ [option]: Number(slider.value) });
    });
    setting.append(slider, value);
  }
  function show(now) {
    value.textContent = now === about.off ? "off" : String(now);
    slider.setAttribute("aria-valuetext", value.textContent);
  }
  function update(column, options, asked) {
    name.textContent = about?.label ?? column.name;
    effect.replaceChildren(h("div", {}, column.off ? "nothing gone" : column.left), h("div", {}, column.gone));
    head.classList.toggle("ipl-off", column.off);
    if (!about || asked) return;
    const now = options[option];
    slider.max = Math.max(about.max, now);
    slider.min = Math.min(about.min, now);
    slider.value = now;
    show(now);
  }
  return { head, update };
}

function drawRow(append) {
  const token = h("button", { className: "ipl-button ipl-token", type: "button", ...KEYS });
  const row = h("tr", {}, h("th", { scope: "row" }, token));
  let id = -1;
  token.addEventListener("click", () => append(id));
  function update(data, columns) {
    id = data.id;
    token.textContent = `"${data.text}"`;
    token.title = `${token.textContent}, id ${id}: append it`;
    while (row.children.length <= data.shares.length) {
      row.append(h("td", {}, h("span", { className: "ipl-fill" }), h("span", { className: "ipl-number" })));
    }
    while (row.children.length > data.shares.length + 1) row.lastChild.remove();
    data.shares.forEach((p, number) => {
      const cell = row.children[number + 1];
      const [fill, shown] = cell.children;
      cell.className = p === null ? "ipl-gone" : columns[number].off ? "ipl-off" : "";
      fill.style.setProperty("--share", String(p ?? 0));
      shown.textContent = p === null ? "–" : share(p);
    });
  }
  return { row, update };
}

function render({ model, el, signal }) {
  el.classList.add("ipl-lab", ...NO_MATH);
  const asked = new Map(); // what the kernel has not told back yet: a slider that is moved does not go back to where it was
  let waiting = null;
  let timer = 0;
  function send() {
    timer = 0;
    if (!waiting) return;
    say(model, { kind: "set", options: waiting });
    waiting = null;
    timer = setTimeout(send, PAUSE);
  }
  function change(options) {
    for (const [option, value] of Object.entries(options)) asked.set(option, value);
    waiting = { ...waiting, ...options };
    if (!timer) send();
  }
  signal.addEventListener("abort", () => clearTimeout(timer));

  const before = h("span", {});
  const drawn = h("span", { className: "ipl-drawn", "aria-live": "polite" });
  const context = h("div", { className: "ipl-context", tabIndex: 0, role: "group", "aria-label": "The text so far" }, before, drawn, h("span", { className: "ipl-caret", "aria-hidden": "true" }));
  const draws = [1, 10].map((n) => button(n === 1 ? "Draw" : `Draw ${n}`, n === 1 ? "Draw the next token and append it" : `Draw ${n} tokens and append them`, () => say(model, { kind: "draw", n })));
  draws[0].classList.add("ipl-first");
  // each press is one draw, in turn; a key that is held down is one press
  for (const each of draws) each.addEventListener("keydown", (event) => event.repeat && event.preventDefault());
  const undo = button("Undo", "Take the last token back", () => say(model, { kind: "undo" }));
  const seed = h("input", { type: "number", min: 0, max: 4294967294, step: 1, className: "ipl-seed", ...KEYS });
  seed.addEventListener("change", () => say(model, { kind: "set", options: { seed: Math.max(0, Math.trunc(Number(seed.value))) } }));
  const another = button("Another", "Draw another seed", () => {
    seed.value = Math.floor(Math.random() * 2 ** 31);
    seed.dispatchEvent(new Event("change"));
  });
  const actions = h("div", { className: "ipl-actions" }, ...draws, undo, h("label", {}, "seed ", seed), another);
  const problem = h("div", { className: "ipl-problem", role: "alert", hidden: true });
  const headRow = h("tr", {}, h("th", { scope: "col" }, "token"));
  const body = h("tbody", {});
  const table = h("table", { className: "ipl-stages" }, h("thead", {}, headRow), body);
  const title = h("div", { className: "ipl-summary" });
  el.append(context, actions, problem, title, h("div", { className: "ipl-scroll" }, table));

  let heads = [];
  let shape = "";
  const rows = [];
  function update() {
    const state = model.get("state");
    before.textContent = state.before;
    drawn.replaceChildren(...state.drawn.map((text) => h("span", {}, text)));
    context.scrollTop = context.scrollHeight;
    const wanted = JSON.stringify(state.columns.map((column) => [column.option, column.option ? "" : column.name]));
    if (shape !== wanted) {
      shape = wanted;
      heads = state.columns.map((column) => drawHead(column.option, change));
      headRow.replaceChildren(headRow.firstChild, ...heads.map(({ head }) => head));
    }
    for (const [option, value] of asked) if (state.options[option] === value) asked.delete(option);
    heads.forEach(({ update }, number) => update(state.columns[number], state.options, asked.has(state.columns[number].option)));
    while (rows.length < state.rows.length) {
      rows.push(drawRow((token) => say(model, { kind: "append", token })));
      body.append(rows.at(-1).row);
    }
    while (rows.length > state.rows.length) rows.pop().row.remove();
    rows.forEach(({ update }, number) => update(state.rows[number], state.columns));
    title.textContent = state.summary;
    if (document.activeElement !== seed) seed.value = state.options.seed;
    for (const each of draws) each.disabled = state.ended;
    undo.disabled = state.drawn.length === 0;
  }
  model.on("change:state", update);
  model.on("change:problem", () => model.get("problem") && asked.clear()); // and the sliders go back
  update();
  tellProblem(model, problem);
  followReader(model, el, signal);
}

export default live(render);
