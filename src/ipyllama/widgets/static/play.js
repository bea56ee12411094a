// Shared by the views that one plays with.

// Elements that have the focus keep their keys: JupyterLab would move to another cell.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

const REDRAWN = 1000; // ms in which a view that went and came again is the same to its reader
const lost = new Map(); // slot -> what had the focus when its view went: { path, value, selection, when }

// Where the reader is. The kernel is told when a view was left that does not look as its static form does: that can be
// drawn anew then. Whoever is back by then finds the focus, and what was typed, where it was. And what goes while it has
// the focus hands it on: keys would go to the notebook. Call it when all is drawn.
function followReader(model, el, signal) {
  const slot = model.get("slot");
  let over = false;
  let focused = null;
  const inside = () => el.contains(document.activeElement);
  const tell = () => {
    if (model.get("dirty") && !over && !inside()) say(model, { kind: "left" });
  };
  el.addEventListener("pointerenter", () => (over = true), { signal });
  el.addEventListener("pointerleave", () => {
    over = false;
    tell();
  }, { signal });
  el.addEventListener("focusin", (event) => (focused = event.target), { signal });
  const out = () => {
    if (signal.aborted || inside()) return;
    if (focused && document.activeElement === document.body && !takesFocus(focused)) handOn(el);
    else focused = null;
    tell();
  };
  el.addEventListener("focusout", () => setTimeout(out), { signal });
  model.on("change:dirty", tell);
  signal.addEventListener("abort", () => {
    if (!focused) return;
    const { value, selectionStart, selectionEnd } = focused;
    lost.set(slot, { path: pathTo(focused, el), value, selection: [selectionStart, selectionEnd], when: performance.now() });
  });
  giveBack(el, lost.get(slot));
  lost.delete(slot);
}

// Nobody has gone elsewhere while the kernel was asked: keys that are meant for a cell shall not press a button here.
const isReading = (el) => document.activeElement === document.body || el.contains(document.activeElement);

const takesFocus = (element) => element && !element.disabled && element.checkVisibility();

// To the row that is looked at, or to the first that can be pressed.
function handOn(el) {
  const others = [el.querySelector(".ipl-row[tabindex='0']"), ...el.querySelectorAll("button, input")];
  others.find(takesFocus)?.focus({ preventScroll: true });
}

function giveBack(el, was) {
  if (!was || performance.now() - was.when > REDRAWN || document.activeElement !== document.body) return;
  const element = was.path.reduce((at, n) => at?.children[n], el);
  if (!takesFocus(element)) return;
  element.focus({ preventScroll: true });
  if (element.tagName !== "INPUT") return;
  element.value = was.value;
  if (was.selection[0] !== null) element.setSelectionRange(...was.selection);
}

// The places of an element and of those that hold it, each among its siblings.
function pathTo(element, root) {
  const path = [];
  for (let at = element; at && at !== root; at = at.parentElement) path.unshift([...at.parentElement.children].indexOf(at));
  return path;
}

// As ipyllama.display.units.format_share has it.
function share(p) {
  if (p > 0 && p < 0.0001) return "<0.01%";
  if (p >= 0.995 && p < 0.99995) return `${(p * 100).toFixed(2)}%`;
  return `${(p * 100).toFixed(p >= 0.0995 || p === 0 ? 0 : p >= 0.00995 ? 1 : 2)}%`;
}
