// A conversation: what was said, the answer that is being written, and what can be done about it.

// What a view has that the kernel does not know. It outlives the view, which is drawn anew when its static form changes.
const kept = new Map(); // slot -> { draft, scroll, open, focus, left }: a text, pixels, a boolean, a key, a time
const PATIENCE = 700; // ms after which a kernel that does not answer is busy
const BOTTOM = 30; // px

function button(label, title, key, onclick) {
  const made = h("button", { className: "ipl-button", type: "button", title, onclick, ...KEYS }, label);
  made.dataset.key = key;
  return made;
}

const MESSAGE = ["ipl-message", ...NO_MATH].join(" ");

// The text field of a message: Enter sends, unless it ends the writing of a character of Chinese, say.
function messageField(label, send, cancel) {
  const field = h("textarea", { className: "ipl-field", rows: 1, placeholder: label, "aria-label": label, ...KEYS });
  const grow = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
  };
  field.addEventListener("input", grow);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && cancel) cancel();
    event.stopPropagation(); // the notebook has its own use for keys
  });
  field.fit = grow;
  return field;
}

function drawCost(turn) {
  const [cost, ...notes] = turn.cost.split("\n");
  return h("div", { className: "ipl-cost" }, `${turn.marks} · ${cost}`, ...notes.map((note) => h("div", {}, note)));
}

// A turn, the `n`th that is shown: `act(content)` tells the kernel.
function drawTurn(turn, n, act) {
  const message = h("div", { className: MESSAGE }, turn.message);
  const asked = h("div", { className: "ipl-asked" });
  const edit = button("Edit", "Ask something else here, as another branch", `${n}:edit`, () => {
    const done = () => asked.replaceChildren(edit, message);
    const field = messageField("Ask this instead", send, () => (done(), edit.focus()));
    function send() {
      if (!field.value.trim()) return;
      done();
      act({ kind: "edit", turn: turn.id, text: field.value });
    }
    const ok = button("Ask", "Ask this (Enter)", `${n}:ask`, send);
    const no = button("Cancel", "Leave it as it is (Escape)", `${n}:cancel`, () => (done(), edit.focus()));
    asked.replaceChildren(h("div", { className: "ipl-edit" }, field, h("div", { className: "ipl-buttons" }, no, ok)));
    field.value = turn.message;
    field.fit();
    field.focus();
  });
  asked.append(edit, message);

  const answer = h("div", { className: "ipl-said" });
  answer.innerHTML = turn.html; // from the kernel's renderer, which escapes all that a model writes
  const label = h("span", { "aria-live": "polite" }, "Copy");
  const copy = button(label, "Copy the answer as Markdown", `${n}:copy`, async () => {
    await copyText(turn.answer);
    label.textContent = "Copied";
    setTimeout(() => (label.textContent = "Copy"), 1500);
  });
  const again = button("Again", "Answer again with the next seed, as another branch", `${n}:again`, () =>
    act({ kind: "again", turn: turn.id }),
  );
  const buttons = h("div", { className: "ipl-buttons" });
  if (turn.of > 1) {
    const walk = (sign, where, name) => {
      const step = button(sign, `The ${name} branch`, `${n}:${where}`, () => act({ kind: "goto", turn: turn[where] }));
      Object.assign(step, { disabled: turn[where] === null, ariaLabel: `${name} branch` });
      return step;
    };
    const place = h("span", { className: "ipl-place" }, `${turn.at + 1} / ${turn.of}`);
    buttons.append(h("span", { className: "ipl-walk", role: "group", "aria-label": `branch ${turn.at + 1} of ${turn.of}` },
      walk("‹", "before", "previous"), place, walk("›", "after", "next")));
  }
  buttons.append(again, copy);
  const foot = h("div", { className: "ipl-under" }, drawCost(turn), buttons);
  return h("article", { className: "ipl-turn", "aria-live": "off", "aria-label": turn.marks }, asked, answer, foot);
}

