// Navigation, keyboard and theme; draws the view that the address names.
import { state, go, onChange, readAddress, h, button, select, marked, note, number, limits, showBytes, showTime, lessons, lesson, chosenLesson, isCourse } from "./core.js";
import { why } from "./why.js";
import { overview } from "./overview.js";
import { graph } from "./graph.js";
import { decision } from "./decision.js";
import { kernel } from "./kernel.js";
import { blocks } from "./blocks.js";
import { accesses } from "./accesses.js";
import { steps } from "./steps.js";
import { transfers } from "./transfers.js";
import { memory } from "./memory.js";
import { compile } from "./compile.js";
import { learn } from "./learn.js";

const VIEWS = [["learn", "Learn", learn], ["overview", "Overview", overview], ["graph", "Graph", graph], ["decision", "Decisions", decision], ["kernel", "Kernel", kernel],
  ["blocks", "Blocks", blocks], ["access", "Access", accesses], ["step", "Step", steps], ["transfers", "Transfers", transfers], ["memory", "Memory", memory], ["compile", "Compile", compile]];
const STEPPED = { graph: "step", step: "at", blocks: "block" }; // what arrow keys move in a view
const NUMBERED = VIEWS.map(([name]) => name).filter((name) => name !== "learn");
const INTRO = {
  overview: "What fusion did to this program: kernels, bytes and time, before and after.",
  graph: "Operators in one colour run as one kernel. Move the slider to replay what was decided, in its order.",
  decision: "Why two operators are, or are not, in one kernel, with the numbers that decided.",
  kernel: "How one kernel computes: its text, its axes with their roles, and the code that runs.",
  blocks: "Who computes what. Choose a cell: its block lights up in every array that it reads.",
  access: "What neighbouring lanes read at one moment, and how much memory must move for it.",
  step: "One statement at a time, with real values, beside the program without fusion.",
  transfers: "Every array that crosses memory, with and without fusion.",
  memory: "Where values between kernels are stored, and for how long.",
  learn: "What fusion is: the way of each value through memory, without it and with it.",
  compile: "What the compiler did, how long it took, and what came from the cache.",
};

const main = document.getElementById("view");
const tabs = document.getElementById("tabs");
tabs.append(...VIEWS.map(([name, label]) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "view",
  title: `${label} (key ${name === "learn" ? "l" : (NUMBERED.indexOf(name) + 1) % 10})`, onclick: (e) => choose(name, e) }, label)));

// Open a view. After a click with a pointer arrow keys are for the view, else for the tabs.
function choose(name, click) {
  open(name);
  if (click.detail && STEPPED[name]) main.focus({ preventScroll: true });
}

function draw() {
  const [id, title, view] = VIEWS.find(([name]) => name === state.view) || VIEWS[1];
  const focused = document.activeElement?.closest("#view") ? describe(document.activeElement) : null;
  for (const tab of tabs.children) {
    tab.setAttribute("aria-selected", String(tab.id === `tab-${id}`));
    tab.tabIndex = tab.id === `tab-${id}` ? 0 : -1;
  }
  let parts;
  try {
    parts = view();
  } catch (error) {
    parts = [note(`This view cannot be drawn: ${error.message}`)];
    console.error(error);
  }
  replaceParts([h("h2", {}, title), h("p", { class: "intro" }, INTRO[id]), ...parts.flat(Infinity).filter(Boolean)]);
  for (const line of main.querySelectorAll(".line.here")) {
    line.parentElement.scrollTop = line.offsetTop - 110;
  }
  const tab = document.getElementById(`tab-${id}`);
  tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
  main.setAttribute("aria-labelledby", `tab-${id}`);
  if (focused && document.activeElement !== held) alike(focused.tag, focused.key)[focused.at]?.focus({ preventScroll: true });
}

// The element that had the focus, to give it back after drawing.
const keyOf = (e) => e.id || e.dataset.node || e.getAttribute("aria-label") || e.textContent;
const alike = (tag, key) => [...main.querySelectorAll(tag)].filter((e) => keyOf(e) === key);
const describe = (e) => ({ tag: e.tagName, key: keyOf(e), at: alike(e.tagName, keyOf(e)).indexOf(e) });

