// The passes forward and input of a convolution with at most four rows: channels of a group's result, or of its image,
// as those of an RGB image or of a depthwise convolution. Most of a tile of the GEMM (shaders/conv.wgsl) would be
// beyond the last row.
//
// A thread computes all rows of {{ TN }} pixels: whatever it reads is multiplied with the weights of each row, which
// lie side by side in workgroup memory. The order of the sum is that of the GEMM.
{{ interface }}

{% set taps = KH * KW %}
{% set row = "f32" if M == 1 else "vec" ~ M ~ "<f32>" %}
{# Of k, at a time: 8 KiB. #}
{% set slice = 512 %}

var<workgroup> weights: array<{{ row }}, {{ slice }}>;

// Below every image, and so far that no offset leads back.
const OUTSIDE = -1073741824;

{{ entry(256) }}
    let tile_col = workgroup % params.tiles_n * {{ 256 * TN }}u;
    let of_part = workgroup / params.tiles_n;
    // The grid is rounded up; all threads of a surplus workgroup return together.
    {% if strided %}
    if (of_part >= params.groups * params.residues) { return; }
    {% else %}
    if (of_part >= params.groups) { return; }
    {% endif %}
    let part = of_part % params.groups;
    {% include "conv_pixels" %}
    {% if not strided %}
    let taps_h = {{ KH }}u;
    let taps_w = {{ KW }}u;
    {% endif %}
    {% for e in range(TN) %}
    let n{{ e }} = tile_col + thread + {{ 256 * e }}u;
    let pixel{{ e }} = n{{ e }} % pixels;
    let y{{ e }} = select(OUTSIDE, i32(pixel{{ e }} / count_w * by_h) + start_h, n{{ e }} < columns);
    let x{{ e }} = i32(pixel{{ e }} % count_w * by_w) + start_w;
    let at{{ e }} = i32((n{{ e }} / pixels * params.groups + part) * params.channels * params.input_h * params.input_w)
        + y{{ e }} * i32(params.input_w) + x{{ e }};
    var sum{{ e }} = {{ row }}(0.0);
    {% endfor %}

    // The channel and the kernel element of k, without a division.
    var plane_at = 0;
    var tap_h = 0u;
    var tap_w = 0u;
    for (var k0 = 0u; k0 < k_end; k0 += {{ slice }}u) {
        let count = min(k_end - k0, {{ slice }}u);
        workgroupBarrier();
        for (var i = thread; i < count; i += 256u) {
            let k = k0 + i;
            {% include "conv_weight" %}
            {% if M == 1 %}
            weights[i] = weight[at];
            {% else %}
            {% for m in range(M) %}
            weights[i][{{ m }}] = weight[at + {{ m }}u * row_of_weight];
            {% endfor %}
            {% endif %}
        }
        workgroupBarrier();
        for (var i = 0u; i < count; i += 1u) {
            let down = i32(tap_h) * step_h;
            let right = i32(tap_w) * step_w;
            let offset = plane_at + down * i32(params.input_w) + right;
            {% for e in range(TN) %}
            var value{{ e }} = 0.0;
            if (u32(y{{ e }} + down) < params.input_h && u32(x{{ e }} + right) < params.input_w) {
                value{{ e }} = input[u32(at{{ e }} + offset)];
            }
            {% endfor %}
            let of_k = weights[i];
            {% for e in range(TN) %}
            sum{{ e }} = fma({{ row }}(value{{ e }}), of_k, sum{{ e }});
            {% endfor %}
            tap_w += 1u;
            if (tap_w == taps_w) {
                tap_w = 0u;
                tap_h += 1u;
                if (tap_h == taps_h) {
                    tap_h = 0u;
                    plane_at += i32(params.input_h * params.input_w);
                }
            }
        }
    }

    let plane = params.result_h * params.result_w;
    {% for e in range(TN) %}
    if (n{{ e }} < columns) {
        {% if strided %}
        let y = residue_h + pixel{{ e }} / count_w * params.stride_h;
        let x = residue_w + pixel{{ e }} % count_w * params.stride_w;
        let to = y * params.result_w + x;
        {% else %}
        let to = pixel{{ e }};
        {% endif %}
        let at = (n{{ e }} / pixels * params.groups + part) * {{ M }}u * plane + to;
        {% for m in range(M) %}
        result[at + {{ m }}u * plane] = sum{{ e }}{{ "[" ~ m ~ "]" if M > 1 }}{{ " + bias[part * " ~ M ~ "u + " ~ m ~ "u]" if bias }};
        {% endfor %}
    }
    {% endfor %}
}