// The answer that is being written.
function drawWriting(writing, el) {
  const blocks = h("div", { "aria-label": "Answer" });
  const tail = h("div", { className: "ipl-tail", "aria-live": "off" });
  const line = h("span", {});
  const fill = h("div", { className: "ipl-fill" });
  const bar = h("div", { className: "ipl-progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", hidden: true }, fill);
  const message = h("div", { className: MESSAGE }, writing.text);
  el.append(h("div", { className: "ipl-asked" }, message), h("div", { className: "ipl-said" }, blocks, tail));
  el.append(h("div", { className: "ipl-under", "aria-live": "off" }, line, bar));
  return {
    take(said) {
      if (said.kind === "begin") {
        blocks.replaceChildren();
        tail.innerHTML = tail.html = "";
        return;
      }
      if (said.kind === "text") {
        if (said.blocks) blocks.insertAdjacentHTML("beforeend", said.blocks);
        tail.html = (tail.html ?? "").slice(0, said.keep) + said.tail;
        tail.innerHTML = tail.html;
      }
      const share = said.share ?? null;
      bar.hidden = share === null;
      if (share !== null) {
        const percent = (share * 100).toFixed(1);
        bar.setAttribute("aria-label", said.label);
        bar.setAttribute("aria-valuenow", percent);
        fill.style.width = `${percent}%`;
      }
      line.textContent = said.line ?? "";
    },
    say(text) {
      line.textContent = text;
    },
  };
}

const FIELDS = {
  temperature: { label: "Temperature", min: 0, max: 2, step: 0.1, title: "0 takes the likeliest token, up to 2 is more varied" },
  top_p: { label: "Top-p", min: 0, max: 1, step: 0.05, title: "sample from the likeliest tokens of this total probability; 1 is off" },
  max_tokens: { label: "Most tokens", min: 1, step: 1, title: "stop after this many tokens" },
  seed: { label: "Seed", title: "the same seed gives the same answer; random another one each time" },
};

function drawSampling(model, tell, keep) {
  const inputs = {};
  let typing = null; // the field whose value is not told yet
  const read = (name, text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text.trim());
  const grid = h("div", { className: "ipl-controls" });
  for (const [name, { label, title, ...limits }] of Object.entries(FIELDS)) {
    const kind = name === "seed" ? { type: "text", inputMode: "numeric" } : { type: "number", ...limits };
    const input = h("input", { className: "ipl-field", title, ...kind, ...KEYS });
    input.dataset.key = `set:${name}`;
    input.addEventListener("keydown", (event) => event.stopPropagation());
    input.addEventListener("input", () => (typing = input));
    input.addEventListener("change", () => {
      typing = null;
      tell({ kind: "set", options: { [name]: read(name, input.value) } });
    });
    input.addEventListener("blur", () => (typing = null));
    inputs[name] = input;
    grid.append(h("label", { className: "ipl-control" }, h("span", {}, label), input));
  }
  const fill = () => {
    for (const [name, input] of Object.entries(inputs)) if (input !== typing) input.value = model.get("sampling")[name];
  };
  const fold = button("", "Temperature, top-p, length, seed", "sampling", () => show(grid.hidden));
  function show(open) {
    keep.open = open;
    grid.hidden = !open;
    fold.textContent = open ? "Sampling ▾" : "Sampling ▸";
    fold.setAttribute("aria-expanded", String(open));
  }
  show(keep.open ?? false);
  fill();
  return { fold, grid, fill, isTyping: () => typing !== null };
}

function drawModels(model, tell) {
  const select = h("select", { className: "ipl-field ipl-model", title: "The model that answers", "aria-label": "Model", ...KEYS });
  select.dataset.key = "model";
  const ask = () => tell({ kind: "models" });
  select.addEventListener("pointerdown", ask);
  select.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key.startsWith("Arrow") || event.key === "Enter" || event.key === " ") ask();
  });
  select.addEventListener("change", () => {
    select.disabled = true; // until it is known which model it is
    tell({ kind: "use", model: select.value });
  });
  function fill() {
    const options = model.get("models").map(({ path, name, size }) => h("option", { value: path }, size ? `${name} (${size})` : name));
    select.replaceChildren(...options);
    select.value = model.get("model");
  }
  fill();
  const settle = () => {
    select.disabled = false;
    fill();
  };
  return { select, fill, settle };
}

// The notebook that holds the panel, where its widgets know of it.
function notebookOf(model) {
  const shared = model.widget_manager?.context?.model?.sharedModel;
  return shared?.insertCells && shared.cells ? shared : null;
}

function insertBelow(notebook, slot, codes) {
  const at = notebook.cells.findIndex((cell) => slot.startsWith(`${cell.id ?? cell.getId?.()}-`));
  const cells = codes.map((source) => ({ cell_type: "code", source, metadata: { trusted: true } }));
  notebook.insertCells(at < 0 ? notebook.cells.length : at + 1, cells);
}

