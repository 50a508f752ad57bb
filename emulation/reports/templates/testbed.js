// A marker of the moment under the pointer, in every track, and a filter for long tables.
const now = document.getElementById("now");
const clock = (seconds) => {
  const at = new Date(Number(now.dataset.unix) + 1000 * seconds).toISOString();
  return `${seconds.toFixed(seconds < 1000 ? 2 : 0)} s, ${at.slice(11, 22)} UTC`;
};
addEventListener("pointermove", (event) => {
  const track = event.target.closest ? event.target.closest(".track") : null;
  if (!track) { now.textContent = ""; document.body.style.removeProperty("--at"); return; }
  const box = track.getBoundingClientRect();
  const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  document.body.style.setProperty("--at", `${100 * share}%`);
  now.textContent = clock(Number(now.dataset.begin) + share * Number(now.dataset.span));
});
for (const table of document.querySelectorAll("table.figures")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 12) continue;
  const field = document.createElement("input");
  field.className = "filter"; field.type = "search"; field.placeholder = "show rows with …";
  field.setAttribute("aria-label", "show rows with");
  field.addEventListener("input", () => {
    const word = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
  table.parentElement.before(field);
}
