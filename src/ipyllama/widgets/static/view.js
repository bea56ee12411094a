// Shared by the widgets of ipyllama. A notebook holds static HTML in slots, <div class="ipyllama-slot" data-ipyllama="NAME">,
// and the live view of that name is drawn over it, wherever and whenever such a slot is in the page.

const places = (globalThis[Symbol.for("ipyllama.places.2")] ??= (() => {
  const views = new Map(); // name -> [(slot) => what takes the view away again]: two notebooks may have one kernel
  const drawn = new Map(); // slot -> { view, remove }
  const slots = document.getElementsByClassName("ipyllama-slot");

  const newest = (slot) => views.get(slot.dataset.ipyllama)?.at(-1);

  function look() {
    for (const [slot, { view, remove }] of drawn) {
      if (!slot.isConnected || newest(slot) !== view) {
        drawn.delete(slot);
        remove();
      }
    }
    for (const slot of slots) {
      const view = newest(slot);
      if (view && !drawn.has(slot)) drawn.set(slot, { view, remove: view(slot) });
    }
  }
  // a front end takes outputs out of the page and puts them in again as it likes
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });

  return {
    add(name, view) {
      views.set(name, [...(views.get(name) ?? []), view]);
      look();
    },
    remove(name, view) {
      views.set(name, views.get(name)?.filter((other) => other !== view) ?? []);
      if (!views.get(name).length) views.delete(name);
      look();
    },
  };
})());

// An element in a slot: over its static form, or beside it.
function drawIn(slot, draw, { over }) {
  const el = document.createElement("div");
  el.className = "ipyllama-view";
  slot.append(el);
  slot.classList.toggle("ipyllama-over", over);
  const clean = draw(el);
  return () => {
    clean?.();
    el.remove();
    slot.classList.remove("ipyllama-over");
  };
}

const REDRAWN = 1000; // ms in which a view that went and came again is the same to its reader
const lost = new Map(); // slot -> what had the focus when its view went: { path, value, selection, when }

// When a view is drawn anew, its reader finds the focus, and what was typed, where it was. And what goes while it has the
// focus hands it on: keys would go to the notebook. Call it when all is drawn; `left()` is called when the focus has gone.
function keepFocus(slot, el, signal, left = () => {}) {
  let focused = null;
  const out = () => {
    if (signal.aborted || el.contains(document.activeElement)) return;
    if (focused && document.activeElement === document.body && !takesFocus(focused)) handOn(el);
    else focused = null;
    left();
  };
  el.addEventListener("focusin", (event) => (focused = event.target), { signal });
  el.addEventListener("focusout", () => setTimeout(out), { signal });
  signal.addEventListener("abort", () => {
    if (!focused) return;
    const { value, selectionStart, selectionEnd } = focused;
    lost.set(slot, { path: pathTo(focused, el), value, selection: [selectionStart, selectionEnd], when: performance.now() });
  });
  giveBack(el, lost.get(slot));
  lost.delete(slot);
}

const takesFocus = (element) => element && !element.disabled && element.getClientRects().length > 0; // of hidden ones there are none

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

// The model with listeners that go when the view does.
function listening(model, signal) {
  return {
    ...model,
    on(name, callback) {
      model.on(name, callback);
      signal.addEventListener("abort", () => model.off(name, callback));
    },
  };
}

// A kernel that starts anew, or is gone, knows nothing of the views that it made.
function whenKernelEnds(model, end) {
  const changes = model.widget_manager?.kernel?.statusChanged;
  const look = (kernel, status) => ["restarting", "autorestarting", "terminating", "dead"].includes(status) && end();
  changes?.connect(look);
  return () => changes?.disconnect(look);
}

// The module of a widget: `export default live(render)`, with render({ model, el, signal }) as anywidget calls it. The
// signal ends when the view goes: pass it to addEventListener. What `prepare({ model })` returns, once, is `shared` by all
// views.
function live(render, prepare = () => {}) {
  return {
    initialize({ model }) {
      const name = model.get("slot");
      const shared = prepare({ model });
      const view = (slot) => {
        const gone = new AbortController();
        const draw = (el) => render({ model: listening(model, gone.signal), el, signal: gone.signal, shared });
        const remove = drawIn(slot, draw, { over: true });
        return () => {
          gone.abort();
          remove();
        };
      };
      places.add(name, view);
      const end = () => places.remove(name, view); // the static form is left
      const forget = whenKernelEnds(model, end);
      return () => {
        forget();
        end();
      };
    },
    render({ model, el, signal }) {
      return render({ model, el, signal, shared: prepare({ model }) });
    },
  };
}

// h("button", { className: "x", onclick }, "text", child): elements without HTML. What is no property is an attribute.
function h(tag, properties = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in el) el[name] = value;
    else el.setAttribute(name, value);
  }
  el.append(...children);
  return el;
}

// A button that ends what is being written. It acts when it is pressed, not when it is let go: what is written pushes
// it away from under the pointer.
function stopButton(title, end, properties = {}) {
  const made = h("button", { className: "ipl-button ipl-stop", type: "button", title, ...properties });
  made.append(h("span", { className: "ipl-square", "aria-hidden": "true" }), "Stop");
  const act = () => {
    if (made.disabled) return;
    made.disabled = true;
    end();
  };
  made.addEventListener("pointerdown", (event) => event.button === 0 && act());
  made.addEventListener("click", act); // by keyboard, or by a program that reads the page
  return made;
}

// Tell the kernel something, also while a cell runs: on the control channel, where front end and kernel have it (say.py).
function say(model, content) {
  const kernel = model.widget_manager?.kernel;
  if (!kernel?.sendControlMessage || !model.get("hears")) {
    model.send(content);
    return;
  }
  const header = {
    msg_id: `${kernel.clientId}_${Date.now()}_${Math.random()}`,
    msg_type: "ipyllama_say",
    session: kernel.clientId,
    username: kernel.username,
    date: new Date().toISOString(),
    version: "5.3",
  };
  const told = { slot: model.get("slot"), content };
  kernel.sendControlMessage({ channel: "control", header, parent_header: {}, metadata: {}, content: told, buffers: [] });
}

// What the notebook's own Stop button does; false where this front end gives no way to it.
async function interrupt(model, kernelId) {
  const kernel = model.widget_manager?.kernel;
  if (kernel?.interrupt) {
    await kernel.interrupt();
    return true;
  }
  const config = document.getElementById("jupyter-config-data");
  if (!config || !kernelId) return false;
  const base = JSON.parse(config.textContent).baseUrl ?? "/";
  const token = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
  const url = `${base}api/kernels/${encodeURIComponent(kernelId)}/interrupt`;
  try {
    return (await fetch(url, { method: "POST", headers: { "X-XSRFToken": token } })).ok;
  } catch {
    return false; // the server is gone
  }
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // no clipboard where a page is neither local nor encrypted
    const area = h("textarea", { value: text, style: "position:fixed;opacity:0" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// Classes of what is shown as it was written: MathJax, of any version, leaves it alone.
const NO_MATH = ["mathjax_ignore", "tex2jax_ignore"];

// A line for what went wrong, there as long as the model tells of something.
function tellProblem(model, line) {
  const tell = () => {
    line.textContent = model.get("problem");
    line.hidden = !line.textContent;
  };
  model.on("change:problem", tell);
  tell();
}
