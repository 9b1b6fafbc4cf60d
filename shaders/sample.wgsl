// Draws the next token of each text (src/ops/sample.rs). One workgroup per text; its threads take every
// {{ threads }}-th token, but where the order of ids counts, as many in a row.
//
// What is kept of the tokens is told by one threshold. The k-th largest, and the last that top-p needs, are found bit
// by bit, from the highest on: by how many tokens, or how much weight, are at least that large. Ranks are the bits of
// a logit, turned so that larger logits have larger ones.
{{ interface }}

const THREADS = {{ threads }}u;
const GROUP = 32u;
const GROUPS = THREADS / GROUP;
// The ranks of -infinity and infinity; those of NaN lie beyond.
const LOWEST = 0x007fffffu;
const HIGHEST = 0xff800000u;

var<workgroup> totals: array<f32, THREADS>;
var<workgroup> group_totals: array<f32, GROUPS>;
var<workgroup> extremes: array<vec2<u32>, THREADS>;
var<workgroup> place: vec2<f32>;
var<workgroup> found: u32;

var<private> thread_id: u32;
var<private> first: u32; // the text's first rank
var<private> tokens: u32;
var<private> temperature: f32;
var<private> largest: f32;
var<private> min_p: f32;
// Kept are the tokens of a rank above this, and of those of this rank the ones up to an id.
var<private> least: u32;
var<private> last_id: u32;

fn rank_of(bits: u32) -> u32 {
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn is_kept(id: u32, rank: u32) -> bool {
    return rank > least || (rank == least && id <= last_id);
}

fn weight_of(rank: u32) -> f32 {
    let logit = bitcast<f32>(select(~rank, rank & 0x7fffffffu, rank >= 0x80000000u));
    return select(0.0, exp((logit - largest) / temperature), rank > LOWEST);
}

// The sum over all threads, which all get.
fn sum(value: f32) -> f32 {
    workgroupBarrier();
    totals[thread_id] = value;
    for (var apart = THREADS / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (thread_id < apart) { totals[thread_id] += totals[thread_id + apart]; }
    }
    workgroupBarrier();
    return totals[0];
}

// How many tokens, or how much weight, of those that are kept have at least this rank.
fn amount(rank: u32, by_weight: bool) -> f32 {
    var own = 0.0;
    for (var id = thread_id; id < tokens; id += THREADS) {
        let its = ranks[first + id];
        if (its >= rank && is_kept(id, its)) { own += select(1.0, weight_of(its), by_weight); }
    }
    return sum(own);
}

// What a token adds in `locate`: with ties, 1 if it is kept and of the rank `tied`, else its weight if it is kept.
fn portion(id: u32, tied: u32) -> f32 {
    let its = ranks[first + id];
    if (!is_kept(id, its)) { return 0.0; }
    let weight = weight_of(its);
    return select(select(0.0, 1.0, its == tied), select(0.0, weight, weight >= min_p), tied == 0u);
}

// In the order of ids, the first token at which the sum of portions exceeds a share of their sum; of ties, a number.
fn locate(share: f32, tied: u32) -> u32 {
    let chunk = (tokens + THREADS - 1u) / THREADS;
    let begin = min(thread_id * chunk, tokens);
    let end = min(begin + chunk, tokens);
    var own = 0.0;
    for (var id = begin; id < end; id++) { own += portion(id, tied); }
    workgroupBarrier();
    totals[thread_id] = own;
    workgroupBarrier();
    if (thread_id < GROUPS) {
        var group = 0.0;
        for (var i = 0u; i < GROUP; i++) { group += totals[thread_id * GROUP + i]; }
        group_totals[thread_id] = group;
    }
    workgroupBarrier();
    if (thread_id == 0u) {
        var all = 0.0;
        for (var i = 0u; i < GROUPS; i++) { all += group_totals[i]; }
        let goal = select(share, share * all, tied == 0u);
        // The group, and in it the thread: where rounding leaves a rest, the last that adds something.
        var group = 0u;
        var passed = 0.0; // before the group
        var reached = 0.0;
        for (var i = 0u; i < GROUPS && reached <= goal; i++) {
            if (group_totals[i] > 0.0) {
                group = i;
                passed = reached;
                reached += group_totals[i];
            }
        }
        var chosen = group * GROUP;
        reached = passed;
        for (var i = group * GROUP; i < (group + 1u) * GROUP && reached <= goal; i++) {
            if (totals[i] > 0.0) {
                chosen = i;
                passed = reached;
                reached += totals[i];
            }
        }
        found = chosen;
        place = vec2<f32>(passed, goal);
    }
    workgroupBarrier();
    let is_chosen = found == thread_id;
    let before = place;
    workgroupBarrier();
    if (is_chosen) {
        var chosen = begin;
        var reached = before.x;
        for (var id = begin; id < end && reached <= before.y; id++) {
            let its = portion(id, tied);
            if (its > 0.0) {
                chosen = id;
                reached += its;
            }
        }
        found = chosen;
    }
    workgroupBarrier();
    return found;
}

// Keeps the fewest of the largest that together reach the goal, of equal ones those of the smallest ids.
fn keep(goal: f32, by_weight: bool) {
    var rank = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit /= 2u) {
        if (amount(rank | bit, by_weight) >= goal) { rank |= bit; }
    }
    let before = amount(rank + 1u, by_weight);
    let each = select(1.0, weight_of(rank), by_weight);
    // As many of those as large as the last.
    let tied = max(1.0, ceil((goal - before) / each));
    let last = locate(tied - 0.5, rank);
    least = rank;
    last_id = last;
}