function drawCells(model, slot, close, mayTakeFocus) {
  const code = h("pre", { className: "ipl-code", tabIndex: 0 });
  const done = h("span", { className: "ipl-line", role: "status" });
  let cells = [];
  const copy = button("Copy", "Copy the code", "cells:copy", async () => {
    await copyText(cells.join("\n\n"));
    done.textContent = "Copied";
  });
  const insert = button("Insert below", "Insert these cells below this one", "cells:insert", () => {
    insertBelow(notebookOf(model), slot, cells);
    done.textContent = `${cells.length} ${cells.length === 1 ? "cell" : "cells"} inserted below`;
  });
  const end = button("Close", "Close", "cells:close", () => close());
  const buttons = h("div", { className: "ipl-buttons" }, done, copy);
  if (notebookOf(model)) buttons.append(insert);
  buttons.append(end);
  const el = h("section", { className: "ipl-cells", hidden: true, "aria-label": "The conversation as cells" }, code, buttons);
  return {
    el,
    show(codes) {
      cells = codes;
      code.textContent = codes.length ? codes.join("\n\n") : "(nothing was said yet)";
      insert.disabled = copy.disabled = !codes.length;
      done.textContent = "";
      el.hidden = false;
      if (mayTakeFocus()) (codes.length ? copy : end).focus();
    },
  };
}

