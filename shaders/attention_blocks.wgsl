{# Which rows a workgroup owns: those from `row_base` on, of the batch item `batch`, whose first row among all (b T) #}
{# is `first_row`. In the pass "keys" they are of the head `kv_head` of keys, and `each_query_head` goes on; else of #}
{# the head `head` of queries, which reads the keys of `kv_head`; `batch_head` is b n_head + head. Of each head the #}
{# launch has `blocks` blocks of rows, from `first_block` on; workgroups with most tiles start first. `declare` is #}
{# "let ", or nothing where these are private variables. #}
{% set launched = "params.n_kv_head" if pass == "keys" else "params.n_head" %}
{% set limited = window or documents %}
{% macro locate_block(declare) %}
    let batch_heads = params.batch * {{ launched }};
    if (workgroup >= blocks * batch_heads) { return; }
    let batch = workgroup % batch_heads / {{ launched }};
    {{ declare }}first_row = batch * params.time;
    {% if pass == "keys" %}
    {{ declare }}kv_head = workgroup % params.n_kv_head;
    let row_base = workgroup / batch_heads * ROWS;
    {% else %}
    {{ declare }}head = workgroup % params.n_head;
    {{ declare }}kv_head = workgroup % params.n_head / {{ group }}u;
    {{ declare }}batch_head = workgroup % batch_heads;
    let row_base = (first_block + blocks - 1u - workgroup / batch_heads) * ROWS;
    {% endif %}
{% endmacro %}

{# Begins a block for each head of queries that reads the keys of `kv_head`. #}
{% macro each_query_head(declare) %}
    {{ "for (var member = 0u; member < " ~ group ~ "u; member++) " if group > 1 }}{
    {{ declare }}head = kv_head * {{ group }}u{{ " + member" if group > 1 }};
    {{ declare }}batch_head = batch * params.n_head + kv_head * {{ group }}u{{ " + member" if group > 1 }};
{% endmacro %}

{% if limited %}
// The first key that a query of the batch item at `first_row` sees. It never decreases; beyond T it is that of the
// last.
fn first_key(query: u32, first_row: u32) -> u32 {
    let row = min(query, params.time - 1u);
    {% set of_window = "row + 1u - min(row + 1u, params.window)" %}
    {% set of_document = "document_starts[first_row + row]" %}
    {% if window and documents %}
    return max({{ of_window }}, {{ of_document }});
    {% else %}
    return {{ of_window if window else of_document }};
    {% endif %}
}
{% endif %}
