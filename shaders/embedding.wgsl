// Rows of a table by their number, and the table's gradient (src/ops/embedding.rs).
{% include "common" %}

{% if mode == "forward" %}
// One thread per {{ T }} of the result.
struct Params { len: u32, width: u32, vocabulary: u32, nan: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> table: array<{{ T }}>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<{{ T }}>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i >= p.len) { return; }
    let row = ids[i / p.width];
    var value = {{ T }}(p.nan);
    if (row < p.vocabulary) {
        value = table[row * p.width + i % p.width];
    }
    result[i] = value;
}

{% elif mode == "zero" %}
// One thread per element.
struct Params { len: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i < p.len) { result[i] = 0.0; }
}

{% elif mode == "sort" %}
// Sorts blocks of 1024 positions by (id, position). A workgroup has a block, a thread four of its positions. Runs of 1,
// 2, 4.. places are merged in pairs: an id's new place is that in its own run and how many of the other run come before
// it. Ids outside the table count as one and the same, and so do the places of the last block beyond the last position.
struct Params { positions: u32, vocabulary: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> ids: array<u32>;
// (id, position).
@group(0) @binding(1) var<storage, read_write> blocks: array<vec2<u32>>;

var<workgroup> runs: array<u32, 1024>;

fn id_at(place: u32) -> u32 {
    return runs[place];
}

fn id_of(position: u32) -> u32 {
    if (position < p.positions) { return min(ids[position], p.vocabulary); }
    return p.vocabulary;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let first = 1024u * workgroup_number(id, count);
    var place = vec4<u32>(0u, 256u, 512u, 768u) + thread;
    let position = first + place;
    let own = vec4<u32>(id_of(position.x), id_of(position.y), id_of(position.z), id_of(position.w));
    for (var run = 1u; run < min(p.positions, 1024u); run *= 2u) {
        {% for i in "xyzw" %}
        runs[place.{{ i }}] = own.{{ i }};
        {% endfor %}
        workgroupBarrier();
        // Of equal ids those of the earlier run come first: for one in the later run (1), they count as smaller.
        let later = place / run % 2u;
        let pair = place - place % (2u * run);
        place = pair + place % run + smaller(pair + (1u - later) * run, run, own + later);
        workgroupBarrier();
    }
    // What lies beyond the last position names it, so that there is something to read.
    let named = min(position, vec4<u32>(p.positions - 1u));
    if (first < p.positions) {
        {% for i in "xyzw" %}
        blocks[first + place.{{ i }}] = vec2<u32>(own.{{ i }}, named.{{ i }});
        {% endfor %}
    }
}

{% elif mode == "place" %}
// Merges the sorted blocks: a pair's place among all is that in its own block and how many of each other block come
// before it. Four threads share a pair and search four blocks at a time each.
struct Params { count: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> blocks: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> sorted: array<vec2<u32>>;

var<workgroup> counts: array<u32, 256>;

fn id_at(place: u32) -> u32 {
    return blocks[place].x;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    // Workgroups beyond the last pair repeat it.
    let place = min(workgroup_number(id, count) * 64u + thread / 4u, 1024u * p.count - 1u);
    let own = blocks[place];
    let block = vec4<u32>(place / 1024u);
    let end = vec4<u32>(p.count);
    let zero = vec4<u32>(0u);
    var before = zero;
    for (var first = 4u * (thread % 4u); first < p.count; first += 16u) {
        let other = first + vec4<u32>(0u, 1u, 2u, 3u);
        // Of equal ids those of the earlier blocks come first.
        let bound = own.x + select(zero, vec4<u32>(1u), other < block);
        let found = smaller(1024u * min(other, end - 1u), 1024u, bound);
        before += select(zero, found, (other < end) & (other != block));
    }
    counts[thread] = before.x + before.y + before.z + before.w;
    workgroupBarrier();
    if (thread % 4u == 0u) {
        let others = counts[thread] + counts[thread + 1u] + counts[thread + 2u] + counts[thread + 3u];
        sorted[place % 1024u + others] = own;
    }
}

{% elif mode in ["add", "join"] %}
{% if mode == "add" %}
// Adds up the gradients of equal ids. One thread per chunk of sorted places, whose length is a multiple of eight, and
// {{ T }} of a row; it walks the chunk in order. A run of equal ids that begins in the chunk is added to the table, so
// that a row has one chunk that writes it; what a run from an earlier chunk has here goes to `pieces` (chunks, C).
{% else %}
// Adds to the table the pieces of each run that goes on beyond the chunk where it begins, in the order of the chunks.
// One thread per chunk and {{ T }} of a row: it works if its chunk has the first piece of a run.
{% endif %}
struct Params { width: u32, chunks: u32, chunk: u32, vocabulary: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> sorted: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> table: array<{{ T }}>;
{% if mode == "add" %}
@group(0) @binding(2) var<storage, read_write> pieces: array<{{ T }}>;
@group(0) @binding(3) var<storage, read> upstream: array<{{ T }}>;
{% else %}
@group(0) @binding(2) var<storage, read> pieces: array<{{ T }}>;
{% endif %}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(group, count) * 64u + thread;
    let chunk = number / p.width;
    let column = number % p.width;
    if (chunk >= p.chunks) { return; }
    let first = chunk * p.chunk;
    {% if mode == "add" %}
    var id = sorted[first].x;
    var begun_before = false;
    if (chunk > 0u) { begun_before = sorted[first - 1u].x == id; }
    var total = {{ T }}(0.0);
    for (var place = first; place < first + p.chunk; place += 8u) {
        // Eight rows on their way at a time.
        {% for j in range(8) %}
        let at{{ j }} = sorted[place + {{ j }}u];
        {% endfor %}
        {% for j in range(8) %}
        let dy{{ j }} = upstream[at{{ j }}.y * p.width + column];
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
    if (id >= p.vocabulary || sorted[first - 1u].x != id) { return; }
    // The chunk before has a piece of the same run.
    if (chunk > 1u) {
        if (sorted[first - p.chunk - 1u].x == id) { return; }
    }
    var total = {{ T }}(0.0);
    var more = true;
    for (var next = chunk; more; next += 8u) {
        // Eight pieces on their way at a time, those beyond the run for nothing.
        {% for j in range(8) %}
        let chunk{{ j }} = min(next + {{ j }}u, p.chunks - 1u);
        let same{{ j }} = sorted[chunk{{ j }} * p.chunk].x == id && next + {{ j }}u < p.chunks;
        let piece{{ j }} = pieces[chunk{{ j }} * p.width + column];
        {% endfor %}
        {% for j in range(8) %}
        total += select({{ T }}(0.0), piece{{ j }}, same{{ j }});
        {% endfor %}
        more = same7;
    }
    table[id * p.width + column] += total;
    {% endif %}
}

{% if mode == "add" %}
fn finish(chunk: u32, column: u32, id: u32, begun_before: bool, total: {{ T }}) {
    if (begun_before) {
        pieces[chunk * p.width + column] = total;
    } else if (id < p.vocabulary) {
        table[id * p.width + column] += total;
    }
}
{% endif %}
{% endif %}

{% if mode in ["sort", "place"] %}
// How many ids of the sorted run of this length, a power of two, that starts at `first` are below `bound`: four searches
// at once, halving what is left.
fn smaller(first: vec4<u32>, length: u32, bound: vec4<u32>) -> vec4<u32> {
    let zero = vec4<u32>(0u);
    var found = zero;
    for (var half = length / 2u; half > 0u; half /= 2u) {
        found += select(zero, vec4<u32>(half), ids_at(first + found + (half - 1u)) < bound);
    }
    return found + select(zero, vec4<u32>(1u), ids_at(first + found) < bound);
}

fn ids_at(place: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(id_at(place.x), id_at(place.y), id_at(place.z), id_at(place.w));
}
{% endif %}
