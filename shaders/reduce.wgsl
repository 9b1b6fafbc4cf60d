// Reduces the middle dimension of (outer, n, inner) (src/ops/reduce/), and takes gradients back over it.
//
// Reducing: outputs are numbered along (outer, inner). A workgroup holds {{ cols }} outputs; {{ lanes }} threads
// share each, taking every {{ lanes }}-th row of their chunk of n, and are summed as a tree. The chunks of one output
// are separate workgroups, whose results (outer, chunks, inner) a second launch reduces. Where each result's part of
// inner is a multiple of four, and inner long enough, an "output" is a vector of four; where inner is 1 and n a
// multiple of four, elements are loaded in fours (`wide`). With two results, inner is the one after the other. What an
// element counts as, may depend on its row and on `c`, a number of its output.
{{ interface }}

{% if mode == "reduce" %}
alias T = {{ T }};
alias X = {{ X }};
var<workgroup> totals: array<T, 256>;

fn join(a: T, b: T) -> T {
    return {{ join }};
}
fn element(x: X, {{ "c: X, " if has_center }}row: u32) -> T {
    return {{ element }};
}

{{ entry(256) }}
    // Neighbouring threads take what is adjacent in memory: rows when inner is 1, else outputs.
    {% if inner_is_one %}
    let col = thread / {{ lanes }}u;
    let lane = thread % {{ lanes }}u;
    {% else %}
    let col = thread % {{ cols }}u;
    let lane = thread / {{ cols }}u;
    {% endif %}
    let chunk = workgroup / params.blocks;
    let column = (workgroup % params.blocks) * {{ cols }}u + col;
    let used = column < params.outputs && chunk < params.chunks;
    let outer = column / params.inner;
    let i = column % params.inner;

    let first = chunk * params.chunk;
    let last = min(first + params.chunk, params.n);
    let start = outer * params.n * params.inner + i;
    {% set c = "c, " if has_center else "" %}
    {% if has_center %}
    var c = X(0.0);
    {% endif %}
    {% if identity == "first" %}
    var total = T(0.0);
    {% else %}
    var total = T({{ identity }});
    {% endif %}
    if (used) {
        {% if has_center %}
        c = center[column];
        {% endif %}
        {% if identity == "first" %}
        // An element of the chunk, not a constant: a maximum of what is all -infinity must be that.
        if (first < last) { total = T({{ "x_values[(start + first) / 4u].x" if wide else "x_values[start + first * params.inner]" }}); }
        {% endif %}
        // Eight sums at a time keep eight loads in flight.
        {% for j in range(8) %}
        var a{{ j }} = total;
        {% endfor %}
        {% if wide %}
        var row = first + lane * 4u;
        for (; row + {{ 12 * lanes }}u < last; row += {{ 16 * lanes }}u) {
            let at = (start + row) / 4u;
            {% for j in range(4) %}
            let x{{ j }} = x_values[at + {{ j * lanes }}u];
            {% endfor %}
            {% for j in range(4) %}
            {% for e in range(4) %}
            {% set a = "a" ~ (j % 2 * 4 + e) %}
            {{ a }} = join({{ a }}, element(X(x{{ j }}[{{ e }}]), {{ c }}row + {{ 4 * j * lanes + e }}u));
            {% endfor %}
            {% endfor %}
        }
        for (; row < last; row += {{ 4 * lanes }}u) {
            let x = x_values[(start + row) / 4u];
            {% for e in range(4) %}
            a{{ e }} = join(a{{ e }}, element(X(x[{{ e }}]), {{ c }}row + {{ e }}u));
            {% endfor %}
        }
        {% else %}
        let step = {{ lanes }}u * params.inner;
        var row = first + lane;
        for (; row + {{ 7 * lanes }}u < last; row += {{ 8 * lanes }}u) {
            let at = start + row * params.inner;
            {% for j in range(8) %}
            a{{ j }} = join(a{{ j }}, element(X(x_values[at + {{ j }}u * step]), {{ c }}row + {{ j * lanes }}u));
            {% endfor %}
        }
        for (; row < last; row += {{ lanes }}u) {
            a0 = join(a0, element(X(x_values[start + row * params.inner]), {{ c }}row));
        }
        {% endif %}
        total = join(join(join(a0, a1), join(a2, a3)), join(join(a4, a5), join(a6, a7)));
    }

    let mine = lane * {{ cols }}u + col;
    totals[mine] = total;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) {
            totals[mine] = join(totals[mine], totals[mine + apart * {{ cols }}u]);
        }
    }
    if (used && lane == 0u) {
        let at = (outer * params.chunks + chunk) * params.inner + i;
        let total = totals[mine];
        let value = {{ finish }};
        {% set add = "+=" if accumulate else "=" %}
        {% if results == 2 %}
        let half = params.inner / 2u;
        if (at < half) { result[at] {{ add }} value; } else { second[at - half] {{ add }} value; }
        {% else %}
        result[at] {{ add }} value;
        {% endif %}
    }
}

{% elif mode == "broadcast" %}
// dx = factor * dy of its output. One thread per element of dx, or four of as many outputs; or four times four, each
// of one output (`along_n`), whose dy are loaded together: they are far from where they were.
{% if along_n %}
{{ entry(256) }}
    let first = workgroup * 1024u + thread;
    {% for j in range(4) %}
    let i{{ j }} = first + {{ 256 * j }}u;
    let dy{{ j }} = params.factor * grad_output[min(i{{ j }} * 4u, params.len - 1u) / params.n];
    {% endfor %}
    {% for j in range(4) %}
    if (i{{ j }} * 4u < params.len) { result[i{{ j }}] = vec4<f32>(dy{{ j }}); }
    {% endfor %}
}
{% else %}
{{ for_each(vector) }}
    result[i] = params.factor * grad_output[i / params.inner / params.n * params.inner + i % params.inner];
}
{% endif %}

{% elif mode == "backward" %}
// dx of x, dy and what else belongs to an output: `c` and `d`. Elements to a thread as above.
fn derivative(x: f32, c: f32, {{ "d: f32, " if has_d }}dy: f32) -> f32 {
    return {{ expression }};
}

{{ for_each(vector) }}
    {% if along_n %}
    let column = i * 4u / params.n;
    {% else %}
    let column = i / params.inner / params.n * params.inner + i % params.inner;
    {% endif %}
    let x = x_values[i];
    let c = c_values[column];
    {% if has_d %}
    let d = d_values[column];
    {% endif %}
    let dy = grad_output[column];
    {% if vector == 1 %}
    result[i] = derivative(x, c, {{ "d, " if has_d }}dy);
    {% else %}
    result[i] = vec4<f32>(
        {% for e in range(4) %}
        {% set of = "" if along_n else "[" ~ e ~ "]" %}
        derivative(x[{{ e }}], c{{ of }}, {{ "d" ~ of ~ ", " if has_d }}dy{{ of }}),
        {% endfor %}
    );
    {% endif %}
}
{% endif %}
