const data = JSON.parse(document.getElementById("data").textContent);
const { summary, series } = data;
const start = (data.start && data.start.start) || {};
const end = (data.start && data.start.end) || {};
const profile = data.profile || {};
const machine = (data.start && data.start.machine) || {};

function heading() {
  const began = summary.began ? `${summary.began.slice(0, 16).replace("T", " ")} UTC` : null;
  const version = data.start && data.start.version ? `rustyflow ${data.start.version}` : null;
  const line = [summary.state, began, version].filter(Boolean).join(" · ");
  const parts = [make("h1", {}, summary.name), make("p", { class: "muted" }, line)];
  if (data.start && data.start.error) parts.push(make("p", { class: "alert" }, data.start.error));
  for (const note of data.notes || []) parts.push(make("p", { class: "alert" }, note));
  return parts;
}

function figures() {
  const best = summary.best;
  const wall = profile.wall ? profile.wall.total : null;
  const of = summary.total_steps && summary.total_steps !== summary.steps && `of ${summary.total_steps}`;
  const epochs = summary.epochs !== null && `${fixed(summary.epochs, 2)} epochs`;
  const all = [
    best && ["validation loss", fixed(best.loss, 4), `best, at step ${best.step}`],
    best && best.perplexity !== null && ["perplexity", short(best.perplexity), "of the best"],
    best &&
      best.bits_per_byte !== null && [
        "bits per byte",
        fixed(best.bits_per_byte, 3),
        best.lossless ? "of the best" : "that can be decoded",
      ],
    best && best.reward_accuracy !== null && ["accuracy", `${fixed(100 * best.reward_accuracy, 1)}%`, "of the best"],
    best && best.reward_margin !== null && ["reward margin", short(best.reward_margin), "of the best"],
    summary.train_loss !== null && ["training loss", fixed(summary.train_loss, 4), "of the last logged step"],
    ["steps", String(summary.steps), [of, epochs].filter(Boolean).join(", ")],
    summary.tokens_per_s !== null && [
      "tokens per second",
      short(summary.tokens_per_s),
      summary.tokens ? `${short(summary.tokens)} tokens in all` : "",
    ],
    summary.training_seconds !== null && [
      "training time",
      duration(summary.training_seconds),
      [start.first_step > 0 && "in all processes", wall && `${duration(wall)} on the wall${start.first_step > 0 ? " since resumed" : ""}`]
        .filter(Boolean)
        .join(", "),
    ],
    summary.parameters !== null && [
      "parameters",
      short(summary.parameters),
      [summary.trained_parameters < summary.parameters && `${short(summary.trained_parameters)} trained`, start.precision]
        .filter(Boolean)
        .join(", "),
    ],
  ];
  const figure = ([name, value, more]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("b", {}, value), make("small", {}, more)));
  return [make("dl", { class: "figures" }, ...all.filter(Boolean).map(figure))];
}

// The loss, and below it what explains it, over a common axis.
function charts() {
  const axes = Object.keys(AXES).filter((name) => name !== "tokens" || data.tokens_per_step);
  const all = [];
  const { bar, values } = controls(
    [
      { name: "axis", label: "over", choices: axes, value: "step" },
      { name: "xLog", label: "logarithmic axis", value: false },
      { name: "yLog", label: "logarithmic loss", value: false },
      { name: "smooth", label: "smoothed", value: series.train.of > 60 },
    ],
    () => all.forEach((chart) => chart.paint()),
  );
  const axis = () => AXES[values.axis];
  const line = (name, from, i, more) => ({
    name,
    x: axis().of(from, data.tokens_per_step),
    y: from.values,
    colour: colour(i),
    ...more,
  });
  const common = () => ({ xName: axis().name, xFormat: axis().format, xTick: axis().tick, xLog: values.xLog });
  const along = (step, from) => {
    const i = from.steps.findIndex((other) => other >= step);
    return i < 0 ? null : axis().of(from, data.tokens_per_step)[i];
  };
  const losses = chart(() => ({
    ...common(),
    yLog: values.yLog,
    yFormat: (x) => fixed(x, 4),
    yTick: number,
    height: 340,
    series: values.smooth
      ? [
          line("raw", series.train, 0, { raw: true }),
          line("training, smoothed", series.smoothed, 0),
          line("validation", series.validation, 1, { dots: true }),
        ]
      : [line("training", series.train, 0), line("validation", series.validation, 1, { dots: true })],
    marks: [
      ...data.rollbacks.map((r) => ({
        back: true,
        x: along(r.step, series.train),
        text: "went back here",
        title: `from step ${r.from_step}: ${r.cause}`,
      })),
      ...(summary.best
        ? [
            {
              x: along(summary.best.step, series.validation),
              y: summary.best.loss,
              text: `best ${fixed(summary.best.loss, 4)}`,
            },
          ]
        : []),
    ],
  }));
  const small = (title, from, more) =>
    chart(() => ({ ...common(), title, height: 190, series: [line("", from, 0)], ...more }));
  all.push(
    losses,
    small("learning rate", series.learning_rate, { yFormat: number }),
    small("gradient norm", series.grad_norm, { yLog: true, yFormat: number }),
    small("tokens per second", series.tokens_per_s, { yFormat: short }),
  );
  if (series.reward_margin.values.some(isNumber)) {
    all.push(small("reward margin", series.reward_margin, { yFormat: number }));
  }
  const causes = data.rollbacks.map((r) =>
    make("p", { class: "note" }, `Went back from step ${r.from_step} to ${r.step}: ${r.cause}`),
  );
  return [
    make("h2", {}, "Loss"),
    bar,
    losses.figure,
    ...causes,
    make("div", { class: "small-charts" }, ...all.slice(1).map((chart) => chart.figure)),
    thinned(Object.values(series)),
  ];
}

