// The tokens of answers. Hover or move to one for its numbers; click an alternative to branch there.

// Tokens are put into the page in chunks, one a frame, and the browser leaves out those that are not in sight. A chunk
// ends with a line where it can.
const CHUNK = 256;
const LONGEST = 512;

// As tokens.py has them, in this order.
const COLUMNS = {
  ids: Int32Array,
  logprobs: Float32Array,
  entropies: Float32Array,
  likely: Uint8Array,
  open: Uint8Array,
  others: Int32Array,
  chances: Float32Array,
  known: Int32Array,
};

function unpack(answer) {
  const columns = Object.entries(COLUMNS).map(([name, Kind]) => {
    const { buffer, byteOffset, byteLength } = answer[name];
    return [name, new Kind(buffer.slice(byteOffset, byteOffset + byteLength))];
  });
  const [known_texts, known_bytes] = [answer.known_texts, answer.known_bytes].map((lines) => lines.split("\n"));
  return { ...answer, ...Object.fromEntries(columns), known_texts, known_bytes };
}

// The answers, kept for all views of them: each is sent once.
function collect({ model }) {
  const shared = { answers: model.get("answers").map(unpack), drawings: new Set() };
  model.on("msg:custom", ({ kind, answer }, buffers) => {
    if (kind !== "answer") return;
    const columns = Object.keys(COLUMNS).map((name, n) => [name, buffers[n]]);
    shared.answers.push(unpack({ ...answer, ...Object.fromEntries(columns) }));
    for (const draw of shared.drawings) draw();
  });
  return shared;
}

// Text and bytes of a token.
function pieceOf({ known, known_texts, known_bytes }, id) {
  let [first, last] = [0, known.length - 1];
  while (first < last) {
    const middle = (first + last) >> 1;
    if (known[middle] < id) first = middle + 1;
    else last = middle;
  }
  return [known_texts[first], known_bytes[first]];
}

function describe(answer, number) {
  const [text] = pieceOf(answer, answer.ids[number]);
  return `token ${number}: ${text}, ${share(Math.exp(answer.logprobs[number]))}, ${answer.entropies[number].toFixed(2)} bits`;
}

// What is known of one token; `branch(at, token)` where it can be branched. Returns the element.
function drawDetail(answer, number, branch) {
  const [text, bytes] = pieceOf(answer, answer.ids[number]);
  const fact = (name, value) => h("span", { className: "ipl-fact" }, h("span", { className: "ipl-name" }, name), value);
  const facts = h(
    "div",
    { className: "ipl-facts" },
    h("span", { className: "ipl-code ipl-piece" }, `"${text}"`),
    fact("token", String(number)),
    fact("id", String(answer.ids[number])),
    fact("bytes", bytes || "none"),
    fact("probability", share(Math.exp(answer.logprobs[number]))),
    fact("entropy", `${answer.entropies[number].toFixed(2)} bits`),
  );
  const list = h("div", { className: "ipl-others", role: "group", "aria-label": "What could stand there" });
  for (let i = number * answer.n_top; i < (number + 1) * answer.n_top && answer.others[i] >= 0; i++) {
    const id = answer.others[i];
    const [other] = pieceOf(answer, id);
    const chance = share(Math.exp(answer.chances[i]));
    const taken = id === answer.ids[number];
    const label = taken ? "this token" : `id ${id}` + (branch ? ": branch here" : "");
    const shown = [h("span", { className: "ipl-code" }, `"${other}"`), h("span", { className: "ipl-chance" }, chance)];
    const item = h(branch && !taken ? "button" : "span", { className: "ipl-button ipl-other", title: label, ...KEYS }, ...shown);
    item.style.setProperty("--share", `${(100 * Math.exp(answer.chances[i])).toFixed(1)}%`);
    if (taken) item.classList.add("ipl-taken");
    else if (branch) {
      item.type = "button";
      item.setAttribute("aria-label", `branch with ${other}, ${chance}`);
      item.addEventListener("click", () => branch(number, id));
    }
    list.append(item);
  }
  return h("div", {}, facts, list);
}

