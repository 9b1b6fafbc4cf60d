// Rows of a table by their number, and the table's gradient (src/ops/embedding.rs).
{{ interface }}

{% if mode == "forward" %}
// One thread per {{ T }} of the result.

{{ for_each(1) }}
    let row = ids[i / params.width] - params.first;
    {% if keep %}
    if (row >= params.vocabulary) { return; }
    {% endif %}
    var value = {{ T }}(params.nan);
    if (row < params.vocabulary) {
        value = table[row * params.width + i % params.width];
    }
    {% if positions %}
    let position = params.start + i / params.width % params.tokens;
    value += positions[position * params.width + i % params.width];
    {% endif %}
    result[i] = value;
}

{% elif mode == "zero" %}
// One thread per element.

{{ for_each(1) }}
    result[i] = 0.0;
}

{% elif mode == "sort" %}
// Sorts blocks of {{ block }} positions by (id, position): a position's place is how many of its block come before it.
// A workgroup places {{ block // sorters }} positions of a block. Every four of these share 32 threads, each of which
// compares them with 32 positions of the block. Ids outside the table count as one and the same, and so do the places
// of the last block beyond the last position.
// (id, position).

var<workgroup> block: array<vec4<u32>, 256>;
var<workgroup> counts: array<vec4<u32>, 256>;

fn id_of(position: u32) -> u32 {
    if (position >= params.positions) { return params.vocabulary; }
    {% if some_rows %}
    // The table has the rows of some ids only.
    let id = ids[position];
    if (id >= params.ids_in_all) { return params.vocabulary; }
    return min(row_of[id], params.vocabulary);
    {% else %}
    // Before the first wraps around to beyond the last.
    return min(ids[position] - params.first, params.vocabulary);
    {% endif %}
}

{{ entry(256) }}
    let first = workgroup / {{ sorters }}u * {{ block }}u;
    let loaded = first + 4u * thread;
    block[thread] = vec4<u32>(id_of(loaded), id_of(loaded + 1u), id_of(loaded + 2u), id_of(loaded + 3u));
    workgroupBarrier();
    let four = workgroup % {{ sorters }}u * 8u + thread / 32u;
    let own = block[four];
    let zero = vec4<u32>(0u);
    let one = vec4<u32>(1u);
    var before = zero;
    {% for i in range(8) %}
    {
        let at = thread % 32u + {{ 32 * i }}u;
        let other = block[at];
        // Of equal ids those of earlier positions come first.
        let bound = own + select(0u, 1u, at < four);
        before += (select(zero, one, vec4<u32>(other.x) < bound) + select(zero, one, vec4<u32>(other.y) < bound))
            + (select(zero, one, vec4<u32>(other.z) < bound) + select(zero, one, vec4<u32>(other.w) < bound));
    }
    {% endfor %}
    counts[thread] = before;
    for (var half = 16u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread % 32u < half) { counts[thread] += counts[thread + half]; }
    }
    if (thread % 32u == 0u && first < params.positions) {
        // And so among the four themselves.
        let place = counts[thread] + vec4<u32>(
            0u,
            u32(own.x == own.y),
            u32(own.x == own.z) + u32(own.y == own.z),
            u32(own.x == own.w) + u32(own.y == own.w) + u32(own.z == own.w),
        );
        // What lies beyond the last position names it, so that there is something to read.
        let named = min(first + 4u * four + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.positions - 1u));
        {% for i in "xyzw" %}
        blocks[first + place.{{ i }}] = vec2<u32>(own.{{ i }}, named.{{ i }});
        {% endfor %}
    }
}

{% elif mode == "place" %}
// Merges the sorted blocks: a pair's place among all is that in its own block and how many of each other block come
// before it. Four threads share a pair and search four blocks at a time each.

var<workgroup> counts: array<u32, 256>;

fn ids_at(place: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(blocks[place.x].x, blocks[place.y].x, blocks[place.z].x, blocks[place.w].x);
}

