// The gradients of causal attention. attention_forward.wgsl says how the work is cut; formulas:
// src/ops/attention/mod.rs. For each query block the pass "keys" adds what its queries give to dK and dV, and keeps
// dS^T, of which the pass "queries" makes dQ.
{{ interface }}
{% include "attention_common" %}

fn at_block_ds(key: u32, four: u32) -> u32 {
    return (batch_head * params.time + key) * (params.query_rows / 4u) + four - params.query_begin / 4u;
}
fn load_block_ds(key: u32, four: u32) -> vec4<f32> {
    {% if limited %}
    // Where none of the four queries sees the key, nothing may have been written.
    if (first_key(four * 4u, first_row) > key) { return vec4<f32>(0.0); }
    {% endif %}
    {% if edge %}
    if (key >= params.time) { return vec4<f32>(0.0); }
    {% endif %}
    return block_ds[at_block_ds(key, four)];
}
// A statistic of a query; 0 beyond T, where q and dy are 0 too, so that such a query adds nothing to any gradient.
fn lse_of(query: u32) -> f32 {
    {% if edge %}
    if (query >= params.time) { return 0.0; }
    {% endif %}
    return lse[batch_head * params.time + query];
}
fn delta_of(query: u32) -> f32 {
    {% if edge %}
    if (query >= params.time) { return 0.0; }
    {% endif %}
    return delta[batch_head * params.time + query];
}

