// Live answers: the kernel says what has changed, by the name of the slot.

const answers = new Map(); // slot -> what is known about the answer there
const KEPT = 500; // answers that can be copied: the oldest give way

function answerOf(slot) {
  if (!answers.has(slot)) {
    answers.set(slot, { changed: new Set() });
    if (answers.size > KEPT) answers.delete(answers.keys().next().value);
  }
  return answers.get(slot);
}

function take(answer, message) {
  switch (message.kind) {
    case "begin":
      Object.assign(answer, { blocks: [], tail: "", line: "", label: "", share: null, ended: false, copy: "" });
      break;
    case "progress":
      Object.assign(answer, { line: message.line, label: message.label, share: message.share });
      break;
    case "text":
      if (message.blocks) answer.blocks.push(message.blocks);
      Object.assign(answer, { line: message.line, share: null });
      answer.tail = answer.tail.slice(0, message.keep) + message.tail;
      break;
    case "end":
      Object.assign(answer, { ended: true, copy: message.copy });
  }
  for (const change of answer.changed) change();
}

// The answer while it is written. Its HTML comes from the kernel's renderer, which escapes all that a model writes.
function drawAnswer(answer, el, stop) {
  const blocks = h("div", { "aria-live": "polite", role: "log", "aria-label": "Answer" });
  const tail = h("div", { className: "ipl-tail", "aria-live": "off" });
  const line = h("span", { className: "ipl-line" });
  const fill = h("div", { className: "ipl-fill" });
  const bar = h("div", { className: "ipl-progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  const button = stopButton("Stop this answer", async () => {
    line.textContent = (await stop()) ? "stopping" : "use the notebook's Stop button: this front end offers no other";
  });
  el.classList.add("ipl-live");
  el.append(blocks, tail, h("div", { className: "ipl-foot" }, button, line, bar));

  let drawn = 0;
  function change() {
    for (; drawn < answer.blocks.length; drawn++) blocks.insertAdjacentHTML("beforeend", answer.blocks[drawn]);
    if (tail.html !== answer.tail) tail.innerHTML = tail.html = answer.tail;
    if (!button.disabled) line.textContent = answer.line;
    bar.hidden = answer.share === null;
    if (answer.share !== null) {
      const percent = (answer.share * 100).toFixed(1);
      bar.setAttribute("aria-label", answer.label);
      bar.setAttribute("aria-valuenow", percent);
      fill.style.width = `${percent}%`;
    }
    if (answer.ended) button.disabled = true;
  }
  // many changes, one drawing a frame
  let frame = 0;
  const later = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      change();
    });
  };
  answer.changed.add(later);
  change();
  return () => {
    cancelAnimationFrame(frame);
    answer.changed.delete(later);
  };
}

// A finished answer: the static form, and a button beside it.
function drawCopy(answer, el) {
  if (!answer.copy) return;
  const label = h("span", { "aria-live": "polite" }, "Copy");
  const button = h("button", { className: "ipl-button ipl-copy", type: "button", title: "Copy the answer as Markdown" }, label);
  let timer = 0;
  button.addEventListener("click", async () => {
    await copyText(answer.copy);
    label.textContent = "Copied";
    clearTimeout(timer);
    timer = setTimeout(() => (label.textContent = "Copy"), 1500);
  });
  el.classList.add("ipl-finished");
  el.append(button);
  return () => clearTimeout(timer);
}

export default {
  initialize({ model }) {
    const mine = new Map(); // slot -> its view
    const stop = () => interrupt(model, model.get("kernel_id"));
    model.on("msg:custom", (message) => {
      take(answerOf(message.slot), message);
      if (!mine.has(message.slot)) {
        const view = (slot) => {
          const answer = answerOf(slot.dataset.ipyllama);
          const { ended } = answer;
          return drawIn(slot, (el) => (ended ? drawCopy(answer, el) : drawAnswer(answer, el, stop)), { over: !ended });
        };
        mine.set(message.slot, view);
        places.add(message.slot, view);
      }
    });
    say(model, { kind: "hello" }); // so the kernel knows that views are drawn here
    const forget = whenKernelEnds(model, () => {
      for (const answer of [...mine.keys()].map(answerOf).filter(({ ended }) => !ended)) {
        Object.assign(answer, { ended: true, share: null, line: "not finished: the kernel has ended. Run the cell again" });
        for (const change of answer.changed) change();
      }
    });
    return () => {
      forget();
      mine.forEach((view, slot) => places.remove(slot, view));
    };
  },
};
