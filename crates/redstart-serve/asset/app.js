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

  // A search goes on by itself after what its page has read, until it is stopped, at its end, or has found enough.
  const searchOn = (section) => {
    const scanned = document.getElementById("scanned");
    const more = document.getElementById("more");
    const stop = document.getElementById("stop");
    const rows = section.querySelector("tbody");
    const here = new URL(more.href);
    const events = new EventSource(section.dataset.rest);
    const show = (text) => {
      scanned.textContent = `${text}; ${rows.children.length} shown.`;
    };
    const end = () => {
      events.close();
      stop.hidden = true;
    };
    stop.hidden = false;
    stop.addEventListener("click", () => {
      end();
      scanned.textContent += " Stopped.";
    });
    events.addEventListener("row", (event) => {
      const part = document.createElement("template");
      part.innerHTML = event.data;
      const row = part.content.firstElementChild;
      // After a lost connection some are sent again.
      if (row && !rows.querySelector(`[data-job="${CSS.escape(row.dataset.job)}"]`)) rows.append(row);
    });
    // The link goes on where the search is.
    const place = (event) => {
      here.searchParams.set("from", event.lastEventId);
      more.href = here.href;
    };
    events.addEventListener("progress", (event) => {
      place(event);
      show(event.data);
    });
    events.addEventListener("end", (event) => {
      const isOver = event.lastEventId === "";
      if (isOver) more.hidden = true;
      else place(event);
      show(event.data);
      section.dataset.state = "over";
      end();
    });
    events.addEventListener("problem", (event) => {
      end();
      scanned.textContent += ` ${event.data}`;
    });
  };

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    const search = document.querySelector("#search[data-rest]");
    if (search) searchOn(search);
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
