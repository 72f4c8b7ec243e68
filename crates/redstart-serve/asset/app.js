// What the pages do with JavaScript on top of what they do without: live parts, local times, copying, trying the API.
(() => {
  "use strict";
  const base = document.documentElement.dataset.base || "";
  const root = document.documentElement;

  // The theme that the reader chose, before anything is shown.
  const theme = localStorage.getItem("redstart-theme");
  if (theme) root.dataset.theme = theme;

  const localTimes = (within) => {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const at = new Date(time.getAttribute("datetime"));
      if (!Number.isNaN(at.valueOf())) {
        time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
        time.title = at.toISOString();
      }
    }
  };

  const say = (text) => {
    const status = document.getElementById("status");
    if (status) status.textContent = text;
  };

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      await navigator.clipboard.writeText(copy.dataset.copy);
      say("Copied");
    }
    if (event.target.closest("#theme")) {
      const dark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("redstart-theme", root.dataset.theme);
    }
  });

  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form[data-try]");
    if (!form) return;
    event.preventDefault();
    const out = form.querySelector("output");
    const method = form.dataset.try;
    const body = form.elements.body ? form.elements.body.value : undefined;
    const begun = performance.now();
    try {
      const reply = await fetch(form.elements.path.value, {
        method,
        body: method === "GET" ? undefined : body || undefined,
        headers: body ? { "content-type": "application/json" } : {},
      });
      const text = await reply.text();
      out.textContent = `${reply.status} in ${Math.round(performance.now() - begun)} ms\n${text}`;
    } catch (error) {
      out.textContent = String(error);
    }
  });

  // `/` goes to the search field, `g` and a letter to a screen.
  let prefix = false;
  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      const field = document.querySelector("input[type=search]");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    } else if (event.key === "g") {
      prefix = true;
    } else if (prefix) {
      prefix = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    }
  });

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    document.body.addEventListener("htmx:afterSwap", () => localTimes(document));
    if (!document.getElementById("live")) return;
    const beat = document.getElementById("beat");
    const pulse = document.getElementById("pulse");
    const show = (state, text) => {
      if (beat) beat.dataset.state = state;
      // Only a change is spoken by a screen reader.
      if (pulse && pulse.textContent !== text) pulse.textContent = text;
    };
    // Replacing the part would take the focus away and close what is open.
    const inUse = () => {
      const live = document.getElementById("live");
      return live.contains(document.activeElement) || live.querySelector("details[open]") !== null;
    };
    const listen = () => {
      const events = new EventSource(`${base}/live`);
      events.addEventListener("tick", () => {
        if (inUse()) return show("held", "waits while you are in the table");
        show("on", "live");
        if (!document.hidden) document.body.dispatchEvent(new Event("tick"));
      });
      events.addEventListener("error", () => {
        show("off", "stopped, trying again");
        if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
      });
    };
    listen();
  });
})();