// Parts of a whole, as a bar and in words.
function stack(parts, total, of) {
  const shown = parts.filter(([, seconds]) => isNumber(seconds) && seconds > 0);
  const share = (seconds) => `${((100 * seconds) / total).toFixed(1)}%`;
  return [
    make(
      "div",
      { class: "stack", role: "img", "aria-label": of },
      ...shown.map(([name, seconds, i]) =>
        make("div", {
          style: `flex:${seconds / total};background:${colour(i)}`,
          title: `${name} ${duration(seconds)}, ${share(seconds)}`,
        }),
      ),
    ),
    make(
      "ul",
      { class: "parts" },
      ...shown.map(([name, seconds, i]) =>
        make(
          "li",
          {},
          make("span", { class: "swatch", style: `background:${colour(i)}` }),
          `${name} ${duration(seconds)} `,
          make("span", { class: "muted" }, share(seconds)),
        ),
      ),
    ),
  ];
}

function time() {
  if (!profile.kernels && !data.profile_text) return [];
  if (!profile.kernels) return [make("h2", {}, "Where the time went"), make("pre", {}, data.profile_text)];
  const parts = [make("h2", {}, "Where the time went")];
  if (start.first_step > 0)
    parts.push(make("p", { class: "note" }, `Since step ${start.first_step}, where the run was resumed last.`));
  if (profile.wall) {
    // The longest first; what is unaccounted for last, in grey.
    const rest = (name) => name === "unaccounted";
    const phases = profile.wall.phases
      .toSorted((a, b) => rest(a[0]) - rest(b[0]) || b[1] - a[1])
      .map(([name, seconds], i) => [name === "text" ? "text and tokens" : name, seconds, rest(name) ? 7 : i]);
    parts.push(
      make("h3", {}, `The whole run: ${duration(profile.wall.total)}`),
      ...stack(phases, profile.wall.total, "the run's time by phase"),
    );
  }
  const host = profile.host || {};
  const kernels = [
    [`${profile.device} kernels`, profile.kernel_seconds, 0],
    ...["data", "compile", "encode", "wait", "other"].map((name, i) => [`host: ${name}`, host[name], i + 1]),
  ];
  const total = profile.training_seconds;
  parts.push(
    make("h3", {}, `Training: ${duration(total)}`),
    ...stack(kernels, total, "the time of training by kernels and host"),
  );
  const memory = profile.memory;
  if (memory && memory.peak_bytes) {
    const kinds = Object.entries(memory.peak_by_kind || {}).map(
      ([name, bytes]) => `${name.replace("_", " ")} ${size(bytes)}`,
    );
    parts.push(make("p", { class: "note" }, `${profile.device} memory: ${size(memory.peak_bytes)} at most: ${kinds.join(", ")}.`));
  }
  parts.push(...kernelTable(profile.kernels));
  return parts;
}

function kernelTable(kernels) {
  if (kernels.length === 0) return [];
  const FIRST = 10;
  const most = kernels[0].share || 1;
  const row = (k) => [
    k.name,
    duration(k.seconds),
    `${(100 * k.share).toFixed(1)}%`,
    make("td", { class: "share" }, make("i", { style: `width:${(100 * k.share) / most}%` })),
    short(k.calls),
    number(k.tflops),
    number(k.gb_per_s),
  ];
  const part = (some) =>
    table(["kernel", "time", "share", "", "calls", "TFLOP/s", "GB/s"], some.map(row), (i) => i > 0 && i !== 3);
  const parts = [make("h3", {}, "Kernels"), part(kernels.slice(0, FIRST))];
  if (kernels.length > FIRST)
    parts.push(
      make("details", {}, make("summary", {}, `${kernels.length - FIRST} more kernels`), part(kernels.slice(FIRST))),
    );
  if (profile.sampled)
    parts.push(
      make("p", { class: "note" }, "Times by kernel come from sampled steps, as shares of the GPU time of all steps."),
    );
  return parts;
}