// Children in this order; those that stay are not taken out: they would lose the focus.
function arrange(parent, wanted) {
  for (const child of [...parent.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((child, n) => parent.children[n] !== child && parent.insertBefore(child, parent.children[n] ?? null));
}

function render({ model, el, signal }) {
  const slot = model.get("slot");
  const keep = kept.get(slot) ?? {};
  kept.set(slot, keep);
  el.classList.add("ipl-panel");

  // -- parts
  const status = h("div", { className: "ipl-status", role: "status" });
  const problem = h("div", { className: "ipl-problem", role: "alert", hidden: true });
  const log = h("div", { className: "ipl-log", role: "log", tabIndex: 0, "aria-label": "Conversation", ...KEYS });
  const empty = h("div", { className: "ipl-empty" }, "Nothing was said yet. Ask something below, or in a cell: both continue the same conversation.");
  const field = messageField("Message", ask);
  field.dataset.key = "message";
  const send = button("Send", "Ask (Enter); Shift+Enter begins a new line", "send", ask);
  send.classList.add("ipl-main");
  const stop = stopButton(
    "Stop this answer",
    () => {
      setTimeout(() => field.focus()); // it would be lost with the button
      tell({ kind: "stop" });
    },
    KEYS,
  );
  stop.dataset.key = "stop";
  const sampling = drawSampling(model, tell, keep);
  const models = drawModels(model, tell);
  const asCells = button("As cells", "The code of cells that ask the same", "cells", () => tell({ kind: "cells" }));
  const close = () => {
    cells.el.hidden = true;
    asCells.focus();
  };
  const cells = drawCells(model, slot, close, () => isReading(el));
  const title = h("span", { className: "ipl-name" });
  el.append(
    h("div", { className: "ipl-bar" }, title, models.select, sampling.fold, asCells),
    sampling.grid,
    cells.el,
    log,
    problem,
    h("div", { className: "ipl-entry" }, field, send, stop),
    status,
  );

  // -- what is told
  let busy = 0;
  function tell(content) {
    problem.hidden = true;
    clearTimeout(busy);
    busy = setTimeout(() => (status.textContent = "The kernel is busy: it takes this up when the running cell has ended."), PATIENCE);
    say(model, content);
  }
  function act(content) {
    if (writing || models.select.disabled) return; // one thing at a time
    if (content.kind !== "goto") expect(content.text ?? model.get("turns").find((turn) => turn.id === content.turn).message);
    tell(content);
  }
  function ask() {
    const text = field.value;
    if (!text.trim() || writing || models.select.disabled) return;
    setDraft("");
    expect(text);
    tell({ kind: "ask", text, after: model.get("turns").at(-1)?.id ?? null });
    field.focus();
  }
  function setDraft(text) {
    field.value = keep.draft = text;
    field.fit();
  }

  // -- what is shown
  const drawn = new Map(); // id -> { looks, el }
  let writing = null; // the answer that is being written, or waited for
  let place = null; // its element

  function atBottom() {
    return log.scrollHeight - log.scrollTop - log.clientHeight < BOTTOM;
  }
  function sticking(change) {
    const stick = atBottom();
    change();
    if (stick) log.scrollTop = log.scrollHeight;
  }
  function expect(text) {
    place = h("article", { className: "ipl-turn ipl-writing" });
    writing = drawWriting({ text }, place);
    writing.say("sent");
    stop.disabled = false;
    show();
    log.scrollTop = log.scrollHeight;
  }
  function end() {
    writing = place = null;
    show();
  }
  function show() {
    const turns = model.get("turns");
    const elements = turns.map((turn, n) => {
      const looks = JSON.stringify([n, turn]);
      if (drawn.get(turn.id)?.looks !== looks) drawn.set(turn.id, { looks, el: drawTurn(turn, n, act) });
      return drawn.get(turn.id).el;
    });
    for (const id of drawn.keys()) if (!turns.some((turn) => turn.id === id)) drawn.delete(id);
    if (place) elements.push(place);
    arrange(log, elements.length ? elements : [empty]);
    title.textContent = model.get("title");
    send.hidden = writing !== null;
    stop.hidden = writing === null;
    el.classList.toggle("ipl-answering", writing !== null);
    focusAgain();
  }
  // What took the place of the element that had the focus: the same button of another branch, say.
  function focusAgain() {
    if (!keep.focus || el.contains(document.activeElement)) return;
    const [n, name] = keep.focus.split(":");
    const other = { before: `${n}:after`, after: `${n}:before` }[name]; // at an end only the way back is left
    const found = [keep.focus, other].map((key) => el.querySelector(`[data-key="${key}"]:not(:disabled)`));
    found.find((each) => each)?.focus({ preventScroll: true });
  }

  model.on("change:turns", () => sticking(show));
  model.on("change:running", () => {
    const { text } = model.get("running");
    if (text === undefined) sticking(end);
    else if (!writing) expect(text);
  });
  model.on("change:title", () => (title.textContent = model.get("title")));
  model.on("change:sampling", sampling.fill);
  const settle = () => {
    models.settle();
    focusAgain();
  };
  model.on("change:model", () => model.get("model") && settle());
  model.on("change:models", models.fill);
  model.on("change:doing", () => (status.textContent = model.get("doing")));
  tellProblem(model, problem);
  model.on("change:problem", () => {
    sampling.fill();
    settle();
  });
  model.on("msg:custom", (said) => {
    switch (said.kind) {
      case "heard":
        clearTimeout(busy);
        status.textContent = model.get("doing");
        break;
      case "unsent":
        if (writing) end();
        if (!field.value) setDraft(said.text);
        break;
      case "cells":
        cells.show(said.cells);
        break;
      case "begin":
      case "progress":
      case "text":
        if (writing) sticking(() => writing.take(said));
    }
  });

  // -- the static form is brought up to date when nobody would be disturbed: the view is drawn anew then
  let composing = false;
  const settled = () => {
    const editing = el.querySelector(".ipl-edit") || !cells.el.hidden || sampling.isTyping();
    if (model.get("dirty") && !writing && !composing && !editing && !field.value) say(model, { kind: "left" });
  };
  const on = (target, name, listener) => target.addEventListener(name, listener, { signal });
  on(field, "compositionstart", () => (composing = true));
  on(field, "compositionend", () => (composing = false));
  on(field, "input", () => {
    keep.draft = field.value;
    settled();
  });
  on(el, "focusin", (event) => {
    keep.focus = event.target.dataset.key ?? null;
  });
  on(el, "focusout", () =>
    setTimeout(() => {
      if (el.isConnected && document.activeElement !== document.body && !el.contains(document.activeElement)) keep.focus = null;
      settled();
    }),
  );
  on(el, "pointerleave", settled);
  on(log, "scroll", () => (keep.scroll = atBottom() ? null : log.scrollTop));
  model.on("change:dirty", () => setTimeout(settled));
  model.on("change:running", () => setTimeout(settled));

  setDraft(keep.draft ?? "");
  if (model.get("running").text !== undefined) {
    expect(model.get("running").text);
    tell({ kind: "late" });
  }
  show();
  if (!keep.left) say(model, { kind: "models" });
  log.scrollTop = keep.scroll ?? log.scrollHeight;
  if (Date.now() - (keep.left ?? 0) < REDRAWN) focusAgain();
  else keep.focus = null;
  signal.addEventListener("abort", () => {
    clearTimeout(busy);
    keep.left = Date.now();
  });
}

export default live(render);
