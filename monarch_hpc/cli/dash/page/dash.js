// The page of `monarch-hpc dash`. All text comes from programs, and is only ever set as text.
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);
  const saved = $("saved") ? JSON.parse($("saved").textContent) : null;
  const MAX_HEIGHT = 420;
  const view = { procs: [], plan: null, chosen: null, charts: [], cursors: new Map() };

  function make(tag, text, name) {
    const found = document.createElement(tag);
    if (text !== undefined) found.textContent = text;
    if (name) found.className = name;
    return found;
  }

  function setStatus(text, bad) {
    $("status").textContent = text;
    $("status").className = bad ? "bad" : "";
  }

  function table(columns, rows, none, bad) {
    if (!rows.length) return make("p", none, "none");
    const found = make("table");
    const head = found.createTHead().insertRow();
    for (const column of columns) {
      const cell = make("th", column);
      cell.scope = "col";
      head.append(cell);
    }
    const body = found.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((value, at) => {
        line.insertCell().textContent = value === null ? "" : String(value);
        if (bad && bad(row)) line.cells[at].className = "bad";
      });
    }
    return found;
  }

  function age(seconds) {
    if (!seconds) return "";
    if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
    return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  }

  function size(bytes) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (bytes >= 1000 && at < 4) [bytes, at] = [bytes / 1000, at + 1];
    return `${bytes.toPrecision(3)} ${units[at]}`;
  }

  // ---- ranks ----

  const same = (one, other) => one && other && one.key === other.key;
  const nameOf = (proc) => (proc.mesh < 0 ? "program" : `rank ${proc.rank}`);

  function readProcs(rows) {
    return rows.map(([allocation, run, mesh, rank, host, pid, state, cause, cpu, rss]) => ({
      allocation, run, mesh, rank, host, pid, state, cause, cpu, rss,
      key: JSON.stringify([allocation, run, mesh, rank, mesh < 0 ? [host, pid] : 0]),
    }));
  }

  function showPicture(picture) {
    view.procs = readProcs(picture.procs);
    const counts = new Map();
    for (const proc of view.procs) counts.set(proc.state, (counts.get(proc.state) || 0) + 1);
    const hosts = new Set(view.procs.map((proc) => `${proc.allocation}/${proc.host}`)).size;
    $("counts").textContent = `${view.procs.length} processes on ${hosts} hosts`;
    setStatus(`${saved ? "saved" : "as of"} ${saved ? new Date(picture.t * 1000).toLocaleString() : timeOf(picture.t)}`, false);
    $("legend").replaceChildren(...STATES.filter((state) => counts.has(state)).map((state) => {
      const item = make("li");
      const sign = make("canvas");
      sign.width = sign.height = 16;
      drawSign(sign.getContext("2d"), state, 0, 0, 16);
      item.append(sign, make("span", `${counts.get(state)} ${state}`));
      return item;
    }));
    const lines = picture.warnings.map((text) => make("li", text));
    if ($("warnings").textContent !== picture.warnings.join("")) $("warnings").replaceChildren(...lines);
    if (view.chosen) view.chosen = view.procs.find((proc) => same(proc, view.chosen)) || null;
    drawRanks();
    showChosen();
    const rows = picture.actors.map((row) => [
      row.actor, row.proc, row.state, row.endpoint + (row.num_running > 1 ? ` and ${row.num_running - 1} more` : ""),
      age(row.runs_s), row.caller, row.waits_for, age(row.waits_s), row.num_queued || "",
    ]);
    if (picture.more_actors) rows.push([`and ${picture.more_actors} more`, "", "", "", "", "", "", "", ""]);
    const columns = ["actor", "proc", "state", "runs", "for", "called by", "waits for", "since", "queued"];
    $("calls").replaceChildren(table(columns, rows, "no call is running", (row) => row[2].startsWith("failed")));
  }

  function drawRanks() {
    const canvas = $("grid");
    const groups = new Map();
    for (const proc of view.procs) {
      const label = proc.mesh < 0 ? `${proc.run}: program` : `${proc.run}: procs of mesh ${proc.mesh}`;
      const name = `${proc.allocation} ${label}`;
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(proc);
    }
    view.plan = layOut(groups, canvas.clientWidth, MAX_HEIGHT);
    drawGrid(canvas, view.plan, view.plan.cells.find((cell) => same(cell.proc, view.chosen)));
  }

  function showChosen() {
    const proc = view.chosen;
    $("show-stack").disabled = !proc || Boolean(saved) || proc.mesh < 0;
    $("show-logs").disabled = !proc;
    if (!proc) return;
    const words = [
      `${nameOf(proc)} of run ${proc.run} on ${proc.host}`, proc.pid ? `pid ${proc.pid}` : "", proc.state, proc.cause,
      proc.cpu === null ? "" : `${Math.round(proc.cpu * 100)} % of a core`, proc.rss ? size(proc.rss) : "",
    ];
    const text = words.filter(Boolean).join(", ");
    if ($("chosen").textContent !== text) $("chosen").textContent = text;
  }

  function choose(proc) {
    if (!proc) return;
    view.chosen = proc;
    drawRanks();
    showChosen();
  }

  $("grid").addEventListener("click", (event) => {
    const { cells, size: side } = view.plan || { cells: [] };
    const inside = (at, from) => at >= from && at < from + side;
    const found = cells.find((cell) => inside(event.offsetX, cell.x) && inside(event.offsetY, cell.y));
    if (found) choose(found.proc);
  });

  $("grid").addEventListener("keydown", (event) => {
    if (!view.plan || event.ctrlKey || event.metaKey || event.altKey) return;
    const { cells, columns } = view.plan;
    const at = cells.findIndex((cell) => same(cell.proc, view.chosen));
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -cells.length, End: cells.length };
    if (event.key in steps && cells.length) {
      const to = at < 0 ? 0 : Math.min(Math.max(at + steps[event.key], 0), cells.length - 1);
      choose(cells[to].proc);
    } else if (event.key === "s" && !$("show-stack").disabled) showText("stack");
    else if (event.key === "l" && view.chosen) showText("logs");
    else return;
    event.preventDefault();
  });

  // ---- output and stacks ----

  async function showText(what) {
    const proc = view.chosen;
    if (!proc) return;
    $("text-of").textContent = `${what === "stack" ? "stacks" : "end of the output"} of ${nameOf(proc)} of run ${proc.run}`;
    if (saved) {
      const found = saved.logs[`${proc.allocation}/${proc.run}/${proc.mesh < 0 ? -1 : proc.rank}`];
      $("text").textContent = found || "its output was not saved";
      return;
    }
    $("text").textContent = "asking the host";
    const place = { ...proc, rank: what === "logs" && proc.mesh < 0 ? -1 : proc.rank };
    const names = ["allocation", "run", "mesh", "rank", "host", "pid"];
    const query = new URLSearchParams(names.map((name) => [name, place[name]]));
    const answer = await fetchJson(`api/${what}?${query}`);
    if (same(proc, view.chosen)) {
      $("text").textContent = answer.text === undefined ? answer.error : answer.text;
      $("text").scrollTop = what === "logs" ? $("text").scrollHeight : 0;
    }
  }

  async function fetchJson(address, body) {
    try {
      const order = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
      return await (await fetch(address, { credentials: "same-origin", ...order })).json();
    } catch (error) {
      return { error: `the dashboard does not answer: ${error.message}` };
    }
  }

  $("show-stack").addEventListener("click", () => showText("stack"));
  $("show-logs").addEventListener("click", () => showText("logs"));

  // ---- metrics and failures ----

  function showHistory(history) {
    view.charts = history.charts;
    const place = $("charts");
    const known = new Map([...place.children].map((one) => [one.dataset.key, one]));
    const figures = view.charts.map((chart) => {
      const key = `${chart.steps ? "step" : "time"} ${chart.name}`;
      const figure = known.get(key) || newFigure(key);
      const odd = chart.odd ? `; ${chart.odd} values are infinite or not a number` : "";
      const many = chart.band.length ? `: lowest, median and highest of ${chart.num_series}, and ${chart.lines.length} that differ` : "";
      figure.firstChild.textContent = `${chart.name} by ${chart.steps ? "step" : "time"}${many}${odd}`;
      figure.chart = chart;
      return figure;
    });
    if (figures.length) place.replaceChildren(...figures);
    else place.replaceChildren(make("p", "no metric: programs write them by log_metric(name, value, step=)", "none"));
    figures.forEach(drawFigure);
    const rows = history.failures.map((one) => [one.t === null ? "" : timeOf(one.t), one.where, one.who, one.what, one.line]);
    $("failures").replaceChildren(table(["time", "where", "what", "cause", "line"], rows, "nothing has failed", () => true));
  }

  function newFigure(key) {
    const figure = make("figure");
    const canvas = make("canvas");
    figure.dataset.key = key;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${key}: left and right read values`);
    const reading = make("p");
    reading.setAttribute("aria-live", "polite");
    figure.append(make("figcaption"), canvas, reading);
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
      if (!(event.key in steps) || !figure.drawn) return;
      const last = figure.drawn.xs.length - 1;
      const from = view.cursors.get(key) ?? last;
      view.cursors.set(key, Math.min(Math.max(from + steps[event.key], 0), last));
      drawFigure(figure);
      event.preventDefault();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!figure.drawn) return;
      const gaps = figure.drawn.xs.map((x) => Math.abs(figure.drawn.toX(x) - event.offsetX));
      view.cursors.set(key, gaps.indexOf(Math.min(...gaps)));
      drawFigure(figure);
    });
    canvas.addEventListener("pointerleave", () => {
      view.cursors.delete(key);
      drawFigure(figure);
    });
    return figure;
  }

  function drawFigure(figure) {
    const { chart } = figure;
    const cursor = view.cursors.get(figure.dataset.key) ?? null;
    figure.children[1].hidden = !chart.lines.some((line) => line[1].length);
    figure.drawn = figure.children[1].hidden ? null : drawChart(figure.children[1], chart, cursor);
    figure.lastChild.textContent = figure.drawn ? reading(chart, figure.drawn.xs, cursor) : "";
  }

  function reading(chart, xs, cursor) {
    const x = cursor === null ? null : xs[Math.min(cursor, xs.length - 1)];
    const words = x === null ? [] : [chart.steps ? `step ${x}` : timeOf(x)];
    const place = chart.band.find((one) => one[0] === x);
    if (place) words.push(`lowest ${shown(place[1])}, median ${shown(place[2])}, highest ${shown(place[3])}`);
    for (const [label, points] of chart.lines) {
      const point = x === null ? points[points.length - 1] : points.find((one) => one[0] === x);
      if (point) words.push(`${label} ${shown(point[1])}`);
    }
    return words.join("; ");
  }

  // ---- SQL ----

  async function ask() {
    const name = $("asked").value;
    $("sql-status").textContent = "asking the hosts";
    $("ask").disabled = true;
    const answer = await fetchJson("api/query", name ? { ask: name } : { sql: $("sql").value });
    $("ask").disabled = false;
    if (answer.error !== undefined) {
      $("sql-status").textContent = answer.error;
      $("answer").replaceChildren();
      return;
    }
    const missing = answer.missing.length ? `; without ${answer.missing.join(", ")}` : "";
    const cut = answer.cut.length ? `; only the latest records of ${answer.cut.join(", ")}` : "";
    const more = answer.num_rows > answer.rows.length ? `, of which ${answer.rows.length} are shown` : "";
    $("sql-status").textContent = `${answer.num_rows} rows${more}${missing}${cut}`;
    if (name) $("sql").value = answer.sql;
    $("answer").replaceChildren(table(answer.columns, answer.rows, "no row"));
  }

  $("ask").addEventListener("click", ask);
  $("sql").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
  });
  $("sql").addEventListener("input", () => { $("asked").value = ""; });

  function showAbout(about) {
    const options = Object.entries(about.questions).map(([name, text]) => {
      const option = make("option", `${name}: ${text}`);
      option.value = name;
      return option;
    });
    $("asked").replaceChildren($("asked").firstElementChild, ...options);
  }

  // ---- the connection ----

  function redraw() {
    if (view.plan) drawRanks();
    for (const figure of $("charts").querySelectorAll("figure")) drawFigure(figure);
  }

  function connect() {
    const events = new EventSource("api/events");
    const on = (name, show) => events.addEventListener(name, (event) => show(JSON.parse(event.data)));
    on("about", showAbout);
    on("picture", showPicture);
    on("history", showHistory);
    on("problem", (problem) => setStatus(problem.text, true));
    events.onerror = () => {
      const ended = events.readyState === EventSource.CLOSED;
      setStatus(ended ? "not connected: open the address that 'monarch-hpc dash' printed" : "connection lost; retrying", true);
    };
  }

  async function begin() {
    showChosen();
    window.addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    if (saved) {
      $("sql-part").hidden = true;
      showPicture(saved.picture);
      showHistory(saved.history);
      return;
    }
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (token) {
      history.replaceState(null, "", location.pathname + location.search);
      const answer = await fetchJson("session", { token });
      if (answer.error) {
        setStatus(answer.error, true);
        return;
      }
    }
    connect();
  }

  begin();
})();
