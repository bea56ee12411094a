// Shared by the views that one plays with.

// Elements that have the focus keep their keys: JupyterLab would move to another cell.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

// Tell the kernel when a view was left that does not look as its static form does: that can be drawn anew then.
function tellWhenLeft(model, el, signal) {
  let over = false;
  const tell = () => {
    if (model.get("dirty") && !over && !el.contains(document.activeElement)) model.send({ kind: "left" });
  };
  el.addEventListener("pointerenter", () => (over = true), { signal });
  el.addEventListener("pointerleave", () => {
    over = false;
    tell();
  }, { signal });
  el.addEventListener("focusout", () => setTimeout(tell), { signal });
  model.on("change:dirty", tell);
}

// As ipyllama.display.units.format_share has it.
function share(p) {
  if (p > 0 && p < 0.0001) return "<0.01%";
  if (p >= 0.995 && p < 0.99995) return `${(p * 100).toFixed(2)}%`;
  return `${(p * 100).toFixed(p >= 0.0995 || p === 0 ? 0 : p >= 0.00995 ? 1 : 2)}%`;
}

// Channels to kernels that hear while a cell runs (widgets/say.py), opened at the first use.
const channels = new WeakMap(); // kernel -> a promise of its comm, of null where it has no subshells

async function openChannel(kernel) {
  if (!kernel.supportsSubshells || kernel.commsOverSubshells === "disabled") return null; // the latter is a setting
  const comm = kernel.createComm("ipyllama.say");
  await comm.subshellStarted;
  comm.open();
  return comm;
}

async function channelTo(kernel) {
  const known = await channels.get(kernel);
  if (known === undefined || known?.isDisposed) channels.set(kernel, openChannel(kernel));
  return channels.get(kernel);
}

// Tell the kernel something, also while a cell runs where that is possible.
async function say(model, content) {
  const kernel = model.widget_manager?.kernel;
  const channel = kernel ? await channelTo(kernel) : null;
  if (channel) channel.send({ slot: model.get("slot"), content });
  else model.send(content);
}