function drawLegend() {
  const scale = (name, from, to) => {
    const swatches = Array.from({ length: 8 }, (_, level) => h("span", { className: `ipl-swatch p${level} e${level}` }));
    return h("span", { className: `ipl-scale ${name}` }, from, ...swatches, to);
  };
  return h(
    "div",
    { className: "ipl-legend", "aria-hidden": "true" },
    scale("ipl-for-likely", "likely", "unlikely"),
    scale("ipl-for-open", "one choice", "many"),
  );
}

// One answer.
function drawTokens(answer, signal, branch) {
  const spans = [];
  const text = h("div", { className: "ipl-text", role: "group", "aria-label": `${answer.title}: arrow keys move, Enter goes to what could stand there` });
  const detail = h("div", { className: "ipl-detail", "aria-live": "polite" });
  const hint = "Point at a token, click to keep it, or use the arrow keys" + (branch ? "; click an alternative to go on from there." : ".");
  const before = answer.looked ?? { at: 0, kept: false }; // in the drawing before this one
  let selected = -1; // the one that has the focus, or would have it
  let kept = false; // pointing at others does not change what is shown
  let shown = -2;

  function show(number) {
    if (number === shown) return;
    shown = number;
    detail.replaceChildren(number < 0 ? h("div", { className: "ipl-hint" }, hint) : drawDetail(answer, number, branch));
  }
  function select(number, focus) {
    const left = spans[selected];
    left?.removeAttribute("tabindex");
    left?.classList.remove("ipl-selected");
    selected = Math.max(0, Math.min(spans.length - 1, number));
    const span = spans[selected];
    span.tabIndex = 0;
    kept = true;
    span.classList.add("ipl-selected");
    span.setAttribute("role", "button");
    span.setAttribute("data-lm-suppress-shortcuts", "true");
    span.setAttribute("aria-label", describe(answer, selected));
    if (focus) span.focus();
    show(selected);
    answer.looked = { at: selected, kept };
  }
  function release() {
    kept = false;
    answer.looked = { at: selected, kept };
    spans[selected]?.classList.remove("ipl-selected");
  }
  // the nearest token of the line above or below
  function beside(number, step) {
    const from = spans[number].getBoundingClientRect();
    let best = number;
    let distance = Infinity;
    let line = null;
    for (let i = number + step; i >= 0 && i < spans.length; i += step) {
      const box = spans[i].getBoundingClientRect();
      if (Math.abs(box.top - from.top) < 4) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) > 4) break;
      const away = Math.abs(box.left - from.left);
      if (away < distance) [best, distance] = [i, away];
    }
    return best;
  }
  const numberOf = (target) => (target.number ?? -1);

  const on = (target, name, listener) => target.addEventListener(name, listener, { signal });
  on(text, "pointerover", (event) => !kept && numberOf(event.target) >= 0 && show(numberOf(event.target)));
  on(text, "click", (event) => {
    const number = numberOf(event.target);
    if (number < 0) return;
    if (kept && number === selected) release();
    else select(number, true);
  });
  on(text, "focusin", (event) => numberOf(event.target) === selected && !kept && select(selected, false));
  on(text, "keydown", (event) => {
    const at = selected;
    const to = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => beside(at, 1),
      ArrowUp: () => beside(at, -1),
      Home: () => 0,
      End: () => spans.length - 1,
    }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (to) select(to(), true);
    else if (event.key === "Escape") release();
    else if (event.key === "Enter" || event.key === " ") detail.querySelector("button")?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own use for these keys
  });
  on(detail, "keydown", (event) => {
    const buttons = [...detail.querySelectorAll("button")];
    const at = buttons.indexOf(event.target);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && selected >= 0) spans[selected].focus();
    else if (step && at >= 0) buttons[(at + step + buttons.length) % buttons.length].focus();
    else if ((event.key === "Enter" || event.key === " ") && at >= 0) buttons[at].click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  let next = 0;
  let frame = 0;
  function more() {
    const chunk = h("div", { className: "ipl-chunk" });
    const [least, most] = [next + CHUNK, Math.min(next + LONGEST, answer.texts.length)];
    for (let ended = false; next < most && !ended; next++) {
      const span = document.createElement("span");
      const shownText = answer.texts[next];
      span.className = `t p${answer.likely[next]} e${answer.open[next]}`;
      span.textContent = shownText === "" ? "∅" : shownText.replaceAll("\n", "⏎\n");
      span.number = next;
      ended = next + 1 >= least && shownText.endsWith("\n");
      spans.push(span);
      chunk.append(span);
    }
    text.append(chunk);
    cancelAnimationFrame(frame);
    if (next < answer.texts.length) frame = requestAnimationFrame(more);
  }
  do more();
  while (next <= before.at && next < answer.texts.length);
  signal.addEventListener("abort", () => cancelAnimationFrame(frame));
  if (spans.length) select(before.at, false);
  if (!before.kept) {
    release();
    show(-1);
  }

  const head = h("div", { className: "ipl-title" }, h("span", {}, answer.title), h("span", { className: "ipl-summary" }, answer.summary));
  return h("section", { className: "ipl-answer", "aria-label": answer.title }, head, text, detail);
}

