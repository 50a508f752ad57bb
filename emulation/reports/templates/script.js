// Without the script every drawing is shown. With the script, drawings can be shown large, one at a time.
for (const box of document.querySelectorAll(".frames")) {
  const all = box.querySelectorAll("figure");
  if (all.length < 2) continue;
  const bar = document.createElement("div"), range = document.createElement("input");
  const label = document.createElement("label"), tick = document.createElement("input");
  bar.className = "steer";
  tick.type = "checkbox";
  range.type = "range"; range.min = 0; range.max = all.length - 1; range.value = 0; range.disabled = true;
  range.setAttribute("aria-label", "which drawing");
  label.append(tick, " one at a time");
  bar.append(label, range);
  box.before(bar);
  const show = () => {
    range.disabled = !tick.checked;
    box.classList.toggle("one", tick.checked);
    all.forEach((one, i) => one.classList.toggle("now", i === Number(range.value)));
  };
  tick.addEventListener("change", show);
  range.addEventListener("input", show);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
