// Convolution as a GEMM whose matrices are gathered while it runs, from the image, the weight and the result
// (src/ops/conv/mod.rs). Of the passes, the GEMM of
//
//   forward   result (c_out, pixels) = weight (c_out, k) image (k, pixels)          k of c_in and kernel elements
//   input     image  (c_in, pixels)  = weight (c_in, k) result (k, pixels)          k of c_out and kernel elements
//   weight    weight (c_out, n)      = result (c_out, k) image (k, n)               n as k of forward, k of pixels
//
// for each group, where pixels are those of all images. With a stride the pixels of an image are sorted by their
// residues modulo the stride: only some kernel elements reach those of one residue, the same for all of them
// (src/ops/conv/geometry.rs), so each residue is a GEMM.
//
// Tiles, threads and the loop over k are those of shaders/matmul.wgsl. Neighbouring threads gather neighbouring pixels,
// one element each; what depends on the column alone is computed before the loop.
{{ interface }}

{% set threads_n = BN // TN %}
{% set row_groups = TM // 4 %}
{% set col_groups = TN // 4 %}
{% set group_rows = BM // row_groups %}
{% set group_cols = BN // col_groups %}
{# One vector of padding spreads the writes over the banks. #}
{% set stride_a = BM // 4 + 1 %}
{% set stride_b = BN // 4 + 1 %}
{# A thread stages one k and every so many rows; of the weight's gradient, columns as well. #}
{% set rows_a = 256 // BK %}
{% set loads_a = BM // rows_a %}
{% set columns_b = BN // rows_a if pass == "weight" else BN // 32 %}
{% set loads_b = 1 if pass == "weight" else BK // 8 %}
{% set taps = KH * KW %}
{% set left = "grad_result" if pass == "weight" else "weight" %}

var<workgroup> tile_a: array<vec4<f32>, {{ BK * stride_a }}>; // [k][m/4]
var<workgroup> tile_b: array<vec4<f32>, {{ BK * stride_b }}>; // [k][n/4]

// Below every image, and so far that no offset leads back.
const OUTSIDE = -1073741824;

{# Loads the tiles at k into registers: zero out of bounds. #}
{% macro load(k0) %}
        {
            let k = {{ k0 }} + a_k;
            {% if pass == "weight" %}
            let inside = k < k_end;
            let at = (image * params.groups + part) * params.m * params.pixels + y * params.result_w + x;
            {% else %}
            {% include "conv_weight" %}
            {% endif %}
            {% for l in range(loads_a) %}
            next_a{{ l }} = 0.0;
            if (k < k_end && row + {{ l * rows_a }}u < params.m) {
                next_a{{ l }} = {{ left }}[at + (row + {{ l * rows_a }}u) * row_of_weight];
            }
            {% endfor %}
            {% if pass == "weight" %}
            let top = i32(y * params.stride_h);
            let left = i32(x * params.stride_w);
            let image_at = i32((image * params.groups + part) * params.channels * params.input_h * params.input_w);
            {% for e in range(columns_b) %}
            next_b0_{{ e }} = 0.0;
            if (inside && u32(top + y{{ e }}) < params.input_h && u32(left + x{{ e }}) < params.input_w) {
                let in_plane = (top + y{{ e }}) * i32(params.input_w) + left + x{{ e }};
                next_b0_{{ e }} = input[u32(image_at + at{{ e }} + in_plane)];
            }
            {% endfor %}
            // To the next tile's k, without a division.
            x += params.next_x;
            if (x >= params.result_w) { x -= params.result_w; y += 1u; }
            y += params.next_y;
            if (y >= params.result_h) { y -= params.result_h; image += 1u; }
            image += params.next_image;
            {% endif %}
        }
        {% if pass != "weight" %}
        {% for l in range(loads_b) %}
        {
            let k = {{ k0 }} + b_k + {{ 8 * l }}u;
            {% if strided %}
            let channel = k / taps;
            let tap = k % taps;
            let down = i32(tap / taps_w) * step_h;
            let right = i32(tap % taps_w) * step_w;
            {% else %}
            let channel = k / {{ taps }}u;
            let tap = k % {{ taps }}u;
            let down = i32(tap / {{ KW }}u) * step_h;
            let right = i32(tap % {{ KW }}u) * step_w;
            {% endif %}
            let at = i32(channel * params.input_h * params.input_w) + down * i32(params.input_w) + right;
            {% for e in range(columns_b) %}
            next_b{{ l }}_{{ e }} = 0.0;
            if (k < k_end && u32(y{{ e }} + down) < params.input_h && u32(x{{ e }} + right) < params.input_w) {
                next_b{{ l }}_{{ e }} = input[u32(at{{ e }} + at)];
            }
            {% endfor %}
        }
        {% endfor %}
        {% endif %}
{% endmacro %}

{{ entry(256) }}
    {% if pass == "weight" %}
    let split = workgroup % params.splits;
    let tile = workgroup / params.splits;
    {% else %}
    let tile = workgroup;
    {% endif %}
    // Neighbouring workgroups gather the same columns.
    let tile_row = tile % params.tiles_m * {{ BM }}u;
    let tile_col = tile / params.tiles_m % params.tiles_n * {{ BN }}u;
    let of_part = tile / (params.tiles_m * params.tiles_n);
    // The grid is rounded up; all threads of a surplus workgroup return together.
    {% if strided %}
    if (of_part >= params.groups * params.residues) { return; }
    {% else %}
    if (of_part >= params.groups) { return; }
    {% endif %}
    let part = of_part % params.groups;
    // 32 consecutive threads compute 4 x 8 blocks: shaders/matmul.wgsl.
    let block = thread / 32u;
    let thread_m = block / {{ threads_n // 8 }}u * 4u + thread % 32u / 8u;
    let thread_n = block % {{ threads_n // 8 }}u * 8u + thread % 8u;
    let a_k = thread % {{ BK }}u;
    let a_row = thread / {{ BK }}u;
    let row = tile_row + a_row;

    {% if pass == "weight" %}
    let k_begin = split * params.k_slice;
    let k_end = min(params.k, k_begin + params.k_slice);
    let row_of_weight = params.pixels;
    // Where this thread's k lies: the image, and the pixel of its result.
    var image = (k_begin + a_k) / params.pixels;
    let pixel = (k_begin + a_k) % params.pixels;
    var y = pixel / params.result_w;
    var x = pixel % params.result_w;
    {% for e in range(columns_b) %}
    let n{{ e }} = tile_col + a_row + {{ e * rows_a }}u;
    let tap{{ e }} = n{{ e }} % {{ taps }}u;
    let at{{ e }} = i32(n{{ e }} / {{ taps }}u * params.input_h * params.input_w);
    let y{{ e }} = select(
        OUTSIDE, i32(tap{{ e }} / {{ KW }}u * params.dilation_h) - i32(params.padding_h), n{{ e }} < params.n);
    let x{{ e }} = i32(tap{{ e }} % {{ KW }}u * params.dilation_w) - i32(params.padding_w);
    {% endfor %}
    {% else %}
    let k_begin = 0u;
    {% include "conv_pixels" %}
    let b_k = thread / 32u;
    {% for e in range(columns_b) %}
    let n{{ e }} = tile_col + thread % 32u + {{ 32 * e }}u;
    let pixel{{ e }} = n{{ e }} % pixels;
    let y{{ e }} = select(OUTSIDE, i32(pixel{{ e }} / count_w * by_h) + start_h, n{{ e }} < columns);
    let x{{ e }} = i32(pixel{{ e }} % count_w * by_w) + start_w;
    let at{{ e }} = i32((n{{ e }} / pixels * params.groups + part) * params.channels * params.input_h * params.input_w)
        + y{{ e }} * i32(params.input_w) + x{{ e }};
    {% endfor %}
    {% endif %}

    {% for i in range(TM) %}
    {% for j in range(col_groups) %}
    var c{{ i }}_{{ j }} = vec4<f32>(0.0);
    {% endfor %}
    {% endfor %}
    {% for l in range(loads_a) %}
    var next_a{{ l }}: f32;
    {% endfor %}
    {% for l in range(loads_b) %}
    {% for e in range(columns_b) %}
    var next_b{{ l }}_{{ e }}: f32;
    {% endfor %}
    {% endfor %}
    {{ load("k_begin") }}
    for (var k0 = k_begin; k0 < k_end; k0 += {{ BK }}u) {
        workgroupBarrier();
        {% for l in range(loads_a) %}
        {
            let m = a_row + {{ l * rows_a }}u;
            tile_a[a_k * {{ stride_a }}u + m / 4u][m % 4u] = next_a{{ l }};
        }
        {% endfor %}
        {% for l in range(loads_b) %}
        {% for e in range(columns_b) %}
        {
            {% if pass == "weight" %}
            let n = a_row + {{ e * rows_a }}u;
            tile_b[a_k * {{ stride_b }}u + n / 4u][n % 4u] = next_b{{ l }}_{{ e }};
            {% else %}
            let n = thread % 32u + {{ 32 * e }}u;
            tile_b[(b_k + {{ 8 * l }}u) * {{ stride_b }}u + n / 4u][n % 4u] = next_b{{ l }}_{{ e }};
            {% endif %}
        }
        {% endfor %}
        {% endfor %}
        workgroupBarrier();
        let k1 = k0 + {{ BK }}u;
        if (k1 < k_end) {
            {{ load("k1") }}
        }
        {% for k in range(BK) %}
        {
            {% for g in range(row_groups) %}
            let a{{ g }} = tile_a[{{ k * stride_a + g * group_rows // 4 }}u + thread_m];
            {% endfor %}
            {% for g in range(col_groups) %}
            let b{{ g }} = tile_b[{{ k * stride_b + g * group_cols // 4 }}u + thread_n];
            {% endfor %}
            {% for i in range(TM) %}
            {% for j in range(col_groups) %}
            c{{ i }}_{{ j }} = fma(vec4<f32>(a{{ i // 4 }}[{{ i % 4 }}]), b{{ j }}, c{{ i }}_{{ j }});
            {% endfor %}
            {% endfor %}
        }
        {% endfor %}
    }

    {% if pass != "weight" %}
    let plane = params.result_h * params.result_w;
    {% endif %}
    {% for j in range(col_groups) %}
    {% for e in range(1 if vec_out else 4) %}
    {
        let n = tile_col + {{ j * group_cols + e }}u + thread_n * 4u;
        {% if pass == "weight" %}
        let inside = n < params.n;
        let at = (split * params.groups + part) * params.m * params.n + n;
        {% else %}
        let inside = n < columns;
        {% if strided %}
        let y = residue_h + n % pixels / count_w * params.stride_h;
        let x = residue_w + n % pixels % count_w * params.stride_w;
        let at = (n / pixels * params.groups + part) * params.m * plane + y * params.result_w + x;
        {% else %}
        let at = (n / pixels * params.groups + part) * params.m * plane + n % pixels;
        {% endif %}
        {% endif %}
        {% for i in range(TM) %}
        {
            let m = tile_row + {{ (i // 4) * group_rows + i % 4 }}u + thread_m * 4u;
            if (inside && m < params.m) {
                {% if pass == "weight" %}
                result[at + m * params.n] {{ "+=" if accumulate else "=" }} c{{ i }}_{{ j }}[{{ e }}];
                {% elif vec_out %}
                result[(at + m * plane) / 4u] = c{{ i }}_{{ j }}{{ " + bias[part * params.m + m]" if bias }};
                {% else %}
                result[at + m * plane] = c{{ i }}_{{ j }}[{{ e }}]{{ " + bias[part * params.m + m]" if bias }};
                {% endif %}
            }
        }
        {% endfor %}
    }
    {% endfor %}
    {% endfor %}
}