// By which of the two a token is coloured: a class on the whole view, so that no token is touched.
function drawToggle(el, model) {
  const group = h("div", { className: "ipl-toggle", role: "radiogroup", "aria-label": "Colour" });
  const ways = { "ipl-by-likely": "Probability", "ipl-by-open": "Entropy" };
  const choose = (wanted) => {
    model.colouredBy = wanted;
    for (const way of Object.keys(ways)) el.classList.toggle(way, way === wanted);
    for (const button of group.children) {
      button.setAttribute("aria-checked", String(button.value === wanted));
      button.tabIndex = button.value === wanted ? 0 : -1;
    }
  };
  for (const [way, label] of Object.entries(ways)) {
    const button = h("button", { className: "ipl-button", type: "button", role: "radio", value: way, ...KEYS }, label);
    button.addEventListener("click", () => choose(way));
    button.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      event.stopPropagation();
      const other = event.target.nextSibling ?? event.target.previousSibling;
      choose(other.value);
      other.focus();
    });
    group.append(button);
  }
  choose(model.colouredBy ?? "ipl-by-likely");
  return group;
}

function render({ model, el, signal, shared }) {
  el.classList.add("ipl-tokens", ...NO_MATH);
  const answers = h("div", { className: "ipl-answers" });
  const running = h("section", { className: "ipl-running", hidden: true });
  const label = h("span", {});
  const written = h("div", { className: "ipl-text", role: "log", "aria-live": "polite", "aria-label": "The branch" });
  const stop = stopButton("Stop this branch", () => say(model, { kind: "stop" }), KEYS);
  running.append(h("div", { className: "ipl-title" }, label, stop), written);
  const problem = h("div", { className: "ipl-problem", role: "alert", hidden: true });
  el.append(h("div", { className: "ipl-bar" }, drawToggle(el, model), drawLegend()), answers, problem, running);

  function ask(answer, at, token) {
    if (!running.hidden) {
      problem.textContent = "One branch at a time: wait until this one is written, or stop it.";
      problem.hidden = false;
      return;
    }
    Object.assign(stop, { disabled: false });
    written.textContent = "";
    label.textContent = "asked for: it comes when the kernel is free";
    running.hidden = false;
    problem.hidden = true;
    say(model, { kind: "branch", answer, at, token });
  }
  function more() {
    while (answers.children.length < shared.answers.length) {
      const number = answers.children.length;
      const answer = shared.answers[number];
      answers.append(drawTokens(answer, signal, answer.branches ? (at, token) => ask(number, at, token) : null));
    }
  }
  function grow() {
    const now = model.get("running");
    running.hidden = !now.label;
    if (!now.label) return;
    label.textContent = now.label;
    written.textContent = now.text;
  }
  shared.drawings.add(more);
  signal.addEventListener("abort", () => shared.drawings.delete(more));
  model.on("change:running", grow);
  model.on("msg:custom", ({ kind, text }) => {
    if (kind === "text") written.append(text);
    if (kind !== "ended") return;
    running.hidden = true;
    problem.textContent = model.get("problem");
    problem.hidden = !problem.textContent;
  });
  more();
  grow();
  tellProblem(model, problem);
  followReader(model, el, signal);
}

export default live(render, collect);
