{# Sizes, workgroup memory, loads, stores and GEMMs of tiles that attention_coop_forward and _backward share. #}
{% set groups = head_size // 4 %}
{% set depth = head_size // side %}
{% set across = cols // side %}
{% set fours = cols // 4 %}
{% set lanes = subgroup // side %}
{% set fours_per_lane = fours // lanes %}
{% set threads = subgroups * subgroup %}
{% set rows = subgroups * fragments * side %}
{# Vectors from one row to the next of what is staged: padded against conflicts of banks. #}
{% set head_line = groups + 2 %}
{% set line = fours + 2 %}
{# Of the statistics of a tile's columns, so many are loaded by a thread. #}
{% set turns = (cols + threads - 1) // threads %}
{% set mat = "coop_mat" ~ side ~ "x" ~ side %}

// The head in groups of four elements.
const GROUPS = {{ groups }}u;
const ROWS = {{ rows }}u;
const COLS = {{ cols }}u;
const THREADS = {{ threads }}u;
// Threads that share a row of scores: each has every LANES-th group of four columns.
const LANES = {{ lanes }}u;
const HEAD_LINE = {{ head_line }}u;
const LINE = {{ line }}u;
const XYZW = vec4<u32>(0u, 1u, 2u, 3u);
const LOG2_E = 1.4426950408889634;

{% include "attention_blocks" %}

{# With split_fp16 all is f32 and multiplied as high and low halves (matmul_split_fp16.wgsl): of whatever is staged, #}
{# the lower halves are in an array of that name after "low_". #}
{% set halves = ["", "low_"] if split_fp16 else [""] %}
{% set T = "f32" if split_fp16 else "f16" %}
{# What a thread loads at once. With `words` four f16 as two u32: of f16 that a branch has loaded a driver merges old #}
{# and new values half by half behind it, for which it waits (docs/lab/experiments.md). #}
{% set loaded = "vec2<u32>" if words else "vec4<" ~ T ~ ">" %}
{% macro elements(x) -%}
{{ "vec4<f16>(vec4<f32>(unpack2x16float(" ~ x ~ ".x), unpack2x16float(" ~ x ~ ".y)))" if words else x }}
{%- endmacro %}
{% set tiles = {"forward": ["k", "v"], "keys": ["q", "dy"], "queries": ["k"]}[pass] %}
{% for half in halves %}
{% for name in tiles %}
var<workgroup> {{ half }}tile_{{ name }}: array<vec4<f16>, COLS * HEAD_LINE>;
{% endfor %}
{% endfor %}
var<workgroup> scores: array<vec4<f32>, {{ subgroups * side * line }}>;
{% if pass == "queries" %}
// dS^T of a tile: columns by rows.
const PART_LINE = ROWS / 4u + 2u;
{% for half in halves %}
var<workgroup> {{ half }}part: array<vec4<f16>, COLS * PART_LINE>;
{% endfor %}
{% else %}
{% for half in halves %}
var<workgroup> {{ half }}weights: array<vec4<f16>, {{ subgroups * fragments * side * line }}>;
{% endfor %}
{% endif %}
{% if pass == "forward" %}
// What each row is multiplied by in the end.
var<workgroup> of_rows: array<f32, {{ fragments * threads }}>;
// Whether a score of this tile exceeds its row's running maximum by more than the threshold. As wide as the alignment
// that loads of cooperative matrices need of the arrays, which may come after it.
var<workgroup> rescale: vec4<u32>;
{% elif pass == "keys" %}
var<workgroup> tile_lse: array<vec4<f32>, COLS / 4u>;
var<workgroup> tile_delta: array<vec4<f32>, COLS / 4u>;
{% if dropout %}
// The keys of random numbers of the tile's queries.
var<workgroup> tile_query_keys: array<vec4<u32>, COLS / 4u>;
{% endif %}
{% endif %}

// Where a group of four elements of a row lies: of a head of packed queries, keys and values, and of a head of dy.
fn at_qkv(row: u32, head: u32, group: u32) -> u32 {
    return (row * (params.n_head + 2u * params.n_kv_head) + head) * GROUPS + group;
}
fn at_dy(row: u32, head: u32, group: u32) -> u32 { return (row * params.n_head + head) * GROUPS + group; }

{% set packed_head = {"q": "head", "k": "params.n_head + kv_head", "v": "params.n_head + params.n_kv_head + kv_head"} %}
{# Four elements of a row of q, k, v or dy. #}
{% macro load(what, row, group) %}
{% if what == "dy" %}
dy[at_dy(first_row + {{ row }}, head, {{ group }})]
{%- else %}
qkv[at_qkv(first_row + {{ row }}, {{ packed_head[what] }}, {{ group }})]
{%- endif %}
{% endmacro %}

{# Writes a vector of T to an array of workgroup memory. #}
{% macro stage(memory, at, value) %}
{% if split_fp16 %}
                {
                    let at = {{ at }};
                    let value = {{ value }};
                    let high = high_half(value);
                    {{ memory }}[at] = vec4<f16>(high);
                    low_{{ memory }}[at] = vec4<f16>(value - high);
                }
{% else %}
                {{ memory }}[{{ at }}] = {{ value }};
{% endif %}
{% endmacro %}

{# Loads a tile of `width` vectors a line into v0, v1, ..; `value` and `condition` depend on l, the line, and d. All #}
{# threads of the workgroup share in that, or those of the subgroup, as `who` of so many. #}
{% macro fetch(v, lines, width, value, condition, who="thread", many=threads) %}
{% for i in range((lines * width + many - 1) // many) %}
        {
            let x = {{ who }} + {{ i * many }}u;
            let l = x / {{ width }}u;
            let d = x % {{ width }}u;
            {% set partial = (i + 1) * many > lines * width %}
            {{ (v ~ i ~ " = " ~ loaded ~ "();") if partial or condition }}
            {{ "if (x < " ~ (lines * width) ~ "u) { " if partial }}{{ "if (" ~ condition ~ ") " if condition }}{
                {{ v }}{{ i }} = {{ value }};
            }{{ " }" if partial }}
        }
{% endfor %}
{% endmacro %}
{% macro declare(v, lines, width, many=threads) %}
{% for i in range((lines * width + many - 1) // many) %}
    var {{ v }}{{ i }}: {{ loaded }};
{% endfor %}
{% endmacro %}
{# Writes it to workgroup memory, with split_fp16 times its scale. #}
{% macro put(v, lines, width, memory, stride, kept="", scale="", begin="0u", who="thread", many=threads) %}
{% for i in range((lines * width + many - 1) // many) %}
        {
            let x = {{ who }} + {{ i * many }}u;
            let l = x / {{ width }}u;
            let d = x % {{ width }}u;
            {{ "if (x < " ~ (lines * width) ~ "u) " if (i + 1) * many > lines * width }}{
                {% set value = "select(" ~ loaded ~ "(), " ~ v ~ i ~ ", " ~ kept ~ ")" if kept else v ~ i %}
                {% set value = elements(value) ~ (" * " ~ scale if split_fp16 and scale else "") %}
                {{ stage(memory, begin ~ " + l * " ~ stride ~ " + d", value) }}
            }
        }
{% endfor %}
{% endmacro %}

{# Starts to load the tile that begins with column `from`; zeros beyond T. #}
{% macro fetch_tile(from) %}
        {
        let next = {{ from }};
        {% set in_time = "next + l < params.time" if edge else "" %}
        {% for name in tiles %}
        {{ fetch(name, cols, groups, load(name, "next + l", "d"), in_time) }}
        {% endfor %}
        {% if pass == "keys" %}
        // Beyond T, where q and dy are 0 too, 0: such a query adds nothing to any gradient.
        {% for i in range(turns) %}
        {
            let x = (thread + {{ i * threads }}u) % COLS;
            {{ ("lse" ~ i ~ " = 0.0;\n            delta" ~ i ~ " = 0.0;") if edge }}
            {{ "if (next + x < params.time) " if edge }}{
                lse{{ i }} = lse[batch_head * params.time + next + x];
                delta{{ i }} = delta[batch_head * params.time + next + x];
            }
        }
        {% endfor %}
        {% elif pass == "queries" %}
        {% set row = "(batch_head * params.time + next + l) * (params.query_rows / 4u)" %}
        {% set value = "block_ds[" ~ row ~ " + (row_base - params.query_begin) / 4u + d]" %}
        {{ fetch("part", cols, rows // 4, value, in_time) }}
        {% endif %}
        }
{% endmacro %}

{# The subgroup's rows of q, k or v become left sides {name}{fragment}_{depth} by way of `weights`, in parts of the #}
{# head that have room there: this makes them of the part that begins with vector `first`, which is staged. #}
{% set row_parts = range(0, groups, fours) %}
{% macro part_width(first) %}{{ [fours, groups - first] | min }}{% endmacro %}
{% macro take_part(name, first) %}
    subgroupBarrier();
    {% for i in range(fragments) %}
    {% for d in range((part_width(first) | int) * 4 // side) %}
    {% set address = "weights_at + " ~ (i * side * line + d * side // 4) ~ "u" %}
    {% for half in halves %}
    let {{ half }}{{ name }}{{ i }}_{{ first * 4 // side + d }} =
        coopLoadT<{{ mat }}<f16, A>>(&{{ half }}weights[{{ address }}], LINE);
    {% endfor %}
    {% endfor %}
    {% endfor %}
    subgroupBarrier();
{% endmacro %}

{# A part of the subgroup's rows of q, k or v, on its way there; all parts are loaded at once if they are few. #}
{% set rows_at_once = fragments * side * groups // subgroup <= 16 %}
{% macro fetch_rows(name, first) %}
    {% set width = part_width(first) | int %}
    {% set part = name ~ "_part" ~ first ~ "_" %}
    {% set value = load(name, "subgroup_row + l", first ~ "u + d") %}
    {% set in_time = "subgroup_row + l < params.time" if edge else "" %}
    {{ declare(part, fragments * side, width, subgroup) }}
    {{ fetch(part, fragments * side, width, value, in_time, "lane", subgroup) }}
{% endmacro %}
{% macro take_rows(name, first) %}
    {% set width = part_width(first) | int %}
    {% set part = name ~ "_part" ~ first ~ "_" %}
    {{ put(part, fragments * side, width, "weights", "LINE", "", "scale_" ~ name, "weights_at", "lane", subgroup) }}
    {{ take_part(name, first) }}
{% endmacro %}

{# Which halves of two operands are multiplied: low times low is below f32's rounding. #}
{% set pairs = [["low_", ""], ["", "low_"], ["", ""]] if split_fp16 else [["", ""]] %}
{# {s}{fragment}_{column} = the subgroup's rows `a` times the staged rows `b`, transposed. #}
{% macro product(s, a, b) %}
        {% for i in range(fragments) %}
        {% for j in range(across) %}
        var {{ s }}{{ i }}_{{ j }}: {{ mat }}<f32, C>;
        {% endfor %}
        {% endfor %}
        {% for d in range(depth) %}
        {% for j in range(across) %}
        {
            {% set address = j * side ~ "u * HEAD_LINE + " ~ d * side // 4 ~ "u" %}
            {% for half in halves %}
            let {{ half }}right = coopLoad<{{ mat }}<f16, B>>(&{{ half }}tile_{{ b }}[{{ address }}], HEAD_LINE);
            {% endfor %}
            {% for i in range(fragments) %}
            {% for left, right in pairs %}
            {% set product = s ~ i ~ "_" ~ j %}
            {{ product }} = coopMultiplyAdd({{ left ~ a ~ i }}_{{ d }}, {{ right }}right, {{ product }});
            {% endfor %}
            {% endfor %}
        }
        {% endfor %}
        {% endfor %}
{% endmacro %}

{# {sum}{fragment}_{depth} += the left sides {half}left{fragment} times the rows `b` staged from line `k` on. Tensor #}
{# cores cut off when they accumulate, so that with split_fp16 the products of a tile are added in f32. #}
{% macro add_products(sum, b, k, factor) %}
            {% for d in range(depth) %}
            {
                {% set address = k ~ "u * HEAD_LINE + " ~ d * side // 4 ~ "u" %}
                {% for half in halves %}
                let {{ half }}right = coopLoadT<{{ mat }}<f16, B>>(&{{ half }}tile_{{ b }}[{{ address }}], HEAD_LINE);
                {% endfor %}
                {% for i in range(fragments) %}
                {% if split_fp16 %}
                var products{{ i }}: {{ mat }}<f32, C>;
                {% for left, right in pairs %}
                products{{ i }} = coopMultiplyAdd({{ left }}left{{ i }}, {{ right }}right, products{{ i }});
                {% endfor %}
                {{ sum }}{{ i }}_{{ d }} = {{ sum }}{{ i }}_{{ d }} + products{{ i }} * {{ factor }};
                {% else %}
                {{ sum }}{{ i }}_{{ d }} = coopMultiplyAdd(left{{ i }}, right, {{ sum }}{{ i }}_{{ d }});
                {% endif %}
                {% endfor %}
            }
            {% endfor %}
{% endmacro %}

{# {sum}{fragment}_{depth} += the subgroup's weights times the staged rows `b`, with split_fp16 times a factor. #}
{% macro accumulate(sum, b, factor) %}
        {% for k in range(across) %}
        {
            {% for i in range(fragments) %}
            {% set address = "weights_at + " ~ (i * side * line + k * side // 4) ~ "u" %}
            {% for half in halves %}
            let {{ half }}left{{ i }} = coopLoadT<{{ mat }}<f16, A>>(&{{ half }}weights[{{ address }}], LINE);
            {% endfor %}
            {% endfor %}
            {{ add_products(sum, b, k * side, factor) }}
        }
        {% endfor %}
{% endmacro %}

{# The accumulators of a result. #}
{% macro zeros(sum) %}
    {% for i in range(fragments) %}
    {% for d in range(depth) %}
    var {{ sum }}{{ i }}_{{ d }}: {{ mat }}<f32, C>;
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# Writes neighbouring matrices {s}{first}, .. to `scores`. naga wants every argument of a store to be a name. #}
{% macro to_scores(s, first, count) %}
        {% for j in range(count) %}
        {
            let values = {{ s }}{{ first + j }};
            let to = scores_at + {{ j * side // 4 }}u;
            let stride = LINE;
            coopStoreT(values, &scores[to], stride);
        }
        {% endfor %}
{% endmacro %}

{# Writes the accumulators {sum} to `result`, times the factor of their row; `at` begins the call that says where. #}
{% macro store_rows(sum, at, factor="") %}
    {% for i in range(fragments) %}
    {% for first in range(0, depth, across) %}
    {% set count = [across, depth - first] | min %}
    {% set of_row = "of_rows[" ~ i * threads ~ "u + subgroup_index * " ~ subgroup ~ "u + l * LANES]" %}
    {{ to_scores(sum ~ i ~ "_", first, count) }}
    subgroupBarrier();
    for (var x = lane; x < {{ side * count * side // 4 }}u; x += {{ subgroup }}u) {
        let l = x / {{ count * side // 4 }}u;
        let d = x % {{ count * side // 4 }}u;
        let row = subgroup_row + {{ i * side }}u + l;
        {{ "if (row < params.time) " if edge }}{
            {% set scale = " * " ~ of_row if factor else "" %}
            result[{{ at }}{{ first * side // 4 }}u + d)] = vec4<{{ T }}>(scores[scores_at + l * LINE + d]{{ scale }});
        }
    }
    subgroupBarrier();
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# Where this thread works. #}
{% macro locate() %}
    {{ locate_block("let ") }}
    {% if split_fp16 %}
    // The powers of two that bring the largest element of a head to at least 2^13 and less than 2^14.
    let scales_at = batch * (params.n_head + 2u * params.n_kv_head);
    let scale_k = scales[scales_at + params.n_head + kv_head];
    let scale_v = scales[scales_at + params.n_head + params.n_kv_head + kv_head];
    {% if pass == "forward" %}
    let scale_q = scales[scales_at + head];
    {% else %}
    // Those of dy come after those of all of qkv.
    let dy_scales_at = params.batch * (params.n_head + 2u * params.n_kv_head) + batch * params.n_head;
    {% endif %}
    {% endif %}
    let subgroup_index = thread / {{ subgroup }}u;
    let lane = thread % {{ subgroup }}u;
    // The subgroup's first row, and where its parts of the workgroup's memory begin.
    let subgroup_row = row_base + subgroup_index * {{ fragments * side }}u;
    let scores_at = subgroup_index * {{ side }}u * LINE;
    {% if pass != "queries" %}
    let weights_at = subgroup_index * {{ fragments * side }}u * LINE;
    // This thread's place in `scores`: a row, and the first of its groups of four columns.
    let my_row = lane / LANES;
    let my_four = lane % LANES;
    let my_score = scores_at + my_row * LINE + my_four;
    let my_weight = weights_at + my_row * LINE + my_four;
    {% endif %}
{% endmacro %}
