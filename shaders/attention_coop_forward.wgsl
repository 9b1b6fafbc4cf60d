// Causal attention of f16, or of f32 with split_fp16, on cooperative matrices (tensor cores), accumulated in f32: the
// forward pass of FlashAttention-2 (Dao 2023). Formulas: src/ops/attention/mod.rs.
//
// A workgroup owns ROWS rows of one head (queries; in the pass "keys" of attention_coop_backward.wgsl, keys), each of
// its subgroups {{ fragments }} times {{ side }} of them, and walks over tiles of COLS columns, staged in workgroup
// memory. The elements of a cooperative matrix cannot be addressed, so a product is stored to `scores`, {{ side }} rows
// of each subgroup at a time; its threads, LANES to a row, make weights of them, and these are loaded as the left
// operand of the next product from `weights`. Of such an exchange no other subgroup knows: subgroupBarrier is enough,
// which orders workgroup memory on every backend (src/gpu/subgroup_barriers.rs).
enable f16;
enable wgpu_cooperative_matrix;
{{ interface }}
{% include "attention_coop_common" %}

{# Combines a number of all threads that share a row, LANES neighbours. #}
{% macro over_lanes(x, begin, between) %}
    {% for distance in [1, 2, 4, 8] if distance < lanes %}
    {{ x }} = {{ begin }}{{ x }}{{ between }}subgroupShuffleXor({{ x }}, {{ distance }}u));
    {% endfor %}
{% endmacro %}
{{ entry("THREADS") }}
    let first_block = 0u;
    let blocks = (params.time + ROWS - 1u) / ROWS;
    {{ locate() }}

    // A row's weights are exp(S - running_max). The running maximum is that of the first tile, until a score exceeds it
    // by RESCALE_THRESHOLD, so that the accumulators need to be rescaled almost never. exp(RESCALE_THRESHOLD) is well
    // within f16.
    const RESCALE_THRESHOLD = {{ "4.0" if split_fp16 else "10.0" }};
    {% if split_fp16 %}
    // What weights are staged times: exp(RESCALE_THRESHOLD) times this is within f16 too.
    const WEIGHT_SCALE = 1024.0;
    let scale = params.scale / scale_q / scale_k;
    {% else %}
    let scale = params.scale;
    {% endif %}
    // Less than any score, and not infinite, because WGSL promises nothing about infinities.
    const MASKED = -1e30;
    // Where a row's maximum begins: above what is masked, so that a row of nothing but -infinity has no weights, and
    // ends as NaN.
    const UNSEEN = -1e29;
    {% for i in range(fragments) %}
    var running_max{{ i }} = UNSEEN;
    var total{{ i }} = 0.0; // of this thread's columns only, until the end
    {% endfor %}
    if (thread == 0u) { rescale = vec4<u32>(); }
    {% for first in row_parts if rows_at_once %}
    {{ fetch_rows("q", first) }}
    {% endfor %}
    {{ zeros("sum") }}
    let tiles = (min(row_base + ROWS, params.time) + COLS - 1u) / COLS;
    {{ declare("k", cols, groups) }}
    {{ declare("v", cols, groups) }}
    {% if limited %}
    {% for i in range(fragments) %}
    let first_key{{ i }} = first_key(subgroup_row + {{ i * side }}u + my_row, first_row);
    {% endfor %}
    let first_tile = first_key(row_base, first_row) / COLS;
    let first_of_last = first_key(row_base + ROWS - 1u, first_row);
    {% else %}
    const first_tile = 0u;
    {% endif %}
    {{ fetch_tile("first_tile * COLS") }}
    {% for first in row_parts %}
    {{ fetch_rows("q", first) if not rows_at_once }}
    {{ take_rows("q", first) }}
    {% endfor %}
    for (var tile = first_tile; tile < tiles; tile += 1u) {
        let col_base = tile * COLS;
        workgroupBarrier(); // all are done with the tile before
        {{ put("k", cols, groups, "tile_k", "HEAD_LINE", "", "scale_k") }}
        {{ put("v", cols, groups, "tile_v", "HEAD_LINE", "", "scale_v") }}
        workgroupBarrier();
        if (tile + 1u < tiles) {
            {{ fetch_tile("col_base + COLS") }}
        }
        {{ product("s", "q", "k") }}
        let diagonal = col_base + COLS > row_base + 1u;
        {% for i in range(fragments) %}
        {{ "subgroupBarrier(); // all have read the fragment before" if i > 0 }}
        {{ to_scores("s" ~ i ~ "_", 0, across) }}
        subgroupBarrier();
        let row{{ i }} = subgroup_row + {{ i * side }}u + my_row;
        {% for c in range(fours_per_lane) %}
        var score{{ i }}_{{ c }} = scores[my_score + {{ c }}u * LANES] * scale;
        {% endfor %}
        if (diagonal) {
            {% for c in range(fours_per_lane) %}
            score{{ i }}_{{ c }} = select(
                vec4<f32>(MASKED),
                score{{ i }}_{{ c }},
                XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u) <= vec4<u32>(row{{ i }}),
            );
            {% endfor %}
        }
        {% if limited %}
        if (col_base < first_of_last) {
            {% for c in range(fours_per_lane) %}
            score{{ i }}_{{ c }} = select(
                vec4<f32>(MASKED),
                score{{ i }}_{{ c }},
                XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u) >= vec4<u32>(first_key{{ i }}),
            );
            {% endfor %}
        }
        {% endif %}
        var highest{{ i }} = score{{ i }}_0;
        {% for c in range(1, fours_per_lane) %}
        highest{{ i }} = max(highest{{ i }}, score{{ i }}_{{ c }});
        {% endfor %}
        let high{{ i }} = max(max(highest{{ i }}.x, highest{{ i }}.y), max(highest{{ i }}.z, highest{{ i }}.w));
        if (high{{ i }} > running_max{{ i }} + RESCALE_THRESHOLD) { rescale = vec4<u32>(1u); }
        {% endfor %}
        // Rows are a subgroup's own, but all decide together: a software driver takes the barriers of a subgroup for
        // barriers of all.
        if (workgroupUniformLoad(&rescale).x != 0u) {
            if (thread == 0u) { rescale = vec4<u32>(); }
            {% for i in range(fragments) %}
            {
                var new_max = max(running_max{{ i }}, high{{ i }});
                {{ over_lanes("new_max", "max(", ", ") }}
                let correction = exp(running_max{{ i }} - new_max);
                running_max{{ i }} = new_max;
                total{{ i }} *= correction;
                {% for first in range(0, depth, across) %}
                {% set count = [across, depth - first] | min %}
                {{ to_scores("sum" ~ i ~ "_", first, count) }}
                subgroupBarrier();
                for (var c = my_four; c < {{ count * side // 4 }}u; c += LANES) {
                    scores[scores_at + my_row * LINE + c] *= correction;
                }
                subgroupBarrier();
                {% for j in range(count) %}
                {% set address = "scores_at + " ~ j * side // 4 ~ "u" %}
                sum{{ i }}_{{ first + j }} = coopLoadT<{{ mat }}<f32, C>>(&scores[{{ address }}], LINE);
                {% endfor %}
                subgroupBarrier();
                {% endfor %}
            }
            {% endfor %}
        }
        {% for i in range(fragments) %}
        {% if dropout %}
        let query_key{{ i }} = vec4<u32>(
            mix_bits((row{{ i }} + params.mask_row + batch_head * params.time) ^ params.key0),
        );
        {% endif %}
        {% for c in range(fours_per_lane) %}
        {
            {% set address = "my_weight + " ~ i * side * line ~ "u + " ~ c ~ "u * LANES" %}
            let weight = exp2(score{{ i }}_{{ c }} * LOG2_E - running_max{{ i }} * LOG2_E);
            total{{ i }} += weight.x + weight.y + weight.z + weight.w;
            {% if dropout %}
            let keys = XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u);
            let kept = mask_bits4(keys, query_key{{ i }}, params.key1) >= vec4<u32>(params.drop_threshold);
            {% endif %}
            {% set kept = "select(vec4<f32>(), weight, kept)" if dropout else "weight" %}
            {{ stage("weights", address, kept ~ " * WEIGHT_SCALE" if split_fp16 else "vec4<f16>(" ~ kept ~ ")") }}
        }
        {% endfor %}
        {% endfor %}
        subgroupBarrier();
        {{ accumulate("sum", "v", "(1.0 / WEIGHT_SCALE / scale_v)") }}
    }
    {% for i in range(fragments) %}
    {{ over_lanes("total" ~ i, "(", " + ") }}
    {
        let row = subgroup_row + {{ i * side }}u + my_row;
        if (my_four == 0u && row < params.time) {
            lse[batch_head * params.time + row] = running_max{{ i }} + log(total{{ i }});
        }
    }
    of_rows[{{ i * threads }}u + thread] = {{ "params.keep_scale" if dropout else "1.0" }} / total{{ i }};
    {% endfor %}
    workgroupBarrier();
    {{ store_rows("sum", "at_dy(first_row + row, head, ", "of its row") }}
}