function samples() {
  if (data.samples.length === 0 && !data.last_sample) return [];
  const loss = new Map(series.validation.steps.map((step, i) => [step, series.validation.values[i]]));
  const show = (s) =>
    make(
      "figure",
      { class: "sample" },
      make(
        "figcaption",
        {},
        `step ${s.step}${isNumber(loss.get(s.step)) ? ` · validation loss ${fixed(loss.get(s.step), 4)}` : ""}`,
      ),
      make("p", {}, s.text.trim() || "(nothing but white space)"),
    );
  const SHOWN = 5;
  const count = data.samples.length;
  const spread =
    count <= SHOWN
      ? data.samples
      : Array.from({ length: SHOWN }, (_, i) => data.samples[Math.round((i * (count - 1)) / (SHOWN - 1))]);
  const parts = [make("h2", {}, "What it wrote"), ...spread.map(show)];
  if (count > SHOWN) {
    const all =
      data.samples_of > count ? `${count} of ${data.samples_of} samples, evenly spread` : `All ${count} samples`;
    parts.push(make("details", {}, make("summary", {}, all), ...data.samples.map(show)));
  }
  if (data.last_sample)
    parts.push(
      make("figure", { class: "sample" }, make("figcaption", {}, "at the end"), make("p", {}, data.last_sample.trim())),
    );
  return parts;
}

function setting() {
  const m = start.model || {};
  const sizes = `${m.n_layer} layers, ${m.n_head} heads, width ${m.n_embd}`;
  const shape = m.n_layer ? `${m.kind || ""}: ${sizes}, context ${m.block_size}, vocabulary ${m.vocab_size}` : null;
  const cores = machine.physical_cores ? `, ${machine.physical_cores} cores (${machine.logical_cores} logical)` : "";
  return [
    make("h2", {}, "Setting"),
    facts([
      ["model", shape],
      [
        "corpus",
        [
          summary.corpus,
          start.train_tokens && `${short(start.train_tokens)} training tokens`,
          start.validation_tokens && `${short(start.validation_tokens)} validation tokens`,
        ]
          .filter(Boolean)
          .join(", "),
      ],
      ["tokenizer", summary.tokenizer],
      ["batch", data.tokens_per_step && `${short(data.tokens_per_step)} tokens learned from a step`],
      ["device", summary.device],
      ["precision", summary.precision],
      ["machine", machine.os && `${machine.os}, ${machine.arch}${cores}`],
      ["memory", end.peak_memory_bytes ? `${size(end.peak_memory_bytes)} of tensors at most` : null],
    ]),
  ];
}

// config.toml as it is written, with what nobody set in grey.
function configuration() {
  const text = make("pre");
  const lines = data.config.split("\n");
  const search = make("input", { type: "search", placeholder: "search", "aria-label": "search the configuration" });
  const set = make("input", { type: "checkbox" });
  const isDefault = (line) => /# default(:|$)/.test(line.trimEnd());
  function show() {
    const wanted = search.value.trim().toLowerCase();
    const section = (line) => line.startsWith("[");
    const kept = lines.filter(
      (line) =>
        line.trim() !== "" &&
        !line.startsWith("#") &&
        (section(line) || (line.toLowerCase().includes(wanted) && !(set.checked && isDefault(line)))),
    );
    const last = kept.filter((line, i) => !section(line) || (i + 1 < kept.length && !section(kept[i + 1])));
    text.replaceChildren(
      ...last.map((line) => {
        const kind = section(line) ? "section" : isDefault(line) ? "default" : "";
        const at = line.lastIndexOf("  # ");
        return at < 0 || kind === "default"
          ? make("span", { class: kind }, line)
          : make("span", { class: kind }, line.slice(0, at), make("span", { class: "from" }, line.slice(at)));
      }),
    );
  }
  search.addEventListener("input", show);
  set.addEventListener("change", show);
  show();
  return [
    make("h2", {}, "Configuration"),
    make("div", { class: "controls" }, search, make("label", {}, set, "only what was set")),
    text,
  ];
}

show([heading, figures, charts, time, samples, setting, configuration]);
