// The passes around a GEMM (src/ops/matmul/mod.rs): transposing b before it, the reduction of split-K after it.
{{ interface }}

{% if pass == "transpose" %}
// result (cols, rows) = x (rows, cols)^T in 32 x 32 blocks through workgroup memory, so that reads and writes coalesce.

var<workgroup> square: array<{{ T_in }}, 1056>; // 32 rows of 33, against bank conflicts

{{ entry(256) }}
    // Consecutive workgroups write consecutive parts of the same rows.
    let row0 = workgroup % params.down * 32u;
    let col0 = workgroup / params.down * 32u;
    let i = thread % 32u;
    for (var j = thread / 32u; j < 32u; j += 8u) {
        if (row0 + j < params.rows && col0 + i < params.cols) {
            square[j * 33u + i] = x[(row0 + j) * params.cols + col0 + i];
        }
    }
    workgroupBarrier();
    for (var j = thread / 32u; j < 32u; j += 8u) {
        if (row0 + i < params.rows && col0 + j < params.cols) {
            result[(col0 + j) * params.rows + row0 + i] = square[i * 33u + j];
        }
    }
}
{% else %}
{% include "matmul_epilogue" %}
{% set T = "vec4<f32>" if vector == 4 else "f32" %}
// C = sum over s of partial[s] [+ C] [+ bias], then the epilogue{{ "; the column sums follow" if sums }}. One thread
// for each {{ T }}.
{{ entry(256) }}
    let i = workgroup * 256u + thread;
    {% if sums %}
    if (i >= params.len) {
        let n = i - params.len;
        if (n >= params.n) { return; }
        var sum = 0.0;
        for (var s = 0u; s < params.splits; s++) { sum += partial_sums[s * params.n + n]; }
        sums[n] = sum{{ " + sums[n]" if accumulate }};
        return;
    }
    {% else %}
    if (i >= params.len) { return; }
    {% endif %}
    var sum = {{ T }}(0.0);
    var s = 0u;
    // Four loads at a time are in flight.
    for (; s + 3u < params.splits; s += 4u) {
        let at = s * params.len + i;
        {% for j in range(4) %}
        let x{{ j }} = partial[at + {{ j }}u * params.len];
        {% endfor %}
        sum = (((sum + x0) + x1) + x2) + x3;
    }
    for (; s < params.splits; s++) { sum += partial[s * params.len + i]; }
    {{ finish("sum", "i", "i % (params.n / " ~ vector ~ "u)", vector) }}
}
{% endif %}