// Replace what is shown, but leave a slider in its place while it is dragged.
let held = null;
function replaceParts(parts) {
  const kept = held && [...main.children].find((x) => x.contains(held));
  const at = kept ? parts.findIndex((x) => x.querySelector(`input[type="range"][aria-label="${held.getAttribute("aria-label")}"]`)) : -1;
  if (at < 0) return main.replaceChildren(...parts);
  for (const old of [...main.children]) if (old !== kept) old.remove();
  kept.before(...parts.slice(0, at));
  return kept.after(...parts.slice(at + 1));
}
document.addEventListener("pointerdown", (e) => { held = e.target.type === "range" ? e.target : null; });
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => {
    if (!held) return;
    held = null;
    draw();
  });
}

function open(name) {
  for (const key of ["at", "run", "block", "cell", "access", "axis"]) delete state[key];
  go({ view: name });
}

function nudge(by) {
  const key = STEPPED[state.view];
  if (!key) return false;
  const otherwise = key === "step" ? limits.step : 0;
  go({ [key]: Math.min(Math.max(number(key, otherwise) + by, 0), limits[key] ?? 0), cell: null });
  return true;
}

function help() {
  const rows = [["1 … 9, 0", "open a view"], ["l", "learn what fusion is"], ["← →", "step back, step forward"], ["Home, End", "first step, last step"], ["Tab, Enter", "move to and choose an operator or a cell"], ["/", "find an operator in the graph"], ["t", "light, dark or the system's theme"], ["?", "this help"]];
  const dialog = h("dialog", { "aria-label": "keyboard" }, h("h2", {}, "Keyboard"), h("dl", {}, rows.map(([k, v]) => [h("dt", {}, h("kbd", {}, k)), h("dd", {}, v)])), button("Close", () => dialog.close()));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function theme() {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % order.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  document.getElementById("theme").textContent = `theme: ${next || "system"}`;
}

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(e.target.tagName) || document.querySelector("dialog")) return;
  if (/^[0-9]$/.test(e.key)) open(NUMBERED[(Number(e.key) + 9) % 10]);
  else if (e.key === "l") open("learn");
  else if (e.key === "?") help();
  else if (e.key === "t") theme();
  else if (e.key === "/") {
    e.preventDefault();
    if (state.view !== "graph") open("graph");
    document.getElementById("find")?.focus();
  }
  else if (e.key === "ArrowRight" && e.target.role !== "tab" ? nudge(1) : false) e.preventDefault();
  else if (e.key === "ArrowLeft" && e.target.role !== "tab" ? nudge(-1) : false) e.preventDefault();
  else if (e.key === "Home" && nudge(-1e9)) e.preventDefault();
  else if (e.key === "End" && nudge(1e9)) e.preventDefault();
  else if (e.target.role === "tab" && ["ArrowLeft", "ArrowRight"].includes(e.key)) {
    const at = VIEWS.findIndex(([name]) => name === state.view) + (e.key === "ArrowRight" ? 1 : -1);
    const name = VIEWS[(at + VIEWS.length) % VIEWS.length][0];
    open(name);
    document.getElementById(`tab-${name}`).focus();
  }
});
addEventListener("hashchange", () => {
  if (chosenLesson() !== lesson) return location.reload();
  readAddress();
  return draw();
});
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("help").addEventListener("click", help);
window.smeltWhy = why; // for scripts that question the page
window.smeltNumbers = (x) => [showBytes(x), showTime(x)];
document.documentElement.classList.add("scripted");
if (lessons.length) {
  const shown = lessons[lesson];
  document.querySelector(".top h1").textContent = shown.name;
  document.querySelector(".lead").textContent = shown.sentence;
  document.querySelector(".under").textContent = shown.under;
  if (!isCourse) document.querySelector(".under").after(parts(shown));
}

// The parts of a program, one after another: the same view of another one.
function parts(shown) {
  const show = (k) => { location.hash = `#${state.view}/program=${k}`; };
  return h("section", { id: "parts" }, h("div", { class: "controls" },
    select("Part", lessons.map((x, k) => [k, `${k + 1} of ${lessons.length}: ${x.title}`]), lesson, show),
    button("‹ part", () => show(lesson - 1), { disabled: lesson === 0 }), button("part ›", () => show(lesson + 1), { disabled: lesson === lessons.length - 1 })),
  h("p", { class: "note" }, marked(shown.text)));
}
onChange(draw);
readAddress();
draw();
