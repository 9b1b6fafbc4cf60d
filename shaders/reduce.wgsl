// Reduces the middle dimension of (outer, n, inner) (src/ops/reduce.rs), and broadcasts gradients back over it.
//
// Reducing: outputs are numbered along (outer, inner). A workgroup holds {{ cols }} outputs; {{ lanes }} threads
// share each, taking every {{ lanes }}-th row of their chunk of n, and are summed as a tree. The chunks of one output
// are separate workgroups, whose results (outer, chunks, inner) a second launch reduces. Where each result's part of
// inner is a multiple of four, and inner long enough, an "output" is a vector of four. With two results, inner is the
// one after the other.
{{ interface }}

{% if mode == "reduce" %}
var<workgroup> totals: array<{{ T }}, 256>;

fn join(a: {{ T }}, b: {{ T }}) -> {{ T }} {
    {% if kind == "max" %}
    return max(a, b);
    {% else %}
    return a + b;
    {% endif %}
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
    var total = {{ T }}(0.0);
    if (used) {
        {% if kind == "max" %}
        // An element of the chunk, not a constant: a maximum of what is all -infinity must be that.
        total = {{ T }}(x[start + first * params.inner]);
        {% endif %}
        // Eight sums at a time keep eight loads in flight.
        {% for j in range(8) %}
        var a{{ j }} = total;
        {% endfor %}
        let step = {{ lanes }}u * params.inner;
        var row = first + lane;
        for (; row + {{ 7 * lanes }}u < last; row += {{ 8 * lanes }}u) {
            let at = start + row * params.inner;
            {% for j in range(8) %}
            a{{ j }} = join(a{{ j }}, {{ T }}(x[at + {{ j }}u * step]));
            {% endfor %}
        }
        for (; row < last; row += {{ lanes }}u) {
            a0 = join(a0, {{ T }}(x[start + row * params.inner]));
        }
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
        let value = params.factor * totals[mine];
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
// dx = factor * dy of its output. One thread per element of dx.
{{ for_each(1) }}
    result[i] = params.factor * grad_output[i / params.inner / params.n * params.inner + i % params.inner];
}

{% elif mode == "max_backward" %}
// dx = dy at the first maximum of each output, else 0. One thread per element of dx; those that equal the maximum
// look for an earlier one, from the front, so that many equal ones find it soon.
{{ for_each(1) }}
    let outer = i / params.inner / params.n;
    let column = outer * params.inner + i % params.inner;
    var gradient = 0.0;
    if (x[i] == maximum[column]) {
        var first = outer * params.n * params.inner + i % params.inner;
        while (first < i && x[first] != maximum[column]) {
            first += params.inner;
        }
        if (first == i) { gradient = grad_output[column]; }
    }
    result[i] = gradient;
}
{% endif %}
