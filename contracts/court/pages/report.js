"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const root = document.documentElement;

  // Light or dark: the system's, until the reader chooses. A page from a file may have no storage.
  const remembered = (() => { try { return localStorage.getItem("rankproof-theme"); } catch { return null; } })();
  if (remembered) root.dataset.theme = remembered;
  one("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("rankproof-theme", root.dataset.theme); } catch { /* this page only */ }
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.copy); } catch {
      const field = document.createElement("textarea");
      field.value = button.dataset.copy;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    button.classList.add("done");
    const label = button.textContent;
    button.textContent = "copied";
    setTimeout(() => { button.textContent = label; button.classList.remove("done"); }, 1200);
  });

  const search = one("#search");
  if (!search) return; // the page of several reports
  const family = one("#family"), clear = one("#clear"), shown = one("#shown");
  const tiles = all(".tile"), causes = all(".cause");
  // What is searched: an item's own words, and those of its cause.
  const items = all(".item").map((element) => {
    const cause = element.closest(".cause");
    return { element, cause, outcome: element.dataset.outcome, family: element.dataset.family };
  });
  const wordsOf = new Map(causes.map((cause) => [cause, ((cause.querySelector(".words") || {}).textContent || "").toLowerCase()]));
  for (const item of items) item.text = `${item.element.id} ${item.element.textContent}`.toLowerCase();

  const pressed = () => new Set(tiles.filter((tile) => tile.getAttribute("aria-pressed") === "true").map((tile) => tile.dataset.outcome));
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), outcomes = pressed();
    const active = words.length || outcomes.size || family.value;
    const left = new Map();
    let count = 0;
    for (const item of items) {
      const fits = (!outcomes.size || outcomes.has(item.outcome)) && (!family.value || item.family === family.value)
        && words.every((word) => item.text.includes(word) || wordsOf.get(item.cause).includes(word));
      item.element.hidden = !fits;
      if (fits) { count += 1; left.set(item.cause, (left.get(item.cause) || 0) + 1); }
    }
    for (const cause of causes) {
      cause.hidden = !left.has(cause);
      cause.querySelector(".count").textContent = left.get(cause) || 0;
    }
    for (const section of all("section.outcome")) section.hidden = !section.querySelector(".cause:not([hidden])");
    for (const row of all(".held > dt")) row.hidden = row.nextElementSibling.hidden = !row.nextElementSibling.querySelector(".item:not([hidden])");
    shown.textContent = `${count} of ${items.length} items`;
    clear.hidden = !active;
  }
  let waiting;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
  family.addEventListener("change", filter);
  for (const tile of tiles) tile.addEventListener("click", () => {
    tile.setAttribute("aria-pressed", String(tile.getAttribute("aria-pressed") !== "true"));
    filter();
  });
  for (const cell of all(".matrix button")) cell.addEventListener("click", () => {
    for (const tile of tiles) tile.setAttribute("aria-pressed", String(tile.dataset.outcome === cell.dataset.outcome));
    family.value = cell.dataset.family;
    filter();
    one("#causes").scrollIntoView();
  });
  function everything() {
    search.value = family.value = "";
    for (const tile of tiles) tile.setAttribute("aria-pressed", "false");
    filter();
  }
  clear.addEventListener("click", everything);

  // The command of any item: a click on its name copies nothing; a button beside it does, made when it is first wanted.
  const command = JSON.parse(one("footer").dataset.command);
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);
  const rerun = (element) => [...command, "--profile", element.id].map(quoted).join(" ") + (element.dataset.ranks ? ` ${element.dataset.ranks}` : "");
  const offered = (event) => {
    const element = event.target.closest && event.target.closest(".item");
    if (!element || element.querySelector(".copy")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.dataset.copy = rerun(element);
    button.textContent = "copy rerun";
    element.querySelector("a").after(" ", button);
  };
  document.addEventListener("mouseover", offered);
  document.addEventListener("focusin", offered);

  // A link to an item opens the cause that it is in, and shows it whatever is filtered.
  function follow() {
    for (const element of all(".here")) element.classList.remove("here");
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch { /* as it stands */ }
    const element = name && document.getElementById(name);
    if (!element) return;
    if (element.hidden) everything();
    for (let each = element; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    element.classList.add("here");
    element.scrollIntoView({ block: "center" });
  }
  addEventListener("hashchange", follow);

  let at = -1;
  function step(by) {
    const open = causes.filter((cause) => !cause.hidden);
    if (!open.length) return;
    at = Math.min(Math.max(at + by, 0), open.length - 1);
    open[at].querySelector("summary").focus();
    open[at].scrollIntoView({ block: "start" });
  }
  addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape") { everything(); search.blur(); }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (event.key === "j") step(1);
    if (event.key === "k") step(-1);
  });

  // On paper nothing can be unfolded: what is red is printed open.
  addEventListener("beforeprint", () => { for (const cause of all(".violated .cause, .broken .cause")) cause.open = true; });

  filter();
  follow();
})();
