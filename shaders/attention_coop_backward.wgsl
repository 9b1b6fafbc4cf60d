// The gradients of causal attention of f16, or of f32 with split_fp16, on cooperative matrices.
// attention_coop_forward.wgsl says how the work is cut; formulas: src/ops/attention/mod.rs. For each query block the
// pass "keys" adds what its queries give to dK and dV, and keeps dS^T, of which the pass "queries" makes dQ.
enable f16;
enable wgpu_cooperative_matrix;
{{ interface }}
{% include "attention_coop_common" %}

{# Reads accumulators back from the packed gradient: those of k or v. #}
{% macro load_part(sum, part) %}
    {% for i in range(fragments) %}
    {% for first in range(0, depth, across) %}
    {% set count = [across, depth - first] | min %}
    for (var x = lane; x < {{ side * count * side // 4 }}u; x += {{ subgroup }}u) {
        let l = x / {{ count * side // 4 }}u;
        let d = x % {{ count * side // 4 }}u;
        let row = subgroup_row + {{ i * side }}u + l;
        var value: vec4<f32>;
        {% set address = "at_qkv(first_row + row, " ~ packed_head[part] ~ ", " ~ first * side // 4 ~ "u + d)" %}
        {{ "if (row < params.time) " if edge }}{ value = vec4<f32>(result[{{ address }}]); }
        scores[scores_at + l * LINE + d] = value;
    }
    subgroupBarrier();
    {% for j in range(count) %}
    {{ sum }}{{ i }}_{{ first + j }} = coopLoadT<{{ mat }}<f32, C>>(&scores[scores_at + {{ j * side // 4 }}u], LINE);
    {% endfor %}
    subgroupBarrier();
    {% endfor %}
    {% endfor %}
{% endmacro %}

{% if split_fp16 %}
// What the weights P are staged times.
const WEIGHT_SCALE = 8192.0;
const TWO_TO_28 = 268435456.0;
{% endif %}
{# dP and D are multiples of 2^28 / (scale_dy scale_v), so that |P (dP - D)| is at most 2 keep_scale head_size: times #}
{# `ds_scale` it is within f16. `ds_factor` makes dS of it. #}
{% macro locate_ds() %}
    let ds_scale = {{ 16384 // head_size }}.0 / params.keep_scale;
    let ds_factor = params.scale / ds_scale / scale_dy / scale_v * TWO_TO_28;
{% endmacro %}

{{ entry("THREADS") }}
    let first_block = {{ "0u" if pass == "keys" else "params.query_begin / ROWS" }};
    let query_end = min(params.query_begin + params.query_rows, params.time);
    let blocks = (query_end + ROWS - 1u) / ROWS - first_block;
    {{ locate() }}

{% if pass == "keys" %}
    // Rows are keys, columns are the queries of the block: tiles of S^T. dV = P^T dO, dK = dS^T Q, added to those of
    // the query blocks before.
    {% for name in ["k", "v"] %}
    {% for first in row_parts if rows_at_once %}
    {{ fetch_rows(name, first) }}
    {% endfor %}
    {% for first in row_parts %}
    {{ fetch_rows(name, first) if not rows_at_once }}
    {{ take_rows(name, first) }}
    {% endfor %}
    {% endfor %}
    {{ zeros("dk") }}
    {{ zeros("dv") }}
    if (row_base < params.query_begin) {
        {{ load_part("dk", "k") }}
        {{ load_part("dv", "v") }}
    }
    {{ declare("q", cols, groups) }}
    {{ declare("dy", cols, groups) }}
    {% for i in range(turns) %}
    var lse{{ i }}: f32;
    var delta{{ i }}: f32;
    {% endfor %}
    let first = max(row_base / COLS * COLS, params.query_begin);
    {{ each_query_head("let ") }}
    {% if split_fp16 %}
    let scale_q = scales[scales_at + head];
    let scale_dy = scales[dy_scales_at + head];
    let scale = params.scale / scale_q / scale_k * LOG2_E;
    {{ locate_ds() }}
    {% else %}
    let scale = params.scale * LOG2_E;
    {% endif %}
    {{ fetch_tile("first") }}
    for (var col_base = first; col_base < query_end; col_base += COLS) {
        {% if limited %}
        // No later query sees more of these keys.
        if (first_key(col_base, first_row) >= row_base + ROWS) { break; }
        {% endif %}
        workgroupBarrier(); // all are done with the tile before
        {{ put("q", cols, groups, "tile_q", "HEAD_LINE", "", "scale_q") }}
        {{ put("dy", cols, groups, "tile_dy", "HEAD_LINE", "", "scale_dy") }}
        {% for i in range(turns) %}
        {
            let x = thread + {{ i * threads }}u;
            if (x < COLS) {
                tile_lse[x / 4u][x % 4u] = lse{{ i }} * LOG2_E;
                tile_delta[x / 4u][x % 4u] = delta{{ i }}{{ " * scale_dy * scale_v / TWO_TO_28" if split_fp16 }};
                {% if dropout %}
                tile_query_keys[x / 4u][x % 4u] =
                    mix_bits((col_base + x + params.mask_row + batch_head * params.time) ^ params.key0);
                {% endif %}
            }
        }
        {% endfor %}
        workgroupBarrier();
        // Within a branch: from behind one a driver moves the loads to where they are stored (docs/lab/experiments.md).
        if (col_base + COLS < query_end) {
            {{ fetch_tile("col_base + COLS") }}
        }
        {{ product("s", "k", "q") }}
        {{ product("dp", "v", "dy") }}
        let diagonal = col_base + 1u < row_base + ROWS;
        {% for i in range(fragments) %}
        let row{{ i }} = subgroup_row + {{ i * side }}u + my_row;
        {{ to_scores("s" ~ i ~ "_", 0, across) }}
        subgroupBarrier();
        {% for c in range(fours_per_lane) %}
        var weight{{ i }}_{{ c }} = exp2(
            scores[my_score + {{ c }}u * LANES] * scale - tile_lse[my_four + {{ c }}u * LANES],
        );
        {% endfor %}
        if (diagonal) {
            {% for c in range(fours_per_lane) %}
            weight{{ i }}_{{ c }} = select(
                vec4<f32>(),
                weight{{ i }}_{{ c }},
                XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u) >= vec4<u32>(row{{ i }}),
            );
            {% endfor %}
        }
        {% if limited %}
        if (first_key(col_base + COLS - 1u, first_row) > row_base) {
            {% for c in range(fours_per_lane) %}
            {
                let query = col_base + (my_four + {{ c }}u * LANES) * 4u;
                let first_keys = vec4<u32>(
                    {% for q in range(4) %}
                    first_key(query + {{ q }}u, first_row),
                    {% endfor %}
                );
                let seen = first_keys <= vec4<u32>(row{{ i }});
                weight{{ i }}_{{ c }} = select(vec4<f32>(), weight{{ i }}_{{ c }}, seen);
            }
            {% endfor %}
        }
        {% endif %}
        {% for c in range(fours_per_lane) %}
        {% set address = "my_weight + " ~ i * side * line ~ "u + " ~ c ~ "u * LANES" %}
        {% if dropout %}
        let query_keys{{ i }}_{{ c }} = tile_query_keys[my_four + {{ c }}u * LANES];
        let bits{{ i }}_{{ c }} = mask_bits4(vec4<u32>(row{{ i }}), query_keys{{ i }}_{{ c }}, params.key1);
        let kept{{ i }}_{{ c }} = bits{{ i }}_{{ c }} >= vec4<u32>(params.drop_threshold);
        {% endif %}
        {% set weight = "weight" ~ i ~ "_" ~ c %}
        {% set kept = "select(vec4<f32>(), " ~ weight ~ ", kept" ~ i ~ "_" ~ c ~ ")" if dropout else weight %}
        {% set keep_scale = " * params.keep_scale" if dropout else "" %}
        {% set staged = kept ~ " * WEIGHT_SCALE" if split_fp16 else "vec4<f16>(" ~ kept ~ keep_scale ~ ")" %}
        {{ stage("weights", address, staged) }}
        {% endfor %}
        subgroupBarrier();
        {% endfor %}
        {{ accumulate("dv", "dy", "(params.keep_scale / WEIGHT_SCALE / scale_dy)") }}
        {% for i in range(fragments) %}
        {{ to_scores("dp" ~ i ~ "_", 0, across) }}
        subgroupBarrier();
        {% for c in range(fours_per_lane) %}
        {
            let dp = scores[my_score + {{ c }}u * LANES]{{ " / TWO_TO_28" if split_fp16 }};
            {% set kept = "select(vec4<f32>(), dp * params.keep_scale, kept" ~ i ~ "_" ~ c ~ ")" if dropout else "dp" %}
            let ds = weight{{ i }}_{{ c }} * ({{ kept }} - tile_delta[my_four + {{ c }}u * LANES]);
            let stored = vec4<{{ T }}>(ds * {{ "ds_scale" if split_fp16 else "params.scale" }});
            {{ stage("weights", "my_weight + " ~ i * side * line ~ "u + " ~ c ~ "u * LANES", "stored") }}
            {{ ("if (row" ~ i ~ " < params.time) ") if edge }}{
                block_ds[
                    (batch_head * params.time + row{{ i }}) * (params.query_rows / 4u)
                        + (col_base - params.query_begin) / 4u + my_four + {{ c }}u * LANES
                ] = stored;
            }
        }
        {% endfor %}
        subgroupBarrier();
        {% endfor %}
        {{ accumulate("dk", "q", "(ds_factor / scale_q)") }}
    }
    }
    workgroupBarrier();
    {{ store_rows("dk", "at_qkv(first_row + row, " ~ packed_head["k"] ~ ", ") }}
    {{ store_rows("dv", "at_qkv(first_row + row, " ~ packed_head["v"] ~ ", ") }}

{% else %}
    // Rows are queries of the block, columns are keys. dQ = dS K, where dS comes from memory as tiles of dS^T.
    {{ zeros("dq") }}
    {{ declare("k", cols, groups) }}
    {{ declare("part", cols, rows // 4) }}
    let first = {{ "first_key(row_base, first_row) / COLS * COLS" if limited else "0u" }};
    {{ fetch_tile("first") }}
    {% if split_fp16 %}
    let scale_dy = scales[dy_scales_at + head];
    {{ locate_ds() }}
    {% endif %}
    let end = min(row_base + ROWS, params.time);
    for (var col_base = first; col_base < end; col_base += COLS) {
        workgroupBarrier(); // all are done with the tile before
        {{ put("k", cols, groups, "tile_k", "HEAD_LINE", "", "scale_k") }}
        // Of a key only queries from its own on were written.
        {% set written = "row_base + d * 4u + 3u >= col_base + l" %}
        {% set seen = " && first_key(row_base + d * 4u, first_row) <= col_base + l" if limited else "" %}
        {{ put("part", cols, rows // 4, "part", "PART_LINE", written ~ seen) }}
        workgroupBarrier();
        if (col_base + COLS < end) {
            {{ fetch_tile("col_base + COLS") }}
        }
        {% for k in range(across) %}
        {
            {% for i in range(fragments) %}
            let from{{ i }} = {{ k * side }}u * PART_LINE
                + subgroup_index * {{ fragments * side // 4 }}u + {{ i * side // 4 }}u;
            {% for half in halves %}
            let {{ half }}left{{ i }} = coopLoad<{{ mat }}<f16, A>>(&{{ half }}part[from{{ i }}], PART_LINE);
            {% endfor %}
            {% endfor %}
            {{ add_products("dq", "k", k * side, "(ds_factor / scale_k)") }}
        }
        {% endfor %}
    }
    workgroupBarrier();
    {{ store_rows("dq", "at_qkv(first_row + row, head, ") }}
{% endif %}
}