{# Reads accumulators from the packed gradient: those of k or v. #}
{% macro load_part(sum, part) %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    {{ sum }}{{ r }}_{{ n }} = load_from_result(at_{{ part }}(row{{ r }}), row{{ r }}, {{ n }}u * TX + tx);
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# Writes accumulators to the packed gradient: those of k or v. #}
{% macro store_part(sum, part) %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    store(at_{{ part }}(row{{ r }}), row{{ r }}, {{ n }}u * TX + tx, {{ sum }}{{ r }}_{{ n }});
    {% endfor %}
    {% endfor %}
{% endmacro %}

{{ entry("THREADS") }}
    let first_block = {{ "0u" if pass == "keys" else "params.query_begin / ROWS" }};
    let blocks = (min(params.query_begin + params.query_rows, params.time) + ROWS - 1u) / ROWS - first_block;
    {{ locate() }}

{% if pass == "keys" %}
    // Rows are keys, columns are the queries of the block: tiles of S^T. dV = P^T dO, dK = dS^T Q, added to those of
    // the query blocks before.
    {{ zeros("dk") }}
    {{ zeros("dv") }}
    if (row_base < params.query_begin) {
        {{ load_part("dk", "k") }}
        {{ load_part("dv", "v") }}
    }
    let query_end = min(params.query_begin + params.query_rows, params.time);
    {{ each_query_head("") }}
    for (var col_base = max(row_base / COLS * COLS, params.query_begin); col_base < query_end; col_base += COLS) {
        {% if limited %}
        // No later query sees more of these keys.
        if (first_key(col_base, batch * params.time) >= row_base + ROWS) { break; }
        {% endif %}
        {{ declare("row_v", rows, chunk) }}
        {{ declare("col_dy", cols, chunk) }}
        {{ declare("values_dy", 4 * staged, groups) }}
        {{ declare("values_q", 4 * staged, groups) }}
        {
        {{ declare("row_k", rows, chunk) }}
        {{ declare("col_q", cols, chunk) }}
        {{ fetch_product("k", "q") }}
        {{ product("s", "k", "q") }}
        {
            let columns = LANES + (tx * 4u + col_base);
            let log_sum = vec4<f32>(lse_of(columns.x), lse_of(columns.y), lse_of(columns.z), lse_of(columns.w));
            {% for r in range(rows_per_thread) %}
            s{{ r }} = exp(s{{ r }} * params.scale - log_sum);
            {% endfor %}
            if (col_base + 1u < row_base + ROWS) {
                {% for r in range(rows_per_thread) %}
                s{{ r }} = select(vec4<f32>(0.0), s{{ r }}, columns >= vec4<u32>(row{{ r }}));
                {% endfor %}
            }
            {% if limited %}
            if (first_key(col_base + COLS - 1u, first_row) > row_base) {
                let first_keys = vec4<u32>(
                    {% for c in xyzw %}
                    first_key(columns.{{ c }}, first_row),
                    {% endfor %}
                );
                {% for r in range(rows_per_thread) %}
                s{{ r }} = select(vec4<f32>(0.0), s{{ r }}, first_keys <= vec4<u32>(row{{ r }}));
                {% endfor %}
            }
            {% endif %}
        }
        {{ write_tile("s") }}
        }
        {{ fetch_product("v", "dy") }}
        {{ product("ds", "v", "dy") }}
        // ds is dP so far. Each thread finds its own part of P in the tile, and leaves there what dropout keeps of it.
        {
            let columns = LANES + (tx * 4u + col_base);
            {% if dropout %}
            let query_keys = query_keys(columns);
            {% endif %}
            let delta_d = vec4<f32>(delta_of(columns.x), delta_of(columns.y), delta_of(columns.z), delta_of(columns.w));
            {% for r in range(rows_per_thread) %}
            {
                let at = at_tile(ty, tx) + {{ r }}u * TY * TX;
                let probability = tile[at];
                {% if dropout %}
                let keep = kept(query_keys, vec4<u32>(row{{ r }}));
                tile[at] = probability * keep;
                ds{{ r }} = probability * (keep * ds{{ r }} - delta_d) * params.scale;
                {% else %}
                ds{{ r }} = probability * (ds{{ r }} - delta_d) * params.scale;
                {% endif %}
            }
            {% endfor %}
        }
        {% for r in range(rows_per_thread) %}
        {{ "if (row" ~ r ~ " < params.time) " if edge }}{
            block_ds[at_block_ds(row{{ r }}, col_base / 4u + tx)] = ds{{ r }};
        }
        {% endfor %}
        {{ fetch_values("dy") }}
        {{ accumulate("dv", "dy") }}
        {{ fetch_values("q") }}
        workgroupBarrier(); // all have read P
        {{ write_tile("ds") }}
        {{ accumulate("dk", "q") }}
    }
    }
    {{ store_part("dk", "k") }}
    {{ store_part("dv", "v") }}

{% else %}
    // Rows are queries of the block, columns are keys. dQ = dS K, where dS comes from memory as tiles of dS^T: a thread
    // has the rows 4 ty .. 4 ty + 3 and those 4 TY further on.
    const FOURS = ROWS / 4u;
    {{ zeros("dq") }}
    {% set first_tile = "first_key(row_base, batch * params.time) / COLS * COLS" if limited else "0u" %}
    for (var col_base = {{ first_tile }}; col_base < min(row_base + ROWS, params.time); col_base += COLS) {
        {{ declare("part", cols, rows // 4) }}
        {{ declare("values_k", 4 * staged, groups) }}
        {{ fetch("part", cols, rows // 4, "load_block_ds(col_base + line, row_base / 4u + d)") }}
        {{ fetch_values("k") }}
        workgroupBarrier(); // all are done with the tile
        {{ put("part", cols, rows // 4, "x", "tile") }}
        for (var first = 0u; first < TX; first += STAGED) {
            workgroupBarrier(); // all are done with what the stage held
            {{ put("values_k", 4 * staged, groups, "x") }}
            workgroupBarrier();
            {% if staged < cols // 4 %}
            if (first + STAGED < TX) {
                {{ fetch("values_k", 4 * staged, groups, "load_k(col_base + (first + STAGED) * 4u + line, d)") }}
            }
            {% endif %}
            for (var k4 = 0u; k4 < 4u * STAGED; k4 += 4u) {
                {% for k in range(4) %}
                {
                let k = k4 + {{ k }}u;
                {% for q in range(rows_per_thread // 4) %}
                let w{{ q }} = tile[(first * 4u + k) * FOURS + {{ q }}u * TY + ty];
                {% endfor %}
                {% for n in range(owned) %}
                let b{{ n }} = stage[k * GROUPS + min({{ n }}u * TX + tx, GROUPS - 1u)];
                {% for r in range(rows_per_thread) %}
                dq{{ r }}_{{ n }} = fma(vec4<f32>(w{{ r // 4 }}.{{ xyzw[r % 4] }}), b{{ n }}, dq{{ r }}_{{ n }});
                {% endfor %}
                {% endfor %}
                }
                {% endfor %}
            }
        }
    }
    {% for r in range(rows_per_thread) %}
    {
        let row = row_base + ({{ r // 4 }}u * TY + ty) * 4u + {{ r % 4 }}u;
        {% for n in range(owned) %}
        store(at_q(row), row, {{ n }}u * TX + tx, dq{{ r }}_{{ n }});
        {% endfor %}
    }
    {% endfor %}
{% endif %}
}
