// Shared by the views that one plays with.

// Elements that have the focus keep their keys: JupyterLab would move to another cell.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

// Tell the kernel when a view was left that does not look as its static form does: that can be drawn anew then. Call it
// when all is drawn.
function followReader(model, el, signal) {
  let over = false;
  const tell = () => {
    if (model.get("dirty") && !over && !el.contains(document.activeElement)) say(model, { kind: "left" });
  };
  el.addEventListener("pointerenter", () => (over = true), { signal });
  el.addEventListener("pointerleave", () => {
    over = false;
    tell();
  }, { signal });
  keepFocus(model.get("slot"), el, signal, tell);
  model.on("change:dirty", tell);
}

// Nobody has gone elsewhere while the kernel was asked: keys that are meant for a cell shall not press a button here.
const isReading = (el) => document.activeElement === document.body || el.contains(document.activeElement);

// As ipyllama.display.units.format_share has it.
function share(p) {
  if (p > 0 && p < 0.0001) return "<0.01%";
  if (p >= 0.995 && p < 0.99995) return `${(p * 100).toFixed(2)}%`;
  return `${(p * 100).toFixed(p >= 0.0995 || p === 0 ? 0 : p >= 0.00995 ? 1 : 2)}%`;
}
