// The KV map: a bar of the whole context, and below it the part that is in use, cell by cell on a canvas, in the order in
// which sequences hold them.

const ORIGINS = ["reused", "restored", "computed", "generated"];
const HEIGHT = 220; // what the cells may fill, in CSS pixels
const EDGE = 2; // around them, for the mark
const FEWEST = 512; // cells that are drawn at least
const number = new Intl.NumberFormat("en");

// The state of the context, kept for all views of it.
function follow({ model }) {
  const context = { tokens: new Int32Array(0), pieces: {}, at: -1, listeners: new Set() };
  const take = (message, tokens) => {
    const { total, runs, note } = message;
    const all = new Int32Array((message.keep ?? 0) + tokens.byteLength / 4);
    all.set(context.tokens.subarray(0, message.keep ?? 0));
    for (let i = message.keep ?? 0, at = 0; i < all.length; i++, at += 4) all[i] = tokens.getInt32(at, true);
    Object.assign(context, { total, note, tokens: all, model: message.model });
    Object.assign(context.pieces, message.pieces);
    let first = 0;
    context.runs = runs.map(([length, start, sequences, origin]) => {
      const run = { first, length, start, sequences, origin };
      first += length;
      return run;
    });
    context.used = first;
    context.shown = Math.min(total, Math.max(FEWEST, 2 ** Math.ceil(Math.log2(Math.max(1, first)))));
    for (const listener of context.listeners) listener();
  };
  const state = model.get("state");
  take(state, state.tokens);
  model.on("msg:custom", (message, [tokens]) => take(message, tokens));
  return context;
}

function runAt(context, cell) {
  return context.runs.find((run) => cell >= run.first && cell < run.first + run.length);
}

// "cell 12: " Paris", token 3456 at position 12, computed, sequence 0"
function describe(context, cell) {
  const run = runAt(context, cell);
  if (!run) return `cell ${number.format(cell)}: free`;
  const token = context.tokens[cell];
  const position = number.format(run.start + cell - run.first);
  const shared = run.sequences.length > 1 ? `sequences ${run.sequences.join(", ")} share it` : `sequence ${run.sequences[0]}`;
  const text = JSON.stringify(context.pieces[token] ?? "");
  return `cell ${number.format(cell)}: ${text}, token ${token} at position ${position}, ${run.origin}, ${shared}`;
}

// As large as fits: the side of a cell and how many are in a row.
function grid(total, width) {
  let side = Math.max(2, Math.min(14, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(1, total)))));
  while (side > 2 && Math.ceil(total / Math.floor(width / side)) * side > HEIGHT) side--;
  const columns = Math.max(1, Math.floor(width / side));
  return { side, columns, rows: Math.ceil(total / columns) };
}

function stripes(draw) {
  const tile = new OffscreenCanvas(6, 6);
  const pen = tile.getContext("2d");
  pen.strokeStyle = "rgba(255,255,255,0.75)";
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const x of [-6, 0, 6]) {
    pen.moveTo(x, 6);
    pen.lineTo(x + 6, 0);
  }
  pen.stroke();
  return draw.createPattern(tile, "repeat");
}