// How many ids of the block that starts at `first` are below `bound`: four searches at once, halving what is left.
fn smaller(first: vec4<u32>, bound: vec4<u32>) -> vec4<u32> {
    let zero = vec4<u32>(0u);
    var found = zero;
    for (var half = {{ block // 2 }}u; half > 0u; half /= 2u) {
        found += select(zero, vec4<u32>(half), ids_at(first + found + (half - 1u)) < bound);
    }
    return found + select(zero, vec4<u32>(1u), ids_at(first + found) < bound);
}

{{ entry(256) }}
    // Workgroups beyond the last pair repeat it.
    let place = min(workgroup * 64u + thread / 4u, {{ block }}u * params.count - 1u);
    let own = blocks[place];
    let block = vec4<u32>(place / {{ block }}u);
    let end = vec4<u32>(params.count);
    let zero = vec4<u32>(0u);
    var before = zero;
    for (var first = 4u * (thread % 4u); first < params.count; first += 16u) {
        let other = first + vec4<u32>(0u, 1u, 2u, 3u);
        // Of equal ids those of the earlier blocks come first.
        let bound = own.x + select(zero, vec4<u32>(1u), other < block);
        let found = smaller({{ block }}u * min(other, end - 1u), bound);
        before += select(zero, found, (other < end) & (other != block));
    }
    counts[thread] = before.x + before.y + before.z + before.w;
    workgroupBarrier();
    if (thread % 4u == 0u) {
        let others = counts[thread] + counts[thread + 1u] + counts[thread + 2u] + counts[thread + 3u];
        sorted[place % {{ block }}u + others] = own;
    }
}

{% elif mode in ["add", "join"] %}
{% if mode == "add" %}
// Adds up the gradients of equal ids. One thread per chunk of sorted places, whose length is a multiple of eight, and
// {{ T }} of a row; it walks the chunk in order. A run of equal ids that begins in the chunk is added to the table, so
// that a row has one chunk that writes it; what a run from an earlier chunk has here goes to `partials` (chunks, C).
{% else %}
// Adds to the table the partials of each run that goes on beyond the chunk where it begins, in the order of the chunks.
// One thread per chunk and {{ T }} of a row: it works if its chunk has the first partial sum of a run.
{% endif %}

{{ entry(64) }}
    let number = workgroup * 64u + thread;
    let chunk = number / params.width;
    let column = number % params.width;
    if (chunk >= params.chunks) { return; }
    let first = chunk * params.chunk;
    {% if mode == "add" %}
    var id = sorted[first].x;
    var begun_before = false;
    if (chunk > 0u) { begun_before = sorted[first - 1u].x == id; }
    var total = {{ T }}(0.0);
    for (var place = first; place < first + params.chunk; place += 8u) {
        // Eight rows on their way at a time.
        {% for j in range(8) %}
        let at{{ j }} = sorted[place + {{ j }}u];
        {% endfor %}
        {% for j in range(8) %}
        let dy{{ j }} = grad_output[at{{ j }}.y * params.width + column];
        {% endfor %}
        {% for j in range(8) %}
        if (at{{ j }}.x != id) {
            finish(chunk, column, id, begun_before, total);
            id = at{{ j }}.x;
            begun_before = false;
            total = {{ T }}(0.0);
        }
        total += dy{{ j }};
        {% endfor %}
    }
    finish(chunk, column, id, begun_before, total);
    {% else %}
    if (chunk == 0u) { return; }
    let id = sorted[first].x;
    if (id >= params.vocabulary || sorted[first - 1u].x != id) { return; }
    // The chunk before has a partial sum of the same run.
    if (chunk > 1u) {
        if (sorted[first - params.chunk - 1u].x == id) { return; }
    }
    var total = {{ T }}(0.0);
    var more = true;
    for (var next = chunk; more; next += 8u) {
        // Eight partials on their way at a time, those beyond the run for nothing.
        {% for j in range(8) %}
        let chunk{{ j }} = min(next + {{ j }}u, params.chunks - 1u);
        let same{{ j }} = sorted[chunk{{ j }} * params.chunk].x == id && next + {{ j }}u < params.chunks;
        let partial{{ j }} = partials[chunk{{ j }} * params.width + column];
        {% endfor %}
        {% for j in range(8) %}
        total += select({{ T }}(0.0), partial{{ j }}, same{{ j }});
        {% endfor %}
        more = same7;
    }
    table[id * params.width + column] += total;
    {% endif %}
}

{% if mode == "add" %}
fn finish(chunk: u32, column: u32, id: u32, begun_before: bool, total: {{ T }}) {
    if (begun_before) {
        partials[chunk * params.width + column] = total;
    } else if (id < params.vocabulary) {
        table[id * params.width + column] += total;
    }
}
{% endif %}
{% endif %}
