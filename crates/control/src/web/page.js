"use strict";
const main = document.querySelector("main"), notice = document.getElementById("notice");
const list = (element, key) => element.dataset[key] ? element.dataset[key].split(",") : [];
const all = selector => [...main.querySelectorAll(selector)];

// Makes each plot a slider over its moments, for keys and screen readers.
function enliven() {
  for (const svg of all("svg")) {
    const last = Math.max(list(svg.closest(".plots"), "t").length - 1, 0);
    svg.setAttribute("role", "slider");
    svg.setAttribute("tabindex", 0);
    svg.setAttribute("aria-valuemax", last);
    svg.setAttribute("aria-valuenow", last);
  }
}

// Shows the values of one moment below its plot.
function show(svg, index) {
  const plots = svg.closest(".plots"), x = list(plots, "x"), times = list(plots, "t");
  if (!x.length) return;
  index = Math.min(Math.max(index, 0), x.length - 1);
  svg.dataset.at = times[index];
  svg.querySelector(".cursor").setAttribute("d", `M${x[index]} 8V128`);
  const values = [...svg.querySelectorAll("[data-v]")].map(line => `${line.dataset.n} ${list(line, "v")[index]}`);
  const text = `${times[index]} UTC: ${values.join(", ")}`;
  svg.parentNode.querySelector("output").textContent = text;
  svg.setAttribute("aria-valuenow", index);
  svg.setAttribute("aria-valuetext", text);
}

function point(event) {
  const svg = event.target.closest("svg");
  if (!svg) return;
  const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * 360;
  const distances = list(svg.closest(".plots"), "x").map(x => Math.abs(x - at));
  show(svg, distances.indexOf(Math.min(...distances)));
}
main.addEventListener("pointermove", point);
main.addEventListener("pointerdown", point);
main.addEventListener("keydown", event => {
  const svg = event.target.closest("svg"), step = { ArrowLeft: -1, ArrowRight: 1, Home: -360, End: 360 }[event.key];
  if (!svg || !step) return;
  event.preventDefault();
  const times = list(svg.closest(".plots"), "t");
  show(svg, svg.dataset.at ? times.indexOf(svg.dataset.at) + step : times.length - 1);
});

// Replaces the content, and keeps focus, scroll positions and shown moments.
async function refresh() {
  if (document.hidden) return;
  if (!getSelection().isCollapsed) {
    notice.textContent = "Updates wait while text is selected.";
    return;
  }
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const focused = all("[tabindex]").indexOf(document.activeElement);
    const scrolled = new Map(all(".scroll").map(it => [it.ariaLabel, it.scrollLeft]));
    const shown = all("svg").map(it => it.dataset.at);
    main.replaceChildren(...next.querySelector("main").childNodes);
    document.title = next.title;
    enliven();
    if (focused >= 0) all("[tabindex]")[focused]?.focus({ preventScroll: true });
    for (const it of all(".scroll")) it.scrollLeft = scrolled.get(it.ariaLabel) ?? 0;
    all("svg").forEach((svg, index) => {
      const at = list(svg.closest(".plots"), "t").indexOf(shown[index]);
      if (at >= 0) show(svg, at);
    });
    notice.textContent = "";
  } catch {
    notice.textContent = notice.textContent.startsWith("No answer") ? notice.textContent
      : `No answer since ${new Date().toISOString().slice(11, 19)} UTC; the page shows earlier values.`;
  }
}
enliven();
setInterval(refresh, 10000);
document.addEventListener("visibilitychange", refresh);