function render({ model, el, signal, shared: context }) {
  const colours = model.get("colours");
  const title = h("div", { className: "ipl-kv-title" });
  const canvas = h("canvas", { tabIndex: 0, role: "application" });
  canvas.setAttribute("aria-label", "Cells of the context. Arrow keys go from cell to cell.");
  const bar = h("div", { className: "ipl-kv-bar", role: "img" });
  const tip = h("div", { className: "ipl-kv-tip", "aria-live": "polite" });
  const legend = h("div", { className: "ipl-kv-legend" });
  const sequences = h("div", { className: "ipl-kv-sequences" });
  el.classList.add("ipl-kv", ...NO_MATH);
  el.append(title, bar, h("div", { className: "ipl-kv-map" }, canvas), tip, legend, sequences);

  let shape = grid(context.shown, 600);
  let at = context.at; // the cell that is pointed at: whoever does so goes on when the view is drawn anew
  const cells = new OffscreenCanvas(1, 1); // the picture without the mark

  function draw() {
    const width = Math.floor(canvas.parentElement.clientWidth) - 2 * EDGE;
    if (width <= 0) return;
    shape = grid(context.shown, width);
    const { side, columns, rows } = shape;
    const ratio = devicePixelRatio || 1;
    cells.width = Math.round((columns * side + 2 * EDGE) * ratio);
    cells.height = Math.round((rows * side + 2 * EDGE) * ratio);
    const pen = cells.getContext("2d");
    pen.scale(ratio, ratio);
    pen.translate(EDGE, EDGE);
    const gap = side > 3 ? 1 : 0;
    const paint = (first, length, colour) => {
      pen.fillStyle = colour;
      for (let cell = first; cell < first + length; ) {
        const column = cell % columns;
        const n = Math.min(columns - column, first + length - cell);
        pen.fillRect(column * side, Math.floor(cell / columns) * side, n * side, side - gap);
        cell += n;
      }
    };
    const style = getComputedStyle(el);
    paint(0, context.shown, style.getPropertyValue("--ipl-free"));
    for (const run of context.runs) {
      paint(run.first, run.length, colours[run.origin]);
      if (run.sequences.length > 1) paint(run.first, run.length, stripes(pen));
    }
    if (gap) for (let column = 1; column <= columns; column++) pen.clearRect(column * side - gap, 0, gap, rows * side);
    mark();
  }

  function mark() {
    const { side, columns, rows } = shape;
    canvas.width = cells.width; // empties it
    canvas.height = cells.height;
    canvas.style.width = `${columns * side + 2 * EDGE}px`;
    canvas.style.height = `${rows * side + 2 * EDGE}px`;
    const pen = canvas.getContext("2d");
    pen.drawImage(cells, 0, 0);
    if (at < 0) return;
    const ratio = devicePixelRatio || 1;
    pen.scale(ratio, ratio);
    pen.translate(EDGE, EDGE);
    pen.strokeStyle = getComputedStyle(el).getPropertyValue("--ipl-mark");
    pen.lineWidth = 2;
    const length = Math.max(2, side - 1) + 2;
    pen.strokeRect((at % columns) * side - 1, Math.floor(at / columns) * side - 1, length, length);
  }

  function words() {
    const share = context.total ? Math.round((100 * context.used) / context.total) : 0;
    const used = `${number.format(context.used)} of ${number.format(context.total)} in use (${share}%)`;
    title.textContent = `KV cells · ${context.model}: ${used}`;
    const counts = Object.fromEntries(ORIGINS.map((origin) => [origin, 0]));
    let shared = 0;
    const lengths = new Map();
    for (const run of context.runs) {
      counts[run.origin] += run.length;
      if (run.sequences.length > 1) shared += run.length;
      for (const id of run.sequences) lengths.set(id, (lengths.get(id) ?? 0) + run.length);
    }
    const key = (name, count, className, background) =>
      h(
        "span",
        {},
        h("i", { className: `ipl-kv-key ${className}`, style: background ? `background-color:${background}` : "" }),
        `${name} ${number.format(count)}`,
      );
    legend.replaceChildren(
      ...ORIGINS.map((origin) => key(origin, counts[origin], "", colours[origin])),
      key("free", Math.max(0, context.total - context.used), "ipl-kv-free"),
      ...(shared ? [key("shared", shared, "ipl-kv-shared ipl-kv-stripes")] : []),
    );
    const part = (run) => {
      const segment = h("div", { title: `${number.format(run.length)} ${run.origin}` });
      segment.style.width = `${(100 * run.length) / Math.max(1, context.total)}%`;
      segment.style.backgroundColor = colours[run.origin];
      segment.classList.toggle("ipl-kv-stripes", run.sequences.length > 1);
      return segment;
    };
    bar.replaceChildren(...context.runs.map(part));
    bar.setAttribute("aria-label", used);
    const lines = [...lengths].map(([id, n]) => `sequence ${id}: ${number.format(n)} ${n === 1 ? "token" : "tokens"}`);
    const drawn = context.shown < context.total ? `drawn: the first ${number.format(context.shown)} cells` : "";
    sequences.textContent = [...lines, drawn, context.note].filter(Boolean).join(" · ");
    point(at);
  }

  function point(cell) {
    at = context.at = cell < context.shown ? cell : -1;
    tip.textContent = at < 0 ? "Point at a cell, or use the arrow keys, to see its token." : describe(context, at);
  }

  // a frame draws once, whatever happened since the last one
  let frame = 0;
  let changed = false;
  const later = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (changed) {
        words();
        draw();
      } else mark();
      changed = false;
    });
  };
  const all = () => {
    changed = true;
    later();
  };
  const go = (cell) => {
    point(cell);
    later();
  };

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = [event.offsetX, event.offsetY].map((at) => Math.max(0, Math.floor((at - EDGE) / shape.side)));
    go(y * shape.columns + Math.min(shape.columns - 1, x));
  });
  canvas.addEventListener("pointerleave", () => go(-1));
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shape.columns, ArrowDown: shape.columns };
    const target = { Home: 0, End: Math.max(0, context.used - 1), Escape: -1 }[event.key];
    if (!(event.key in steps) && target === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook would go to another cell
    go(target ?? Math.max(0, Math.min(context.shown - 1, at < 0 ? 0 : at + steps[event.key])));
  });

  context.listeners.add(all);
  const resized = new ResizeObserver(all);
  resized.observe(el);
  const themed = new MutationObserver(all);
  themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "class"] });
  signal?.addEventListener("abort", () => themed.disconnect());
  words();
  draw();
  keepFocus(model.get("slot"), el, signal);
  return () => {
    cancelAnimationFrame(frame);
    context.listeners.delete(all);
    resized.disconnect();
    themed.disconnect();
  };
}

export default live(render, follow);
