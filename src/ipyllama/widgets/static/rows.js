// Shared by the views of many rows.

const ROW = 28; // pixels, as in the style sheet
const SPARE = 8; // rows above and below those in sight

// Rows in a box that scrolls. `name(row)` tells rows apart, `draw(row, place)` makes an element, which is made anew when
// `key(row)` changes; `dress(el, row, place)` sets what may change without that; `scrolled()` is called when others have
// come into sight. One row is the active one: it is in the page in any case, and can have the focus.
function rowsIn(box, { name, key, draw, dress, scrolled }) {
  const inner = h("div", { className: "ipl-inner", role: "presentation" });
  const drawn = new Map(); // name -> { el, key }
  let rows = [];
  let active = -1;
  box.append(inner);

  function inSight(spare) {
    const height = box.clientHeight || 15 * ROW;
    return [Math.max(0, Math.floor(box.scrollTop / ROW) - spare), Math.min(rows.length, Math.ceil((box.scrollTop + height) / ROW) + spare)];
  }
  function paint() {
    const focused = inner.contains(document.activeElement) && document.activeElement.classList.contains("ipl-row");
    const [first, end] = inSight(SPARE);
    const places = Array.from({ length: Math.max(0, end - first) }, (_, i) => first + i);
    if (active >= 0 && active < first) places.unshift(active);
    if (active >= end) places.push(active);
    const wanted = new Set(places.map((place) => name(rows[place])));
    for (const [id, item] of drawn) {
      if (!wanted.has(id)) {
        item.el.remove();
        drawn.delete(id);
      }
    }
    let before = null;
    for (const place of places) {
      const row = rows[place];
      let item = drawn.get(name(row));
      if (item?.key !== key(row) && !item?.el.querySelector("input")) {
        const el = draw(row, place);
        item?.el.replaceWith(el);
        drawn.set(name(row), (item = { el, key: key(row) }));
      }
      item.el.style.top = `${place * ROW}px`;
      item.el.tabIndex = place === active ? 0 : -1;
      dress(item.el, row, place, place === active);
      const next = before ? before.nextSibling : inner.firstChild;
      if (next !== item.el) inner.insertBefore(item.el, next);
      before = item.el;
    }
    if (focused) focus();
  }
  function focus() {
    const el = active >= 0 ? drawn.get(name(rows[active]))?.el : null;
    if (el && el !== document.activeElement) el.focus({ preventScroll: true });
  }

  let frame = 0;
  box.addEventListener("scroll", () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      paint();
      scrolled?.();
    });
  }, { passive: true });
  const resized = new ResizeObserver(paint);
  resized.observe(box);

  return {
    paint,
    focus,
    set(newRows, place) {
      rows = newRows;
      active = place;
      inner.style.height = `${rows.length * ROW}px`;
      paint();
    },
    // Make a row the active one, and scroll until it is in sight.
    activate(place) {
      active = place;
      const top = place * ROW;
      if (top < box.scrollTop) box.scrollTop = top;
      else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
      paint();
    },
    element: (row) => drawn.get(name(row))?.el,
    visible: () => rows.slice(...inSight(0)),
    page: () => Math.max(1, Math.floor(box.clientHeight / ROW) - 1),
    close() {
      cancelAnimationFrame(frame);
      resized.disconnect();
    },
  };
}
