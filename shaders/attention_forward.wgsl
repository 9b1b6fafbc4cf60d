// Causal attention without a T x T matrix in memory: FlashAttention-2 (Dao 2023), the forward pass. Formulas:
// src/ops/attention/mod.rs.
//
// Each pass is a chain of small GEMMs. A workgroup owns ROWS rows of one head (queries; in the pass "keys" of
// attention_backward.wgsl, keys) and walks over tiles of COLS columns. Its threads are a grid of TY x TX: of every tile
// of S, thread (ty, tx) computes the rows ty, ty + TY, ty + 2 TY, .. and the columns 4 tx .. 4 tx + 3; of the result it
// owns the same rows, and of each the groups of four elements tx, tx + TX, .. Tiles that causality empties are skipped;
// workgroups with most tiles start first. What the next product reads first is loaded before the barrier that frees the
// stage; what a pass needs after the next product, it parks in the tile rather than in registers. Queries, keys,
// values, results and their gradients are stored as {{ T }}; all arithmetic is f32.
{{ interface }}
{% include "attention_common" %}

{{ entry("THREADS") }}
    let first_block = 0u;
    let blocks = (params.time + ROWS - 1u) / ROWS;
    {{ locate() }}

    {# Maxima and sums of rows 4q .. 4q + 3 of a thread are the lanes of running_max{q} and total{q}. #}
    // Less than any score, and not infinite, because WGSL promises nothing about infinities.
    const MASKED = -1e30;
    // Where a row's maximum begins: above what is masked, so that a row of nothing but -infinity has no weights, and
    // ends as NaN.
    const UNSEEN = -1e29;
    {% for q in range(rows_per_thread // 4) %}
    var running_max{{ q }} = vec4<f32>(UNSEEN);
    var total{{ q }} = vec4<f32>(0.0); // of this thread's columns only, until the end
    {% endfor %}
    {{ zeros("sum") }}
    {% if limited %}
    {% for r in range(rows_per_thread) %}
    let first_key{{ r }} = first_key(row{{ r }}, first_row);
    {% endfor %}
    let first_tile = first_key(row_base, batch * params.time) / COLS;
    let first_of_last = first_key(row_base + ROWS - 1u, batch * params.time);
    {% else %}
    const first_tile = 0u;
    {% endif %}
    for (var col_base = first_tile * COLS; col_base < min(row_base + ROWS, params.time); col_base += COLS) {
        {{ declare("row_q", rows, chunk) }}
        {{ declare("col_k", cols, chunk) }}
        {{ declare("values_v", 4 * staged, groups) }}
        {{ fetch_product("q", "k") }}
        {{ product("s", "q", "k") }}
        let columns = LANES + (tx * 4u + col_base);
        {% for r in range(rows_per_thread) %}
        s{{ r }} *= params.scale;
        {% endfor %}
        if (col_base + COLS > row_base + 1u) {
            {% for r in range(rows_per_thread) %}
            s{{ r }} = select(vec4<f32>(MASKED), s{{ r }}, columns <= vec4<u32>(row{{ r }}));
            {% endfor %}
        }
        {% if limited %}
        if (col_base < first_of_last) {
            {% for r in range(rows_per_thread) %}
            s{{ r }} = select(vec4<f32>(MASKED), s{{ r }}, columns >= vec4<u32>(first_key{{ r }}));
            {% endfor %}
        }
        {% endif %}
        // Row maxima. The tile is free: all have passed the barriers of the product since they last read it.
        {% for q in range(rows_per_thread // 4) %}
        tile[({{ q }}u * TY + ty) * TX + tx] = vec4<f32>(
            {% for r in range(4 * q, 4 * q + 4) %}
            max(max(s{{ r }}.x, s{{ r }}.y), max(s{{ r }}.z, s{{ r }}.w)){{ "," if not loop.last }}
            {% endfor %}
        );
        {% endfor %}
        workgroupBarrier();
        {% for q in range(rows_per_thread // 4) %}
        var new_max{{ q }} = running_max{{ q }};
        for (var t = 0u; t < TX; t++) { new_max{{ q }} = max(new_max{{ q }}, tile[({{ q }}u * TY + ty) * TX + t]); }
        let correction{{ q }} = exp(running_max{{ q }} - new_max{{ q }});
        running_max{{ q }} = new_max{{ q }};
        {% endfor %}
        {% for r in range(rows_per_thread) %}
        s{{ r }} = exp(s{{ r }} - running_max{{ r // 4 }}.{{ xyzw[r % 4] }});
        {% for n in range(owned) %}
        sum{{ r }}_{{ n }} *= correction{{ r // 4 }}.{{ xyzw[r % 4] }};
        {% endfor %}
        {% endfor %}
        {% for q in range(rows_per_thread // 4) %}
        total{{ q }} = total{{ q }} * correction{{ q }} + vec4<f32>(
            {% for r in range(4 * q, 4 * q + 4) %}
            s{{ r }}.x + s{{ r }}.y + s{{ r }}.z + s{{ r }}.w{{ "," if not loop.last }}
            {% endfor %}
        );
        {% endfor %}
        {% if dropout %}
        {% for r in range(rows_per_thread) %}
        {% if r % 4 == 0 %}
        let query_keys{{ r // 4 }} = query_keys(vec4<u32>(row{{ r }}, row{{ r + 1 }}, row{{ r + 2 }}, row{{ r + 3 }}));
        {% endif %}
        s{{ r }} *= kept(vec4<u32>(query_keys{{ r // 4 }}.{{ xyzw[r % 4] }}), columns);
        {% endfor %}
        {% endif %}
        workgroupBarrier(); // all have read the maxima
        {{ write_tile("s") }}
        {{ fetch_values("v") }}
        {{ accumulate("sum", "v") }}
    }
    workgroupBarrier();
    {% for q in range(rows_per_thread // 4) %}
    tile[({{ q }}u * TY + ty) * TX + tx] = total{{ q }};
    {% endfor %}
    workgroupBarrier();
    {% for q in range(rows_per_thread // 4) %}
    var all{{ q }} = vec4<f32>(0.0);
    for (var t = 0u; t < TX; t++) { all{{ q }} += tile[({{ q }}u * TY + ty) * TX + t]; }
    let log_sum{{ q }} = running_max{{ q }} + log(all{{ q }});
    {% endfor %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    {% set quotient = "sum" ~ r ~ "_" ~ n ~ " / all" ~ r // 4 ~ "." ~ xyzw[r % 4] %}
    store(at_y(row{{ r }}), row{{ r }}, {{ n }}u * TX + tx, {{ quotient }});
    {% endfor %}
    if (tx == 0u && row{{ r }} < params.time) {
        lse[batch_head * params.time + row{{ r }}] = log_sum{{ r // 4 }}.{{ xyzw[r % 4] }};
    }
    {% endfor %}
}
