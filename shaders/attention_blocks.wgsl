{# Which rows a workgroup owns: those from `row_base` on, of the head `head` of a batch item whose first row #}
{# among all (b T) is `first_row`; `batch_head` is both together (b n_head + head). Of each head the launch has #}
{# `blocks` blocks of rows, from `first_block` on; workgroups with most tiles start first. `declare` is "let ", or #}
{# nothing where the three are private variables. #}
{% macro locate_block(declare) %}
    if (workgroup >= blocks * params.batch_heads) { return; }
    {{ declare }}batch_head = workgroup % params.batch_heads;
    {{ declare }}head = batch_head % params.n_head;
    {{ declare }}first_row = batch_head / params.n_head * params.time;
    {% if pass == "keys" %}
    let row_base = workgroup / params.batch_heads * ROWS;
    {% else %}
    let row_base = (first_block + blocks - 1u - workgroup / params.batch_heads) * ROWS;
    {% endif %}
{% endmacro %}