{{ entry(threads) }}
    thread_id = thread;
    first = workgroup * params.vocabulary;
    let own = workgroup * 8u;
    let count = min(settings[own], params.vocabulary);
    tokens = count;
    let top_k = settings[own + 1u];
    // At the temperature 0 the largest alone.
    let is_greedy = settings[own + 2u] == 0u;
    temperature = bitcast<f32>(settings[own + 2u]);
    let top_p = bitcast<f32>(settings[own + 3u]);
    min_p = 0.0;
    var extreme = vec2<u32>(1u, 0u);
    for (var id = thread; id < params.vocabulary; id += THREADS) {
        var logit = logits[first + id];
        var rank = rank_of(bitcast<u32>(logit));
        let is_finite = rank < HIGHEST && rank >= LOWEST;
        {% if has_bias %}
        let added = bias[first + id];
        logit += added;
        rank = select(rank, rank_of(bitcast<u32>(logit)), is_finite);
        {% endif %}
        {% if has_seen %}
        let penalty = bitcast<f32>(settings[own + 5u]);
        let penalized = select(logit * penalty, logit / penalty, logit > 0.0);
        rank = select(rank, rank_of(bitcast<u32>(penalized)), seen[first + id] != 0u && is_finite && rank > LOWEST);
        {% endif %}
        {% if has_bias %}
        // What is added may be -infinity, with which not every compiler computes.
        rank = select(rank, LOWEST, is_finite && bitcast<u32>(added) == 0xff800000u);
        {% endif %}
        ranks[first + id] = rank;
        // What is not finite counts everywhere, and the largest where there is something to draw.
        if (rank >= HIGHEST || rank < LOWEST) { extreme.x = 0u; }
        if (id < tokens) { extreme.y = max(extreme.y, rank); }
    }
    storageBarrier();
    extremes[thread] = extreme;
    for (var apart = THREADS / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (thread < apart) {
            let other = extremes[thread + apart];
            extremes[thread] = vec2<u32>(min(extremes[thread].x, other.x), max(extremes[thread].y, other.y));
        }
    }
    workgroupBarrier();
    let is_broken = extremes[0].x == 0u;
    let top = extremes[0].y;
    largest = bitcast<f32>(select(~top, top & 0x7fffffffu, top >= 0x80000000u));
    least = select(0u, top, is_greedy);
    last_id = count;
    if (!is_greedy && top_k < count) { keep(f32(top_k), false); }
    if (!is_greedy && top_p < 1.0) { keep(top_p * amount(0u, true), true); }
    min_p = bitcast<f32>(settings[own + 4u]);
    let bits = random_bits(vec2<u32>(settings[own + 6u], settings[own + 7u]), params.number);
    let uniform_number = (f32(bits >> 9u) + 0.5) / 8388608.0;
    let id = locate(select(uniform_number, 0.5, is_greedy), select(0u, top, is_greedy));
    if (thread == 0u) {
        var drawn = id;
        if (top <= LOWEST) { drawn = 0xfffffffeu; }
        if (is_broken) { drawn = 0xffffffffu; }
        ids[workgroup] = drawn;
        {% if has_seen %}
        if (drawn < params.vocabulary) { seen[first + drawn] = 1u; }
        {% endif %}
    }
}
